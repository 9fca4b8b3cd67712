"""`runner workflow`: the graph of a workflow."""

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, TaskId, open_database
from runner.cli.output import print_json, print_line, print_text
from runner.errors import InvalidInput
from runner.queries.workflows.graph import WorkflowGraph, workflow_graph
from runner.queries.workflows.lines import graph_lines, heading
from runner.queries.workflows.mermaid import mermaid as draw_mermaid
from runner.queries.workflows.svg import svg as draw_svg

DOCUMENTS = (WorkflowGraph,)


async def workflow(
    id: TaskId,
    /,
    *,
    mermaid: bool = False,
    svg: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Show the graph of a workflow, as text or as a picture.

    Each task is below the parent that it waits for longest; its line names the
    others. A * marks the critical path: the chain of tasks that takes longest. A
    finished task counts with its duration, another one with the mean of its handler
    in the workflow.

    runner workflow 17 --svg > 17.svg
    runner retry workflow:17 state:dead    runs its dead tasks again
    runner terminate below:40              terminates task 40 and those after it

    Args:
        id: The id of the workflow, as runner workflows and runner show print it.
        mermaid: Print a Mermaid flowchart.
        svg: Print an SVG picture.
        json: Print one JSON document.
        connection: The database.
    """
    if mermaid + svg + json > 1:
        raise InvalidInput(why="choose one of --mermaid, --svg and --json")
    async with open_database(connection.settings()) as database:
        graph = await database.read(workflow_graph, id)
    if json:
        print_json(graph)
    elif mermaid or svg:
        print_text(draw_mermaid(graph) if mermaid else draw_svg(graph))
    else:
        print_line(heading(graph), style="bold")
        for line in graph_lines(graph):
            print_line(line.text)
    return Exit.OK
