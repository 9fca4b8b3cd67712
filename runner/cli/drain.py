"""`runner drain`, `runner resize`: commands for a runner, which receives them with its next heartbeat."""

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.output import print_json, print_line
from runner.cli.task_filter import RunnerId
from runner.db.database import Database
from runner.errors import InvalidInput
from runner.operations.results import local_actor
from runner.operations.runner_command import send_command
from runner.operations.sql_export import command_script
from runner.policy.runner_command import RunnerCommand
from runner.queries.runners import RunnerRow, runner_of
from runner.text import formatting


async def drain(
    runner: RunnerId,
    /,
    *,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Ask a runner to claim no more tasks, finish the running ones and exit, as after SIGTERM.

    Args:
        runner: Id of the runner; see runner runners.
        dry_run: Only show the request.
        sql: Only print equivalent SQL for psql or sqlite3.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        if sql:
            return await _print_script(database, runner, RunnerCommand(drain=True), reason)
        return await _ask(database, "drain", runner, RunnerCommand(drain=True), reason, dry_run=dry_run, json=json)


async def resize(  # noqa: PLR0913 - one argument per option
    runner: RunnerId,
    /,
    *,
    concurrency: int | None = None,
    threads: int | None = None,
    processes: int | None = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Ask a runner to run more or fewer tasks in parallel, until it exits.

    Args:
        runner: Id of the runner; see runner runners.
        concurrency: Number of async handlers to run in parallel.
        threads: Number of plain functions to run in parallel.
        processes: Number of process handlers to run in parallel.
        dry_run: Only show the request.
        sql: Only print equivalent SQL for psql or sqlite3.
        reason: The reason; recorded with the change.
        json: Print one JSON document.
        connection: The database.
    """
    if concurrency is None and threads is None and processes is None:
        raise InvalidInput(why="set --concurrency, --threads or --processes: --concurrency 50 --threads 4")
    async with open_database(connection.settings()) as database:
        command = RunnerCommand(concurrency=concurrency, threads=threads, processes=processes)
        if sql:
            return await _print_script(database, runner, command, reason)
        return await _ask(database, "resize", runner, command, reason, dry_run=dry_run, json=json)


async def _print_script(database: Database, runner_id: int, command: RunnerCommand, reason: str | None) -> int:
    print(await database.write(command_script, runner_id, str(command), local_actor(reason)), end="")
    return Exit.OK


async def _ask(
    database: Database,
    verb: str,
    runner_id: int,
    command: RunnerCommand,
    reason: str | None,
    *,
    dry_run: bool,
    json: bool,
) -> int:
    row = await database.read(runner_of, runner_id)
    if row is None:
        print_stderr(f"runner {runner_id} does not exist; see runner runners")
        return Exit.NOT_FOUND
    if not dry_run:
        await database.write(send_command, runner_id, str(command), local_actor(reason))
    if json:
        print_json({"verb": verb, "runner": runner_id, "command": str(command), "alive": row.alive, "dry_run": dry_run})
    else:
        print_line(_sentence(row, command, dry_run))
    if not row.alive:
        print_stderr(
            f"runner {runner_id} has sent no heartbeat for {formatting.age(row.heartbeat_age)}; it may be lost"
        )
    return Exit.OK


def _sentence(row: RunnerRow, command: RunnerCommand, dry_run: bool) -> str:
    runner = f"runner {row.id} on {row.host} (process {row.pid}, {row.running_tasks} of {row.capacity} slots in use)"
    return f"{runner} {'would receive' if dry_run else 'will receive'}: {command}"
