"""`runner runners`: the registered runners, and commands for them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.options import (
    DEFAULT_CONNECTION,
    SINGLE_CHANGE,
    Connection,
    RunnerId,
    SingleChangeOptions,
    open_database,
)
from runner.cli.output import note_model, print_answer, print_json, print_line, print_table
from runner.cli.shard_list import ShardList, Unlisted, errors_of, print_partial
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.operations.results import local_actor
from runner.operations.runner_command import send_command
from runner.operations.sql_export import command_script
from runner.policy.runner_command import RunnerCommand
from runner.queries.ended_runners import EndedRunner, ended_runners, ends_of_tasks
from runner.queries.runners import RunnerRow, runner_of
from runner.queries.runners import runners as read_runners
from runner.queries.stuck_rows import stuck_on
from runner.queries.why.remedies import blocked_runner
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.runner_name import runner_name
from runner.text.stuck_row import stuck_step, stuck_text

T = TypeVar("T")

DAY = timedelta(days=1)
"""The period of the ended runners of a list."""

MOST_ENDED = 10
"""Ended runners in the text of a list."""


class RunnerList(NamedTuple):
    """The registered runners, at the database's time.

    Args:
        ended: the runners that have stopped or were lost in the last day, the latest first.
    """

    at: datetime
    runners: list[RunnerRow]
    ended: list[EndedRunner]


class CommandResult(NamedTuple):
    """A runner command, stored or only shown.

    Args:
        runner: the id of the runner.
        command: the command as it is stored.
        alive: False if the runner may be lost.
    """

    verb: str
    runner: int
    command: str
    alive: bool
    dry_run: bool


class ShardRunner(NamedTuple):
    """A runner of a list over shards."""

    shard: str
    runner: Annotated[RunnerRow, Flat()]


class ShardEndedRunner(NamedTuple):
    """An ended runner of a list over shards."""

    shard: str
    runner: Annotated[EndedRunner, Flat()]


class ShardRunnerList(NamedTuple):
    """The registered runners of several shards; a process has a row for each shard that it serves.

    Args:
        at: the latest time of the databases.
        ended: the runners that have stopped or were lost in the last day, the latest first.
        partial: True if a shard has not answered.
        errors: the error of each shard that has not answered.
    """

    at: datetime
    runners: list[ShardRunner]
    ended: list[ShardEndedRunner]
    partial: bool
    errors: Mapping[str, str]


DOCUMENTS = (RunnerList, ShardRunnerList, CommandResult)


async def runners(
    action: Literal["list", "drain", "resize"] = "list",
    runner: RunnerId | None = None,
    /,
    *,
    concurrency: int | None = None,
    threads: int | None = None,
    processes: int | None = None,
    options: SingleChangeOptions = SINGLE_CHANGE,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List, drain or resize runners.

    runner runners [list]         list the runners, also those of the last day
    runner runners drain RUNNER   claim no more tasks, finish the running ones and
                                  exit, as after SIGTERM
    runner runners resize RUNNER  run more or fewer tasks in parallel

    A runner receives a command with its next heartbeat; a size lasts until its end.
    In the list, CPU is the share of one processor in use between the last two
    heartbeats, and MEMORY the resident memory, both with the processes of its
    handlers.

    Args:
        action: list, drain or resize.
        runner: Id of the runner.
        concurrency: resize: number of async handlers to run in parallel.
        threads: resize: number of plain functions to run in parallel.
        processes: resize: number of process handlers to run in parallel.
        options: How the change is shown and recorded.
        connection: The database.
    """
    is_sized = any(size is not None for size in (concurrency, threads, processes))
    if is_sized and action != "resize":
        raise InvalidInput(why="--concurrency, --threads and --processes apply to runner runners resize")
    if action == "list":
        if runner is not None:
            raise InvalidInput(why=f"name an action: runner runners drain {runner}")
        async with open_database(connection.settings()) as database:
            return await _list(database, json=options.json)
    if runner is None:
        raise InvalidInput(why=f"name the runner by its id: runner runners {action} 7")
    if action == "resize" and not is_sized:
        raise InvalidInput(why="set --concurrency, --threads or --processes: --concurrency 50 --threads 4")
    command = RunnerCommand(action == "drain", concurrency, threads, processes)
    async with open_database(connection.settings()) as database:
        return await _send(database, action, runner, command, options)


async def _list(database: Database, *, json: bool) -> int:
    rows = await database.read(read_runners)
    at = await database.read(clock)
    listed = RunnerList(at, rows, await database.read(ended_runners, at - DAY))
    note_model(listed)
    if json:
        print_json(listed)
        return Exit.OK
    if rows:
        print_table(_columns(at), rows)
        _print_problems(rows)
    else:
        print_line(NONE)
    _print_ended(_ended_columns(at), listed.ended)
    return Exit.OK


def _print_ended(columns: Sequence[Column[T]], ended: Sequence[T]) -> None:
    if ended:
        print_line("")
        print_line("Ended in the last day:")
        print_table(columns, ended[:MOST_ENDED])
    if len(ended) > MOST_ENDED:
        print_line(f"{len(ended) - MOST_ENDED} more: runner runners --json")


NONE = "No runners are registered. Start one with: runner work -H package.module"


def _print_problems(rows: Sequence[RunnerRow], prefix: str = "") -> None:
    for cause in [blocked_runner(runner) for runner in rows if runner.blocked_for]:
        print_line(f"{prefix}{cause.sentences}")
    for row in stuck_on(rows):
        print_line(f"{prefix}{stuck_text(row)}. {stuck_step(row)}")


def _show_merged(listed: Mapping[str, RunnerList], missing: Mapping[str, Unlisted], as_json: bool) -> bool:
    """Print the runners of all shards; True if there is one."""
    rows = [ShardRunner(shard, row) for shard, each in listed.items() for row in each.runners]
    ended = [ShardEndedRunner(shard, row) for shard, each in listed.items() for row in each.ended]
    ended.sort(key=lambda row: row.runner.ended_at, reverse=True)
    at = max(each.at for each in listed.values())
    if as_json:
        print_json(ShardRunnerList(at, rows, ended, bool(missing), errors_of(missing)))
        return bool(rows)
    if rows:
        print_table(_named(_columns(at)), rows)
        for name, each in listed.items():
            _print_problems(each.runners, f"{name}: ")
    else:
        print_line(NONE)
    _print_ended(_named(_ended_columns(at)), ended)
    print_partial(missing)
    return bool(rows)


def _named(columns: Sequence[Column[Any]]) -> list[Column[Any]]:
    """The columns for rows with a shard, whose name is a part of the id."""
    id, *rest = columns
    own = [each.of(attrgetter("runner")) for each in rest]
    return [Column(id.title, lambda row: f"{row.shard}:{row.runner.id}", right=True, fixed=True), *own]


MERGED = ShardList(RunnerList, _show_merged)


def _columns(at: datetime) -> tuple[Column[RunnerRow], ...]:
    return (
        figure("RUNNER", lambda runner: runner.id, formatting.row_id),
        Column("HOST", lambda runner: runner.host),
        figure("PID", lambda runner: runner.pid),
        Column("STATE", lambda runner: ", ".join((_state(runner), *runner.remarks)), fixed=True),
        figure("SEEN", lambda runner: runner.heartbeat_age, formatting.age),
        figure("SLOTS", lambda runner: f"{min(runner.running_tasks, runner.capacity)}/{runner.capacity}"),
        figure("CPU", lambda runner: runner.cpu, formatting.share),
        figure("MEMORY", lambda runner: runner.memory, formatting.size),
        figure("UPTIME", lambda runner: formatting.since(runner.started_at, at)),
        Column("VERSION", lambda runner: runner.version),
        Column("HANDLERS", lambda runner: runner.handlers, ", ".join),
    )


def _ended_columns(at: datetime) -> tuple[Column[EndedRunner], ...]:
    return (
        figure("RUNNER", lambda runner: runner.id, formatting.row_id),
        Column("HOST", lambda runner: runner.host),
        figure("PID", lambda runner: runner.pid),
        Column("END", lambda runner: f"lost: {ends_of_tasks([runner])}" if runner.lost else "stopped", fixed=True),
        figure("ENDED", lambda runner: runner.ended_at, lambda moment: formatting.distance(moment, at)),
        figure("UPTIME", lambda runner: formatting.since(runner.started_at, runner.ended_at)),
        Column("VERSION", lambda runner: runner.version),
    )


def _state(runner: RunnerRow) -> str:
    return "stalled" if runner.blocked_for else "alive" if runner.alive else "lost"


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
    result = CommandResult(verb, runner_id, str(command), row.alive, options.dry_run)
    print_answer(result, _sentence(row, command, options.dry_run), json=options.json)
    if not row.alive:
        print_stderr(
            f"runner {runner_id} has sent no heartbeat for {formatting.age(row.heartbeat_age)}; it may be lost"
        )
    return Exit.OK


def _sentence(row: RunnerRow, command: RunnerCommand, dry_run: bool) -> str:
    runner = runner_name(row.id, row.host, row.pid)
    used = formatting.slots(row.running_tasks, row.capacity)
    return f"{runner}, {used}, {'would receive' if dry_run else 'will receive'}: {command}"
