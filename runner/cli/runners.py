"""`runner runners`, `runner drain`, `runner resize`: the registered runners, and commands for them.

A runner receives a command with its next heartbeat.
"""

from datetime import datetime

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import (
    DEFAULT_CONNECTION,
    SINGLE_CHANGE,
    Connection,
    RunnerId,
    SingleChangeOptions,
    open_database,
)
from runner.cli.output import TableColumn, numbers, plain, print_json, print_line, print_table
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.operations.results import local_actor
from runner.operations.runner_command import send_command
from runner.operations.sql_export import command_script
from runner.policy.runner_command import RunnerCommand
from runner.queries.runners import RunnerRow, runner_of
from runner.queries.runners import runners as read_runners
from runner.queries.why.remedies import blocked_runner
from runner.text import formatting

COLUMNS = (
    TableColumn("RUNNER", right=True, no_wrap=True),
    TableColumn("HOST"),
    TableColumn("PID", right=True, no_wrap=True),
    TableColumn("STATE", no_wrap=True),
    *numbers("SEEN", "SLOTS", "CPU", "MEMORY", "UPTIME"),
    TableColumn("VERSION"),
    TableColumn("HANDLERS"),
)


async def runners(*, json: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """List the runners, including lost ones, and the tasks they hold.

    CPU is the share of one processor in use between the last two heartbeats, and
    MEMORY the resident memory, both with the processes of its handlers.

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
        for cause in [blocked_runner(runner) for runner in rows if runner.blocked_for]:
            print_line(cause.sentences)
    else:
        print_line("No runners are registered. Start one with: runner work -H package.module")
    return Exit.OK


def _row(runner: RunnerRow, at: datetime) -> list[str]:
    state = "stalled" if runner.blocked_for else "alive" if runner.alive else "lost"
    return [
        str(runner.id),
        runner.host,
        str(runner.pid),
        ", ".join((state, *runner.remarks)),
        formatting.age(runner.heartbeat_age),
        f"{runner.running_tasks}/{runner.capacity}",
        formatting.share(runner.cpu),
        formatting.size(runner.memory),
        formatting.since(runner.started_at, at),
        runner.version,
        ", ".join(runner.handlers),
    ]


async def drain(
    runner: RunnerId,
    /,
    *,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Ask a runner to claim no more tasks, finish the running ones and exit, as after SIGTERM.

    Args:
        runner: Id of the runner; see runner runners.
        options: How the change is shown and recorded.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        return await _send(database, "drain", runner, RunnerCommand(drain=True), options)


async def resize(
    runner: RunnerId,
    /,
    *,
    concurrency: int | None = None,
    threads: int | None = None,
    processes: int | None = None,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Ask a runner to run more or fewer tasks in parallel, until it exits.

    Args:
        runner: Id of the runner; see runner runners.
        concurrency: Number of async handlers to run in parallel.
        threads: Number of plain functions to run in parallel.
        processes: Number of process handlers to run in parallel.
        options: How the change is shown and recorded.
        connection: The database.
    """
    if concurrency is None and threads is None and processes is None:
        raise InvalidInput(why="set --concurrency, --threads or --processes: --concurrency 50 --threads 4")
    async with open_database(connection.settings()) as database:
        command = RunnerCommand(concurrency=concurrency, threads=threads, processes=processes)
        return await _send(database, "resize", runner, command, options)


async def _send(
    database: Database, verb: str, runner_id: int, command: RunnerCommand, options: SingleChangeOptions
) -> int:
    by = local_actor(options.reason)
    if options.sql:
        print(await database.write(command_script, runner_id, str(command), by), end="")
        return Exit.OK
    row = await database.read(runner_of, runner_id)
    if row is None:
        print_stderr(f"runner {runner_id} does not exist; see runner runners")
        return Exit.NOT_FOUND
    if not options.dry_run:
        await database.write(send_command, runner_id, str(command), by)
    if options.json:
        request = {"verb": verb, "runner": runner_id, "command": str(command)}
        print_json(request | {"alive": row.alive, "dry_run": options.dry_run})
    else:
        print_line(_sentence(row, command, options.dry_run))
    if not row.alive:
        print_stderr(
            f"runner {runner_id} has sent no heartbeat for {formatting.age(row.heartbeat_age)}; it may be lost"
        )
    return Exit.OK


def _sentence(row: RunnerRow, command: RunnerCommand, dry_run: bool) -> str:
    runner = f"runner {row.id} on {row.host} (process {row.pid}, {row.running_tasks} of {row.capacity} slots in use)"
    return f"{runner} {'would receive' if dry_run else 'will receive'}: {command}"
