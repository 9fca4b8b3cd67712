"""`runner check`: problems of an installation, with advice."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from shlex import quote
from typing import NamedTuple

from runner.cli.exit_codes import Exit
from runner.cli.handlers import Modules, check_against, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_unchecked
from runner.cli.output import TableColumn, print_json, print_line, print_table, print_title
from runner.cli.stats import paused_line, unknown_line
from runner.db.connect import most_connections
from runner.db.database import Database
from runner.db.errors import INCOMPLETE
from runner.db.filesystem import may_write, open_to_others
from runner.db.migrations.revisions import HEAD, missing_tables
from runner.db.migrations.revisions import check as check_schema
from runner.db.migrations.roles import missing_grant, missing_guards
from runner.db.transaction import clock
from runner.errors import ConfigurationError, StoreError
from runner.handlers.outcome_rules import OutcomeRules
from runner.operations.schedule import VANISHED_BY
from runner.queries.counting import Count, lane_heads, long_order_keys
from runner.queries.health import health, health_issues, ping
from runner.queries.registries import Pauses, pauses
from runner.queries.rows import as_text
from runner.queries.runners import HandlerWithoutRunner, RunnerRow, runners, unknown_handlers
from runner.queries.schedules import ScheduleRow, schedules
from runner.queries.task.dependency_tree import dependency_cycles
from runner.queries.why.remedies import blocked_runner
from runner.settings import Settings
from runner.store.partitions import has_tasks_beyond, read_layout
from runner.text import formatting
from runner.text.sanitize import count_noun
from runner.urls import DatabaseUrl

MAX_SKEW = timedelta(seconds=2)
"""Between this host's clock and the database's. Beyond it, the times an operator types are off."""

PINGS = 5

MAX_CYCLES = 5
MAX_REFUSED = 5

START = "Start one: runner work -H package.module."

ABANDONED = (
    "Their functions did not end after the timeout; the log of the runner names the tasks. Bound the calls of these "
    'functions, or use executor="process". The threads end when the runner restarts.'
)

MANY_IN_ORDER, COUNTED = 1_000, 100_000
"""Waiting tasks of an order key that slow claims down, and waiting tasks with order keys that are counted."""

SETTINGS = (TableColumn("SETTING", no_wrap=True), TableColumn("VALUE"), TableColumn("ORIGIN"))


class CheckStatus(StrEnum):
    """The result of one check."""

    WELL = "ok"
    NOTE = "note"
    WRONG = "wrong"


SIGNS = {CheckStatus.WELL: "✓", CheckStatus.NOTE: "!", CheckStatus.WRONG: "✗"}


class Finding(NamedTuple):
    """A result, with advice if there is a problem.

    Args:
        topic: the checked part.
        verdict: ok, note or wrong.
        found: the observation.
        advice: the next step; empty without a problem.
        code: the exit code for the verdict wrong.
    """

    topic: str
    verdict: CheckStatus
    found: str
    advice: str = ""
    code: int = Exit.ERROR


async def check(
    *,
    handlers: Modules = (),
    against: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Check the installation and advise on problems.

    Checks the settings and their origins, the handlers, the database, its tables,
    clock and history, the runners, tasks that no runner takes, pauses, and
    schedules. It changes nothing. The exit code is 0 when nothing is wrong. With
    --against, checks only whether the waiting tasks fit new code.

    Args:
        against: A module with new code: names the waiting tasks that would fail with it.
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        connection: The database.
    """
    if against is not None:
        return await check_against(against, connection, json=json)
    settings = connection.settings(handlers=handlers or None)
    if not json:
        print_table(SETTINGS, settings.describe())
        print_title("checks")
    findings = []
    async for finding in run_checks(settings):
        findings.append(finding)
        if not json:
            _print(finding)
    if json:
        print_json({"settings": settings.describe(), "checks": findings})
    return next((finding.code for finding in findings if finding.verdict is CheckStatus.WRONG), Exit.OK)


async def run_checks(settings: Settings) -> AsyncIterator[Finding]:
    """Run every check; stop at a problem that the other checks depend on."""
    for row in settings.describe():
        if row.origin.startswith("ignored"):
            yield Finding("settings", CheckStatus.NOTE, f"unknown setting {row.name}", "Correct or remove it.")
    yield _handlers(settings)
    if settings.url.file is None:
        most = most_connections(settings.transaction_connections, notify=settings.notify)
        yield Finding("sizes", CheckStatus.WELL, f"a runner with these settings opens {most} connections at most")
    try:
        async with open_unchecked(settings, must_exist=True) as database:
            async for finding in _database(database, settings):
                yield finding
    except StoreError as error:
        yield Finding("database", CheckStatus.WRONG, str(error), code=error.exit_code)


def _handlers(settings: Settings) -> Finding:
    try:
        handlers = load_handlers(settings)
        OutcomeRules.of(settings)
    except ConfigurationError as error:
        return Finding("handlers", CheckStatus.WRONG, str(error), "Fix the module, or leave it out.", error.exit_code)
    if handlers:
        return Finding("handlers", CheckStatus.WELL, f"{len(handlers)} loaded: {', '.join(sorted(handlers))}")
    return Finding("handlers", CheckStatus.NOTE, "none loaded", "Name their modules with -H or RUNNER_HANDLERS.")


async def _database(database: Database, settings: Settings) -> AsyncIterator[Finding]:
    latency, skew = await ping(lambda: database.read(clock), PINGS)
    yield Finding("database", CheckStatus.WELL, f"{database.url} answers in {formatting.duration(latency)}")
    for issue in health_issues(await database.read(health)):
        yield Finding("database", CheckStatus.NOTE, issue.text, issue.advice)
    for finding in _file_mode(settings.url):
        yield finding
    if settings.url.tls.weak:
        advice = "Add sslmode=verify-full to the URL, and the server's certificate."
        yield Finding(
            "tls", CheckStatus.NOTE, f"the database connection is only protected by {settings.url.tls.mode}", advice
        )
    yield _clock(skew)
    revision = await check_schema(database)
    fits = "as required" if revision == HEAD else f"which this program (revision {HEAD}) can use"
    if missing := await database.read(missing_tables):
        text = f"{count_noun(len(missing), 'table')} of revision {revision} missing: {', '.join(missing)}"
        yield Finding("schema", CheckStatus.WRONG, text, f"{INCOMPLETE}.", Exit.DATABASE)
        return  # the other checks read these tables
    yield Finding("schema", CheckStatus.WELL, f"the tables are at revision {revision}, {fits}")
    for finding in of_roles(await database.read(missing_guards), settings.url):
        yield finding
    async for finding in _history(database, settings):
        yield finding
    async for finding in _work(database):
        yield finding
    for finding in _schedules(await database.read(schedules, runs=1), await database.read(clock)):
        yield finding


def _file_mode(url: DatabaseUrl) -> Iterator[Finding]:
    files = [] if url.file is None else list(open_to_others(url.database))
    if url.file is not None and not may_write(url.database):
        text = f"this user may not write {url.database} or its folder: its runners end, and its submits fail"
        yield Finding("file mode", CheckStatus.NOTE, text, "Give it the right to write both, unless it only reads.")
    if files:
        names = " ".join(quote(str(file)) for file in files)
        text = f"every user of this machine may read or change {', '.join(file.name for file in files)}"
        yield Finding("file mode", CheckStatus.NOTE, text, f"Run: chmod o-rw {names}")


def _clock(skew: timedelta) -> Finding:
    direction = "ahead of" if skew > timedelta(0) else "behind"
    text = f"the database's clock is {formatting.duration(abs(skew).total_seconds())} {direction} this host's"
    if abs(skew) <= MAX_SKEW:
        return Finding("clock", CheckStatus.WELL, text)
    advice = "Synchronize both (NTP). Tasks run by the database's clock; typed times are read by this host's."
    return Finding("clock", CheckStatus.WRONG, text, advice)


def of_roles(missing: list[str] | None, url: DatabaseUrl) -> Iterator[Finding]:
    """Check the objects that `runner migrate --roles` creates, if it was run."""
    if missing == []:
        yield Finding("roles", CheckStatus.WELL, "the triggers and columns of the audit match the roles")
    for gap in missing or ():
        yield Finding("roles", CheckStatus.WRONG, gap, f"Run as the owner of the tables: {_roles_command(url)}")


def _roles_command(url: DatabaseUrl) -> str:
    target = replace(url, user=None, password=None)  # the owner of the tables has to log in, not this user
    return f"runner migrate --roles | psql {quote(str(target))}"


async def _history(database: Database, settings: Settings) -> AsyncIterator[Finding]:
    if settings.retention_succeeded == timedelta(0) and (grant := await database.read(missing_grant)) is not None:
        text = f"succeeded tasks keep their rows until they are pruned: runners lack {grant}"
        advice = f"Run this statement as the owner of the tables, or: {_roles_command(settings.url)}"
        yield Finding("history", CheckStatus.NOTE, text, advice)
    layout = await database.read(read_layout)
    if layout is None:
        return
    text = f"{count_noun(len(layout.ranges), 'partition')} for succeeded tasks"
    end = max((part.end for part in layout.ranges), default=0)
    if await database.read(has_tasks_beyond, end):
        text += "; tasks beyond the last one are deleted row by row"
        yield Finding("history", CheckStatus.NOTE, text, "Run `runner prune` hourly as the owner of the tables.")
    else:
        yield Finding("history", CheckStatus.WELL, f"{text}, up to id {end - 1:,}")


def _faults(all_runners: Sequence[RunnerRow]) -> Iterator[Finding]:
    """Lost and blocked runners, and threads that do not end."""
    for runner in all_runners:
        name = f"runner {runner.id} on {runner.host}"
        if not runner.alive and runner.running_tasks:
            text = f"{name} is lost and holds {count_noun(runner.running_tasks, 'task')}"
            yield Finding("runners", CheckStatus.WRONG, text, f"Any live runner rescues them within seconds. {START}")
        elif runner.alive and runner.abandoned:
            verdict = CheckStatus.WRONG if runner.abandoned > runner.replaced else CheckStatus.NOTE
            yield Finding("threads", verdict, f"{name} has {runner.threads_lost}", ABANDONED)
        if runner.blocked_for:
            yield Finding("runners", CheckStatus.WRONG, blocked_runner(runner).sentences)


async def _work(database: Database) -> AsyncIterator[Finding]:
    all_runners = await database.read(runners)
    alive = [runner for runner in all_runners if runner.alive]
    paused = await database.read(pauses)
    missing = [handler for handler in await database.read(unknown_handlers) if not _is_paused(handler, paused)]
    due_handlers = [handler for handler in missing if handler.due >= 0]
    if alive:
        yield Finding("runners", CheckStatus.WELL, f"{len(alive)} alive")
    else:
        yield Finding("runners", CheckStatus.WRONG if due_handlers else CheckStatus.NOTE, "no runner is alive", START)
    for finding in _faults(all_runners):
        yield finding
    for unknown_handler in missing:
        verdict = CheckStatus.WRONG if unknown_handler.due >= 0 else CheckStatus.NOTE
        advice = "Start a runner with the module that defines it (-H), or terminate these tasks."
        if unknown_handler.hosts:
            advice = "Start a runner on such a host, or let any host take them: runner edit 'hosts:*' --hosts any."
        yield Finding("handlers", verdict, unknown_line(unknown_handler), advice)
    for finding in _pauses(paused, await database.read(clock)):
        yield finding
    refused = [head for head in await database.read_single(lane_heads) if head.refused is not None]
    for head in refused[:MAX_REFUSED]:
        name, queue = as_text(head.lane.handler), as_text(head.lane.queue)
        text = f"task {head.refused} ({name}) waits first in queue {queue} and is never claimed"
        yield Finding("tasks", CheckStatus.WRONG, text, f"The reason and the remedy: runner why {head.refused}")
    if len(refused) > MAX_REFUSED:
        text = f"{count_noun(len(refused) - MAX_REFUSED, 'more task')} of other queues are never claimed either"
        yield Finding("tasks", CheckStatus.WRONG, text, "Fix the tasks above, then run this check again.")
    for finding in _orders(await database.read(long_order_keys, MANY_IN_ORDER, COUNTED)):
        yield finding
    for cycle in (await database.read(dependency_cycles))[:MAX_CYCLES]:
        text = f"these tasks wait for each other and never run: {' -> '.join(map(str, (*cycle, cycle[0])))}"
        yield Finding("cycles", CheckStatus.WRONG, text, f"Break the cycle: runner unblock {cycle[0]}")


def _orders(keys: Mapping[str, Count]) -> Iterator[Finding]:
    for key, tasks in islice(keys.items(), MAX_REFUSED):
        text = f"{tasks.of('waiting task')} of order key {key} came from plain inserts: each claim checks all of them"
        advice = "They run in order, but slowly: submit the tasks of a key with `runner submit` or in Python."
        yield Finding("order", CheckStatus.NOTE, text, advice)


def _is_paused(handler: HandlerWithoutRunner, paused: Pauses) -> bool:
    """True if a pause covers all tasks of the handler, so that no runner is missing."""
    return handler.handler in paused.handlers or set(handler.queues) <= set(paused.queues)


def _pauses(paused: Pauses, at: datetime) -> Iterator[Finding]:
    for queue, pause in paused.queues.items():
        text = paused_line(f"queue {queue}", pause, at)
        yield Finding("pauses", CheckStatus.NOTE, text, f"Resume with: runner resume {quote(queue)}")
    for handler, pause in paused.handlers.items():
        text = paused_line(f"handler {handler}", pause, at)
        yield Finding("pauses", CheckStatus.NOTE, text, f"Resume with: runner resume --handler {quote(handler)}")


def _schedules(rows: Sequence[ScheduleRow], at: datetime) -> Iterator[Finding]:
    """Check that the schedules run, or that an operator paused them."""
    for row in rows:
        name, late = quote(row.id), row.lateness(at)
        if row.error is not None:
            advice = f"Correct it: runner schedules edit {name}"
            yield Finding("schedules", CheckStatus.WRONG, f"schedule {row.id} cannot run: {row.error}", advice)
        elif row.pause is not None and row.pause.by == VANISHED_BY:
            advice = f"Run: runner schedules delete {name}, or runner schedules resume {name}"
            yield Finding("schedules", CheckStatus.NOTE, f"schedule {row.id} is no longer in the code", advice)
        elif row.pause is not None:
            text = paused_line(f"schedule {row.id}", row.pause, at)
            yield Finding("schedules", CheckStatus.NOTE, text, f"Resume with: runner schedules resume {name}")
        elif late is not None:
            text = f"schedule {row.id} is {formatting.age(late)} late"
            yield Finding("schedules", CheckStatus.NOTE, text, f"Run: runner schedules show {name}")
    if rows and all(row.pause is None and row.error is None and row.lateness(at) is None for row in rows):
        yield Finding("schedules", CheckStatus.WELL, f"{count_noun(len(rows), 'schedule')} on time")


def _print(finding: Finding) -> None:
    style = "" if finding.verdict is CheckStatus.WELL else "bold"
    print_line(f"{SIGNS[finding.verdict]} {finding.verdict:<5} {finding.topic:<9} {finding.found}", style=style)
    if finding.advice:
        print_line(f"{'':18}{finding.advice}")
