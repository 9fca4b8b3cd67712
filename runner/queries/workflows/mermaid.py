"""The graph of a workflow as a Mermaid flowchart."""

from collections.abc import Iterator

from runner.queries.workflows.graph import WorkflowGraph
from runner.queries.workflows.svg import COLORS
from runner.text.sanitize import one_line


def mermaid(graph: WorkflowGraph) -> str:
    """Draw a graph for Mermaid, as documentation pages and code hosts render it."""
    return "".join(f"{line}\n" for line in _lines(graph))


def _lines(graph: WorkflowGraph) -> Iterator[str]:
    yield "flowchart LR"
    for node in graph.tasks:
        key = f" {node.key}" if node.key else ""
        name, state = _escaped(f"{node.id} {node.handler}{key}"), _escaped(node.reason or node.shown)
        yield f'  t{node.id}["{name}<br/>{state}"]:::{node.state}'
    step, links, on_path = 0, [], {*zip(graph.path, graph.path[1:], strict=False)}
    for node in graph.tasks:
        for parent in node.parents:
            yield f"  t{parent} --> t{node.id}"
            links += [step] if (parent, node.id) in on_path else []
            step += 1
    for state, (fill, stroke) in COLORS.items():
        yield f"  classDef {state} fill:{fill},stroke:{stroke},color:#1f2328"
    if graph.path:
        yield f"  classDef critical stroke-width:3px\n  class {','.join(f't{id}' for id in graph.path)} critical"
    if links:
        yield f"  linkStyle {','.join(map(str, links))} stroke-width:3px"


def _escaped(text: str) -> str:
    """A text without the characters that end a label; Mermaid reads entities by number."""
    return "".join(char if char.isalnum() or char in " .-_" else f"#{ord(char)};" for char in one_line(text))
