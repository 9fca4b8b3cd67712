"""`runner runners`: who works."""

from datetime import datetime

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import Column, plain, print_json, print_line, print_table
from runner.people import cells
from runner.store.observe.legible import clock
from runner.store.observe.runners import RunnerRow
from runner.store.observe.runners import runners as read_runners

COLUMNS = (
    Column("RUNNER", right=True, whole=True),
    Column("HOST"),
    Column("PID", right=True, whole=True),
    Column("STATE", whole=True),
    Column("SILENT", right=True, whole=True),
    Column("RUNNING", right=True, whole=True),
    Column("UP", right=True, whole=True),
    Column("VERSION"),
    Column("HANDLERS"),
)


async def runners(*, json: bool = False, connection: Connection = NOWHERE) -> int:
    """List the registered runners and what they have in hand, lost ones included.

    Args:
        json: Print one JSON document.
        connection: Which database.
    """
    async with opened(connection.settings()) as database:
        found = await database.read(read_runners)
        at = await database.read(clock)
    if json:
        print_json({"at": at, "runners": [{**plain(runner), "alive": runner.alive} for runner in found]})
    elif found:
        print_table(COLUMNS, [_row(runner, at) for runner in found])
    else:
        print_line("No runner is registered. Start one with: runner work -H package.module")
    return Exit.OK


def _row(runner: RunnerRow, at: datetime) -> list[str]:
    state = "alive" if runner.alive else "lost"
    return [
        str(runner.id),
        runner.host,
        str(runner.pid),
        f"{state}, {runner.wish}" if runner.wish else state,
        cells.age(runner.silent),
        f"{runner.holds}/{runner.capacity}",
        cells.since(runner.started_at, at),
        runner.version,
        ", ".join(runner.handlers),
    ]
