"""critical path: the chain of dependent tasks that takes longest."""

from collections.abc import Iterable, Mapping, Sequence


def critical_path(lengths: Mapping[int, float], parents: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the chain with the longest time in total; of equal ones the chain with the most tasks.

    Args:
        lengths: seconds of each task, by id.
        parents: the parents of each task, by its id; those without a length are ignored, and so are tasks in a cycle.

    Returns:
        The ids from the first task to the last; empty without tasks.
    """
    best: dict[int, tuple[float, int]] = {}
    before: dict[int, int | None] = {}
    for id in in_order(lengths, parents):
        known = [parent for parent in parents.get(id, ()) if parent in best]
        last = max(known, key=lambda parent: (best[parent], -parent), default=None)
        length, number = best[last] if last is not None else (0.0, 0)
        best[id], before[id] = (length + lengths[id], number + 1), last
    end = max(best, key=lambda id: (best[id], -id), default=None)
    path: list[int] = []
    while end is not None:
        path.append(end)
        end = before[end]
    return tuple(reversed(path))


def in_order(ids: Iterable[int], parents: Mapping[int, Sequence[int]]) -> list[int]:
    """Return ids so that each comes after its parents, otherwise in ascending order; without those in a cycle."""
    known = sorted(ids)
    children: dict[int, list[int]] = {id: [] for id in known}
    open_parents = dict.fromkeys(known, 0)
    for id in known:
        for parent in {parent for parent in parents.get(id, ()) if parent in children}:
            children[parent].append(id)
            open_parents[id] += 1
    order = [id for id in known if not open_parents[id]]
    for id in order:
        for child in children[id]:
            open_parents[child] -= 1
            if not open_parents[child]:
                order.append(child)
    return order
