"""Layers: a layered layout of the tasks of a workflow, from left to right."""

from collections.abc import Mapping, Sequence

from runner.policy.critical_path import in_order

SWEEPS = 4
"""Passes that move tasks next to their parents and children."""


def layers(parents: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Arrange tasks in layers: each task is to the right of all its parents, and near them.

    Args:
        parents: the parents of each task, by its id, all of them keys. Tasks in a cycle are in the last layer.
    """
    depth: dict[int, int] = {}
    for id in in_order(parents, parents):
        depth[id] = 1 + max((depth[parent] for parent in parents[id] if parent in depth), default=-1)
    last = 1 + max(depth.values(), default=-1)
    result: list[list[int]] = [[] for _ in range(last + any(id not in depth for id in parents))]
    for id in parents:
        result[depth.get(id, last)].append(id)
    children: dict[int, list[int]] = {id: [] for id in parents}
    for id, above in parents.items():
        for parent in above:
            children[parent].append(id)
    for sweep in range(SWEEPS):
        near: Mapping[int, Sequence[int]] = children if sweep % 2 else parents
        places = {id: place / len(layer) for layer in result for place, id in enumerate(layer)}
        for layer in reversed(result) if sweep % 2 else result:
            layer.sort(key=lambda id: _mean(near[id], places, places[id]))
            places |= {id: place / len(layer) for place, id in enumerate(layer)}
    return result


def _mean(ids: Sequence[int], places: Mapping[int, float], own: float) -> float:
    return sum(places[id] for id in ids) / len(ids) if ids else own
