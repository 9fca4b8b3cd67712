"""The graph of a workflow as lines of text: each task below the parent that it waits for longest."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runner.policy.critical_path import in_order
from runner.queries.workflows.graph import WorkflowGraph, WorkflowNode
from runner.text import formatting
from runner.text.formatting import stored_state_text
from runner.text.sanitize import one_line

MOST_ALIKE = 20
"""Maximum number of lines of tasks of the same handler below one parent; the others share a line."""

CRITICAL = "*"
"""The mark of the critical path, before a line."""


class GraphLine(NamedTuple):
    """A line of a graph, safe to print.

    Args:
        task: the task of the line; None for a line about several.
    """

    text: str
    task: WorkflowNode | None = None


def graph_lines(graph: WorkflowGraph, most_alike: int = MOST_ALIKE) -> list[GraphLine]:
    """Draw a graph as a tree, which names the further parents of a task in its line."""
    nodes = {node.id: node for node in graph.tasks}
    parents = {node.id: node.parents for node in graph.tasks}
    order = in_order(nodes, parents)
    depth: dict[int, tuple[float, int]] = {}
    children: dict[int | None, list[int]] = defaultdict(list)
    for id in [*order, *(id for id in nodes if id not in set(order))]:
        known = [parent for parent in parents[id] if parent in depth]
        under = max(known, key=lambda parent: (nodes[parent].critical, depth[parent]), default=None)
        length, level = depth[under] if under is not None else (0.0, 0)
        depth[id] = (length + nodes[id].expected, level + 1)
        children[under].append(id)
    lines: list[GraphLine] = []
    _draw(lines, nodes, children, most_alike)
    return lines


def _draw(
    lines: list[GraphLine],
    nodes: dict[int, WorkflowNode],
    children: dict[int | None, list[int]],
    most_alike: int,
) -> None:
    """Write the lines of all tasks, without recursion: a chain may have thousands."""
    stack = [("", "", item) for item in reversed(_shortened(nodes, children[None], most_alike))]
    while stack:
        prefix, branch, item = stack.pop()
        if isinstance(item, str):
            lines.append(GraphLine(f"  {prefix}{branch}{item}"))
            continue
        under = prefix + {"├─ ": "│  ", "└─ ": "   "}.get(branch, "")
        own = _shortened(nodes, children[item], most_alike)
        mark = CRITICAL if nodes[item].critical else " "
        lines.append(
            GraphLine(f"{mark} {prefix}{branch}{node_text(nodes[item], _others(nodes, children, item))}", nodes[item])
        )
        ends = ["├─ "] * (len(own) - 1) + ["└─ "] * bool(own)
        stack += [(under, end, each) for each, end in zip(reversed(own), reversed(ends), strict=True)]


def _others(nodes: dict[int, WorkflowNode], children: dict[int | None, list[int]], id: int) -> list[int]:
    """The parents of a task that its line is not below."""
    return [parent for parent in nodes[id].parents if id not in children[parent]]


def _shortened(nodes: dict[int, WorkflowNode], ids: Sequence[int], most: int) -> list[int | str]:
    """The ids, and a text in place of the later ones of each handler that has too many."""
    result: list[int | str] = []
    rest: dict[str, Counter[str]] = defaultdict(Counter)
    seen = Counter[str]()
    for id in ids:
        node = nodes[id]
        seen[node.handler] += 1
        if seen[node.handler] <= most or node.critical:
            result.append(id)
        else:
            rest[node.handler][node.shown] += 1
    return [*result, *_rest(rest)]


def _rest(rest: dict[str, Counter[str]]) -> Iterator[str]:
    for handler, states in rest.items():
        counts = ", ".join(f"{number:,} {state}" for state, number in states.items())
        yield f"... {sum(states.values()):,} more {one_line(handler)}: {counts}"


MOST_NAMED = 5
"""Maximum number of further parents in a line."""


def node_text(node: WorkflowNode, others: Sequence[int] = ()) -> str:
    """A task in words: sign and state, id, handler, key, duration, the wait of a step and further parents."""
    key = f" {one_line(node.key)}" if node.key else ""
    took = f"  {formatting.duration(node.seconds)}" if node.seconds is not None else ""
    waits = f"  {one_line(node.reason)}" if node.reason else ""
    named = [str(id) for id in others[:MOST_NAMED]]
    named += [f"{len(others) - MOST_NAMED:,} more"] if len(others) > MOST_NAMED else []
    named += [f"{node.outside:,} outside"] if node.outside else []
    after = (
        f"  after {', '.join(named)} too" if named and node.parents else f"  after {', '.join(named)}" if named else ""
    )
    return f"{formatting.state(node.shown)} {node.id} {one_line(node.handler)}{key}{took}{waits}{after}"


def heading(graph: WorkflowGraph) -> str:
    """The workflow in one line: id, name, state, counts, and the time of its critical path."""
    row = graph.workflow
    name = f" {one_line(row.name)}" if row.name else ""
    failed = f", {row.failed:,} failed" if row.failed else ""
    path = formatting.duration(sum(node.expected for node in graph.tasks if node.critical))
    shown = f", the first {len(graph.tasks):,} below" if graph.more else ""
    return (
        f"workflow {row.id}{name}   {stored_state_text(row.state)}   {row.done:,} of {row.total:,} done{failed}"
        f"   critical path {path}{shown}"
    )
