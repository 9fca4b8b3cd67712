"""`runner demo`: a sample queue at work."""

from runner.cli.connection import DEFAULT_CONNECTION, Connection
from runner.cli.demo import demo as run_demo


async def demo(
    *,
    keep_running: bool = False,
    tasks: int | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Fill a queue with sample tasks and run them.

    Submits a task for each file of Python's standard library, runs them all, lets
    some fail and retry, and reports.

    Watch it with tasktui in another terminal.

    Args:
        keep_running: Keep submitting until ctrl-c.
        tasks: Submit only this many tasks at the start instead of all files.
        json: Print the report as one JSON document.
        connection: The database.
    """
    return await run_demo(connection.settings(), keep_running=keep_running, as_json=json, tasks=tasks)
