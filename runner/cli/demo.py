"""`runner demo`: everything at work."""

from runner.cli.connection import NOWHERE, Connection
from runner.demo import demo as play


async def demo(
    *, keep_running: bool = False, tasks: int | None = None, json: bool = False, connection: Connection = NOWHERE
) -> int:
    """Show everything at work, on a queue filled with sample tasks.

    Submits a task for each file of Python's own library,
    runs them all, lets some fail and be retried, and reports.

    Watch it with tasktui in another terminal.

    Args:
        keep_running: Go on submitting until ctrl-c.
        tasks: Submit so many at first; all files when left out.
        json: Print the report as one JSON document.
        connection: Which database.
    """
    return await play(connection.settings(), keep_running=keep_running, as_json=json, tasks=tasks)
