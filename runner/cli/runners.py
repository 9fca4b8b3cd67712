"""`runner runners`: the registered runners."""

from datetime import datetime

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import TableColumn, plain, print_json, print_line, print_table
from runner.db.transaction import clock
from runner.queries.runners import RunnerRow
from runner.queries.runners import runners as read_runners
from runner.text import formatting

COLUMNS = (
    TableColumn("RUNNER", right=True, no_wrap=True),
    TableColumn("HOST"),
    TableColumn("PID", right=True, no_wrap=True),
    TableColumn("STATE", no_wrap=True),
    TableColumn("HEARTBEAT", right=True, no_wrap=True),
    TableColumn("SLOTS", right=True, no_wrap=True),
    TableColumn("UPTIME", right=True, no_wrap=True),
    TableColumn("VERSION"),
    TableColumn("HANDLERS"),
)


async def runners(*, json: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """List the runners, including lost ones, and the tasks they hold.

    Args:
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        rows = await database.read(read_runners)
        at = await database.read(clock)
    if json:
        print_json({"at": at, "runners": [{**plain(runner), "alive": runner.alive} for runner in rows]})
    elif rows:
        print_table(COLUMNS, [_row(runner, at) for runner in rows])
    else:
        print_line("No runners are registered. Start one with: runner work -H package.module")
    return Exit.OK


def _row(runner: RunnerRow, at: datetime) -> list[str]:
    state = "alive" if runner.alive else "lost"
    return [
        str(runner.id),
        runner.host,
        str(runner.pid),
        ", ".join((state, *runner.remarks)),
        formatting.age(runner.heartbeat_age),
        f"{runner.running_tasks}/{runner.capacity}",
        formatting.since(runner.started_at, at),
        runner.version,
        ", ".join(runner.handlers),
    ]
