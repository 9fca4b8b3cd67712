"""The graph of a workflow as an SVG picture, from left to right in layers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from runner.model.task import State
from runner.policy.critical_path import in_order
from runner.queries.workflows.graph import WorkflowGraph, WorkflowNode
from runner.text import formatting
from runner.text.sanitize import one_line

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


WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 42, 60, 14, 16
"""The size of a box, the gaps between boxes, and the margin, in pixels."""

LONGEST = 26
"""Characters of a line in a box."""

COLORS: dict[State, tuple[str, str]] = {
    State.WAITING: ("#ddf4ff", "#54aeff"),
    State.BLOCKED: ("#f6f8fa", "#8c959f"),
    State.RUNNING: ("#fff8c5", "#d4a72c"),
    State.SUCCEEDED: ("#dafbe1", "#4ac26b"),
    State.DEAD: ("#ffebe9", "#cf222e"),
    State.CANCELLED: ("#eaeef2", "#57606a"),
}
"""The fill and the line of a box, by state."""


def svg(graph: WorkflowGraph) -> str:
    """Draw a graph as an SVG document: tasks in layers from left to right, the critical path with thick lines."""
    nodes = {node.id: node for node in graph.tasks}
    columns = layers({node.id: node.parents for node in graph.tasks})
    tallest = max(map(len, columns), default=0)
    places: dict[int, tuple[float, float]] = {}
    for x, column in enumerate(columns):
        top = (tallest - len(column)) * (HEIGHT + GAP_Y) / 2
        for y, id in enumerate(column):
            places[id] = MARGIN + x * (WIDTH + GAP_X), MARGIN + top + y * (HEIGHT + GAP_Y)
    width = 2 * MARGIN + max(len(columns) * (WIDTH + GAP_X) - GAP_X, 0)
    height = 2 * MARGIN + max(tallest * (HEIGHT + GAP_Y) - GAP_Y, 0)
    name = escape(one_line(graph.workflow.name or f"workflow {graph.workflow.id}"))
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="monospace"',
        f' font-size="12"><title>{name}</title>',
        f'<rect {size} fill="#ffffff"/>',
        *_edges(graph, places),
        *(_box(nodes[id], *place) for id, place in places.items()),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _edges(graph: WorkflowGraph, places: dict[int, tuple[float, float]]) -> Iterator[str]:
    on_path = {*zip(graph.path, graph.path[1:], strict=False)}
    for node in graph.tasks:
        for parent in node.parents:
            (x1, y1), (x2, y2) = places[parent], places[node.id]
            x1, y1, y2 = x1 + WIDTH, y1 + HEIGHT / 2, y2 + HEIGHT / 2
            thick = 'stroke="#1f2328" stroke-width="3"' if (parent, node.id) in on_path else 'stroke="#8c959f"'
            yield f'<path d="M{x1:g} {y1:g}C{x1 + 30:g} {y1:g} {x2 - 30:g} {y2:g} {x2:g} {y2:g}" fill="none" {thick}/>'


def _box(node: WorkflowNode, x: float, y: float) -> str:
    fill, line = COLORS[node.state]
    stroke = 'stroke="#1f2328" stroke-width="3"' if node.critical else f'stroke="{line}"'
    name = f"{node.id} {node.handler}{f' {node.key}' if node.key else ''}"
    took = f"  {formatting.duration(node.seconds)}" if node.seconds is not None else ""
    state = _short(one_line(node.reason)) if node.reason else formatting.state(node.shown) + took
    return (
        f'<g><title>{escape(one_line(name))}</title><rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6" '
        f'fill="{fill}" {stroke}/>'
        f'<text x="{x + 8:g}" y="{y + 17:g}" fill="#1f2328">{escape(_short(one_line(name)))}</text>'
        f'<text x="{x + 8:g}" y="{y + 34:g}" fill="#57606a">{escape(state)}</text></g>'
    )


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
