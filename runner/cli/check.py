"""`runner check`: problems of an installation, with advice."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from math import inf
from shlex import quote
from typing import NamedTuple

from cyclopts import Group, Parameter

from runner.cli.exit_codes import Exit
from runner.cli.handlers import Modules, PayloadReport, check_against, load_handlers
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_unchecked
from runner.cli.output import note_model, print_json, print_line, print_table, print_title
from runner.cli.shard_totals import ShardTotals
from runner.cli.stats import paused_line, unknown_line
from runner.db.connect import most_connections
from runner.db.database import Database
from runner.db.errors import INCOMPLETE
from runner.db.file_identity import other_names, writer_of
from runner.db.filesystem import may_write, open_to_others
from runner.db.migrations.revisions import HEAD, missing_tables
from runner.db.migrations.revisions import check as check_schema
from runner.db.migrations.roles import missing_grant, missing_guards
from runner.db.migrations.sequences import REMEDY, late_sequences, reused_ids
from runner.db.row_locks import awaited_locks, registry_locks, table_locks, without_weak_locks
from runner.db.server_encoding import ANY, encoding_of, escaping_note
from runner.db.transaction import Transaction, clock
from runner.errors import ConfigurationError, DatabaseLocked, DatabaseUnavailable, InvalidInput, StoreError
from runner.handlers.outcome_rules import OutcomeRules
from runner.handlers.registry import Handler
from runner.model.alert import Alert, AlertRule
from runner.model.duration import parse_duration
from runner.model.stuck_row import HeldLock, StuckCause
from runner.model.task import State
from runner.operations.schedule import VANISHED_BY
from runner.queries.alerts.reading import read_facts
from runner.queries.alerts.rules import dead_tasks, failing_handlers, late_queues
from runner.queries.alerts.thresholds import DEFAULT_THRESHOLDS, Thresholds
from runner.queries.counting import lane_heads, long_order_keys
from runner.queries.health import Permission, connection_permission, health, health_issues, ping
from runner.queries.registries import pauses
from runner.queries.rows import as_text
from runner.queries.runners import HandlerWithoutRunner, runners, unknown_handlers
from runner.queries.schedules import schedules
from runner.queries.stuck_rows import number_of_stuck, stuck_on, with_sessions
from runner.queries.task.dependency_tree import dependency_cycles
from runner.queries.why.remedies import blocked_runner
from runner.settings import Settings
from runner.settings.settings import Row as SettingsRow
from runner.store.partitions import has_tasks_beyond, read_layout
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun, shell_word
from runner.text.stuck_row import lock_advice, lock_text, more_stuck, stuck_step, stuck_text
from runner.urls import DatabaseUrl

MAX_SKEW = timedelta(seconds=2)
"""Between this host's clock and the database's. Beyond it, the times an operator types are off."""

PINGS = 5

DATABASE = "database"
"""The topic of the connection."""

MAX_CYCLES = 5
MAX_REFUSED = 5

START = "Start one: runner work -H package.module."

ABANDONED = (
    "Their functions did not end after the timeout; the log of the runner names the tasks. Bound the calls of these "
    'functions, or use executor="process". The threads end when the runner restarts.'
)

MANY_IN_ORDER, COUNTED = 1_000, 100_000
"""Waiting tasks of an order key that slow claims down, and waiting tasks with order keys that are counted."""

SETTINGS: tuple[Column[SettingsRow], ...] = (
    Column("SETTING", lambda row: row.name, fixed=True),
    Column("VALUE", lambda row: row.value),
    Column("ORIGIN", lambda row: row.origin),
)


NO_READS = "AccessExclusiveLock"
"""The mode of a lock that also stops readers."""

ALERTS = {
    AlertRule.TASKS_DEAD: (State.DEAD.value, Exit.DEAD),
    AlertRule.HANDLER_FAILING: ("failing", Exit.FAILING),
    AlertRule.QUEUE_LATE: ("late", Exit.LATE),
}
"""The topic and the exit code of each rule that a check evaluates."""


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
        advice: the next step; empty without a problem.
        code: the exit code for the verdict wrong.
    """

    topic: str
    verdict: CheckStatus
    found: str
    advice: str = ""
    code: int = Exit.ERROR


@Parameter(name="*", group=Group("Thresholds", sort_key=50))
@dataclass(frozen=True, slots=True)
class ThresholdOptions:
    """The largest numbers that leave the exit code at 0.

    Args:
        max_dead: Tasks that died within --since and are still dead; alert_max_dead by default.
        since: The period of --max-dead.
        max_failing: Percentage of the attempts of a handler that failed in the last ten minutes; alert_max_failing by
            default.
        max_late: Time since the first ready task of a queue became due; alert_max_late by default.
        max_locked: Time since a runner first found a row locked that it could not change.
        max_refused: Rows that the database refuses to change.
    """

    max_dead: int | None = None
    since: str = "1h"
    max_failing: float | None = None
    max_late: str | None = None
    max_locked: str = "0s"
    max_refused: int = DEFAULT_THRESHOLDS.refused

    def thresholds(self, settings: Settings) -> Thresholds:
        """The thresholds of the settings, with the given ones in their places.

        Raises:
            InvalidDuration: a time is not a duration.
            InvalidInput: a number is out of range.
        """
        for option, number in (("--max-dead", self.max_dead or 0), ("--max-refused", self.max_refused)):
            if number < 0:
                raise InvalidInput(why=f"{option} must be 0 or more, not {number}")
        if self.max_failing is not None and not 0 <= self.max_failing <= 100:  # noqa: PLR2004 - percent
            raise InvalidInput(why=f"--max-failing must be between 0 and 100, not {self.max_failing:g}")
        of_settings = Thresholds.of(settings)
        return of_settings._replace(
            dead=of_settings.dead if self.max_dead is None else self.max_dead,
            span=parse_duration(self.since),
            failing=of_settings.failing if self.max_failing is None else self.max_failing / 100,
            late=of_settings.late if self.max_late is None else parse_duration(self.max_late),
            locked=parse_duration(self.max_locked),
            refused=self.max_refused,
        )


DEFAULT_OPTIONS = ThresholdOptions()


class CheckDocument(NamedTuple):
    """The settings, and the results of the checks."""

    settings: list[SettingsRow]
    checks: list[Finding]


DOCUMENTS = (CheckDocument, PayloadReport)


class CheckTotal(NamedTuple):
    """The results of checks.

    Args:
        first: the topic of the first problem; None without one.
    """

    ok: int
    note: int
    wrong: int
    first: str | None


def _total(documents: Sequence[CheckDocument]) -> CheckTotal:
    findings = [finding for document in documents for finding in document.checks]
    counts = Counter(finding.verdict for finding in findings)
    wrong = (finding.topic for finding in findings if finding.verdict is CheckStatus.WRONG)
    ok, note, problems = (counts[status] for status in CheckStatus)
    return CheckTotal(ok, note, problems, next(wrong, None))


def _is_unread(finding: Finding) -> bool:
    """True if the database did not answer: no other check of it was possible."""
    return (finding.topic, finding.verdict) == (DATABASE, CheckStatus.WRONG)


TOTALS = ShardTotals(
    CheckDocument,
    _total,
    (
        figure("OK", lambda total: total.ok),
        figure("NOTES", lambda total: total.note),
        figure("WRONG", lambda total: total.wrong),
        Column("FIRST", lambda total: total.first, formatting.text),
    ),
    failure=lambda document: next((each.found for each in document.checks if _is_unread(each)), ""),
)


async def check(
    *,
    handlers: Modules = (),
    against: str | None = None,
    alerts: ThresholdOptions = DEFAULT_OPTIONS,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Check the installation and its tasks, and advise on problems.

    Checks the settings and their origins, the handlers, the database, its tables,
    clock and history, the runners, tasks that no runner takes, dead, failing and
    late tasks, pauses, and schedules. It changes nothing. The exit code is 0 when
    nothing is wrong, and otherwise that of the first problem: 10 for dead tasks, 11
    for failing handlers, 12 for late queues, 13 for locked and 14 for refused rows.
    With --against, checks only whether the waiting tasks fit new code.

    Args:
        against: A module with new code: names the waiting tasks that would fail with it.
        handlers: A module that defines handlers; may be repeated.
        alerts: The thresholds.
        json: Print one JSON document.
        connection: The database.
    """
    if against is not None:
        return await check_against(against, connection, json=json)
    settings = connection.settings(handlers=handlers or None)
    settings.require_one_database()  # before the first finding
    thresholds = alerts.thresholds(settings)
    findings = []
    async for finding in run_checks(settings, thresholds):
        findings.append(finding)
        if not json:
            _print(finding)
    document = CheckDocument(settings.describe(), findings)
    note_model(document)
    if json:
        print_json(document)
    else:
        _print_settings(settings)
    return next((finding.code for finding in findings if finding.verdict is CheckStatus.WRONG), Exit.OK)


async def run_checks(settings: Settings, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> AsyncIterator[Finding]:
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
            for examine in CHECKS:
                async for finding in examine(Checked(database, settings, thresholds)):
                    yield finding
    except _ChecksEnd:
        return
    except StoreError as error:
        yield Finding(DATABASE, CheckStatus.WRONG, str(error), code=error.exit_code)


def _described(handler: Handler) -> str:
    """The name of a handler, and those that its tasks depend on."""
    return f"{handler.name} (after {' and '.join(handler.parents)})" if handler.parents else handler.name


def _handlers(settings: Settings) -> Finding:
    try:
        handlers = load_handlers(settings)
        OutcomeRules.of(settings)
    except ConfigurationError as error:
        return Finding("handlers", CheckStatus.WRONG, str(error), "Fix the module, or leave it out.", error.exit_code)
    if handlers:
        names = ", ".join(_described(handlers[name]) for name in sorted(handlers))
        return Finding("handlers", CheckStatus.WELL, f"{len(handlers)} loaded: {names}")
    return Finding("handlers", CheckStatus.NOTE, "none loaded", "Name their modules with -H or TASKTUI_HANDLERS.")


class Checked(NamedTuple):
    """A database under check, with its settings."""

    database: Database
    settings: Settings
    thresholds: Thresholds


class _ChecksEnd(Exception):
    """The other checks cannot read their tables."""


async def _connection(checked: Checked) -> AsyncIterator[Finding]:
    try:
        latency, skew = await ping(lambda: checked.database.read(clock), PINGS)
    except DatabaseUnavailable as error:
        if "closed the connection" in str(error):
            # The BEGIN of a write travels alone: its error has the reason why a pooler has closed the connection.
            await checked.database.write(clock)
        raise
    text = f"{checked.database.url} answers in {formatting.duration(latency)}"
    yield Finding(DATABASE, CheckStatus.WELL, text)
    direction = "ahead of" if skew > timedelta(0) else "behind"
    text = f"the database's clock is {formatting.duration(abs(skew).total_seconds())} {direction} this host's"
    advice = "Synchronize both (NTP). Tasks run by the database's clock; typed times are read by this host's."
    is_wrong = abs(skew) > MAX_SKEW
    yield Finding("clock", CheckStatus.WRONG if is_wrong else CheckStatus.WELL, text, advice * is_wrong)


async def _held_locks(checked: Checked) -> AsyncIterator[Finding]:
    """A SQLite file that another program keeps locked for longer than all writers wait, and locked tables."""
    if checked.settings.url.file is not None and writer_of(checked.settings.url.database):
        try:
            await checked.database.write(clock)
        except DatabaseLocked as error:
            yield Finding("locks", CheckStatus.WRONG, str(error), code=Exit.LOCKED)
        except StoreError:  # a login that may only read
            pass
    tables = await checked.database.read(table_locks)
    for finding in _locks(tables, checked.thresholds):
        yield finding
    if any(lock.mode == NO_READS and lock.is_long for lock in tables):
        raise _ChecksEnd  # the other checks would wait for the lock


async def _server(checked: Checked) -> AsyncIterator[Finding]:
    """The state and the settings of the server or the file."""
    encoding, url = await checked.database.read(encoding_of), checked.settings.url
    if encoding not in ANY:
        yield Finding("encoding", CheckStatus.NOTE, escaping_note(encoding), "UTF8 holds all characters.")
    for issue in health_issues(await checked.database.read(health)):
        yield Finding("database", CheckStatus.NOTE, issue.text, issue.advice)
    for finding in (*await checked.database.read(_read_only_server), *_file_mode(url)):
        yield finding
    if url.tls.weak:
        advice = "Add sslmode=verify-full to the URL, and the server's certificate."
        yield Finding("tls", CheckStatus.NOTE, f"the database connection is only protected by {url.tls.mode}", advice)


async def _schema(checked: Checked) -> AsyncIterator[Finding]:
    revision = await check_schema(checked.database)
    fits = "as required" if revision == HEAD else f"which this program (revision {HEAD}) can use"
    if missing := await checked.database.read(missing_tables):
        text = f"{count_noun(len(missing), 'table')} of revision {revision} missing: {', '.join(missing)}"
        yield Finding("schema", CheckStatus.WRONG, text, f"{INCOMPLETE}.", Exit.DATABASE)
        raise _ChecksEnd
    yield Finding("schema", CheckStatus.WELL, f"the tables are at revision {revision}, {fits}")
    for finding in of_roles(await checked.database.read(missing_guards), checked.settings.url):
        yield finding


async def _thresholds(checked: Checked) -> AsyncIterator[Finding]:
    for alert in await checked.database.read(_alerts, checked.thresholds):
        topic, code = ALERTS[alert.rule]
        yield Finding(topic, CheckStatus.WRONG, alert.sentence, alert.advice, code)


async def _alerts(tx: Transaction, thresholds: Thresholds) -> list[Alert]:
    """The alerts of the thresholds, each by itself: a check names symptoms beside their causes."""
    facts = await read_facts(tx, thresholds)
    return [*dead_tasks(facts), *failing_handlers(facts), *late_queues(facts)]


async def _read_only_server(tx: Transaction) -> list[Finding]:
    """Check whether the server accepts changes."""
    permission = await connection_permission(tx)
    if permission is Permission.STANDBY:
        text = f"read-only standby: pg_is_in_recovery() is true on {tx.server}"
        advice = "Connect to its primary, or list all hosts in the URL: postgresql://first,second/database."
    elif permission is Permission.CLOSED and tx.server:
        text = f"read-only server: default_transaction_read_only is on at {tx.server}"
        advice = "Set it to off, or connect to the primary."
    else:
        return []
    return [Finding("database", CheckStatus.WRONG, f"{text}: runners wait, and submits fail", advice, Exit.DATABASE)]


def _file_mode(url: DatabaseUrl) -> Iterator[Finding]:
    files = [] if url.file is None else list(open_to_others(url.database))
    if url.file is not None and not may_write(url.database):
        text = f"this user may not write {url.database} or its folder: its runners end, and its submits fail"
        yield Finding("file mode", CheckStatus.NOTE, text, "Give it the right to write both, unless it only reads.")
    if url.file is not None and (links := other_names(os.path.realpath(url.file))) is not None:
        yield Finding("file name", CheckStatus.WRONG, str(links))
    if files:
        names = " ".join(quote(str(file)) for file in files)
        text = f"every user of this machine may read or change {', '.join(file.name for file in files)}"
        yield Finding("file mode", CheckStatus.NOTE, text, f"Run: chmod o-rw {names}")


def of_roles(missing: list[str] | None, url: DatabaseUrl) -> Iterator[Finding]:
    """Check the objects that `runner migrate --roles` creates, if it was run."""
    if missing == []:
        yield Finding("roles", CheckStatus.WELL, "the triggers and columns of the audit match the roles")
    for gap in missing or ():
        yield Finding("roles", CheckStatus.WRONG, gap, f"Run as the owner of the tables: {_roles_command(url)}")


def _roles_command(url: DatabaseUrl) -> str:
    target = replace(url, user=None, password=None)  # the owner of the tables has to log in, not this user
    return f"runner migrate --roles | psql {quote(str(target))}"


async def _history(checked: Checked) -> AsyncIterator[Finding]:
    """The ids of new rows, and the partitions of succeeded tasks."""
    database, settings = checked.database, checked.settings
    for sequence in await database.read(late_sequences):
        yield Finding("ids", CheckStatus.WRONG, f"{sequence.text}: new rows get ids of earlier ones", f"{REMEDY}.")
    if reused := await database.read(reused_ids):
        text = f"live tasks have the ids of finished ones, and cannot finish: {', '.join(map(str, reused))}"
        yield Finding("ids", CheckStatus.WRONG, text, f"{REMEDY}. Then give the old rows of task_history other ids.")
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


async def _runners(checked: Checked) -> AsyncIterator[Finding]:
    """Lost and blocked runners, and threads that do not end."""
    all_runners = await checked.database.read(runners)
    if alive := sum(runner.alive for runner in all_runners):
        yield Finding("runners", CheckStatus.WELL, f"{alive} alive")
    else:
        is_missed = any(handler.due >= 0 for handler in await _unclaimed(checked.database))
        yield Finding("runners", CheckStatus.WRONG if is_missed else CheckStatus.NOTE, "no runner is alive", START)
    for runner in all_runners:
        name = runner_name(runner.id, runner.host, runner.pid)
        if not runner.alive and runner.running_tasks:
            text = f"{name} is lost and holds {count_noun(runner.running_tasks, 'task')}"
            yield Finding("runners", CheckStatus.WRONG, text, f"Any live runner rescues them within seconds. {START}")
        elif runner.alive and runner.abandoned:
            verdict = CheckStatus.WRONG if runner.abandoned > runner.replaced else CheckStatus.NOTE
            yield Finding("threads", verdict, f"{name} has {runner.threads_lost}", ABANDONED)
        if runner.blocked_for:
            yield Finding("runners", CheckStatus.WRONG, blocked_runner(runner).sentences)


async def _rows(checked: Checked) -> AsyncIterator[Finding]:
    """Rows that are locked, or that the database refuses to change."""
    database, thresholds = checked.database, checked.thresholds
    all_runners, at = await database.read(runners), await database.read(clock)
    stuck = await database.read(with_sessions, stuck_on(all_runners))
    refused = sum(row.cause is StuckCause.REFUSED for row in stuck)
    for row in stuck[:MAX_REFUSED]:
        if row.cause is StuckCause.REFUSED:
            wrong, code = refused > thresholds.refused, Exit.REFUSED
        else:
            wrong, code = at - row.since >= thresholds.locked, Exit.LOCKED
        advice = f"{stuck_step(row)} More: runner why {row.task}"
        yield Finding("rows", CheckStatus.WRONG if wrong else CheckStatus.NOTE, stuck_text(row), advice, code)
    if (more := number_of_stuck(all_runners) - min(len(stuck), MAX_REFUSED)) > 0:
        yield Finding("rows", CheckStatus.NOTE, more_stuck(more), "Runners name them: runner runners --json")
    named = {(database.tables.task.name, str(row.task)) for row in stuck if row.blocker is not None}
    rows = await _row_locks(database)
    for finding in _locks([lock for lock in rows if (lock.table, lock.key) not in named], thresholds):
        yield finding


def _locks(locks: Sequence[HeldLock], thresholds: Thresholds) -> Iterator[Finding]:
    """Rows and tables that a transaction locks for longer than a transaction of this program takes."""
    long = [lock for lock in locks if lock.is_long]
    for lock in long[:MAX_REFUSED]:
        verdict = CheckStatus.WRONG if _age(lock) >= thresholds.locked.total_seconds() else CheckStatus.NOTE
        advice = lock_advice(lock.session)
        yield Finding("locks", verdict, lock_text(lock), f"{advice[:1].upper()}{advice[1:]}.", Exit.LOCKED)
    if len(long) > MAX_REFUSED:
        text = f"{count_noun(len(long) - MAX_REFUSED, 'more lock')} of rows or tables"
        yield Finding("locks", CheckStatus.NOTE, text, "The view pg_locks lists them.")


def _age(lock: HeldLock) -> float:
    """The age of the transaction in seconds; infinite if this login may not see it."""
    return inf if lock.session.age is None else lock.session.age


async def _row_locks(database: Database) -> list[HeldLock]:
    """The locked rows of the registries, and those of any table for which a session waits, each once."""
    registered = await database.read(registry_locks)
    if registered:
        with suppress(StoreError):  # a login or a server that may only read
            registered = await database.write(without_weak_locks, registered)
    locks = [*registered, *(lock for lock in await database.read(awaited_locks) if lock.key)]
    return list({(lock.table, lock.key): lock for lock in reversed(locks)}.values())[::-1]


async def _unclaimed(database: Database) -> list[HandlerWithoutRunner]:
    """The handlers without a live runner, except those whose tasks are all paused."""
    paused, handlers = await database.read(pauses), await database.read(unknown_handlers)
    return [each for each in handlers if not (each.handler in paused.handlers or {*each.queues} <= {*paused.queues})]


async def _handlers_without_runner(checked: Checked) -> AsyncIterator[Finding]:
    for handler in await _unclaimed(checked.database):
        advice = "Start a runner with the module that defines it (-H), or terminate these tasks."
        if handler.hosts:
            advice = "Start a runner on such a host, or let any host take them: runner edit 'hosts:*' --hosts any."
        verdict = CheckStatus.WRONG if handler.due >= 0 else CheckStatus.NOTE
        yield Finding("handlers", verdict, unknown_line(handler), advice)


async def _pauses(checked: Checked) -> AsyncIterator[Finding]:
    paused, at = await checked.database.read(pauses), await checked.database.read(clock)
    for kind, option, entries in (("queue", "", paused.queues), ("handler", "--handler ", paused.handlers)):
        for name, pause in entries.items():
            advice = f"Resume with: runner resume {option}{quote(name)}"
            yield Finding("pauses", CheckStatus.NOTE, paused_line(f"{kind} {name}", pause, at), advice)


async def _waiting_tasks(checked: Checked) -> AsyncIterator[Finding]:
    """Tasks that are first in their lanes and that no claim takes, and those that are slow or impossible to order."""
    database = checked.database
    refused = [head for head in await database.read(lane_heads) if head.refused is not None]
    for head in refused[:MAX_REFUSED]:
        name, queue = as_text(head.lane.handler), as_text(head.lane.queue)
        text = f"task {head.refused} ({name}) waits first in queue {queue} and is never claimed"
        yield Finding("tasks", CheckStatus.WRONG, text, f"The reason and the remedy: runner why {head.refused}")
    if len(refused) > MAX_REFUSED:
        text = f"{count_noun(len(refused) - MAX_REFUSED, 'more task')} of other queues are never claimed either"
        yield Finding("tasks", CheckStatus.WRONG, text, "Fix the tasks above, then run this check again.")
    keys = await database.read(long_order_keys, MANY_IN_ORDER, COUNTED)
    for key, tasks in islice(keys.items(), MAX_REFUSED):
        text = f"{tasks.of('waiting task')} of order key {key} came from plain inserts: each claim checks all of them"
        advice = "They run in order, but slowly: submit the tasks of a key with `runner submit` or in Python."
        yield Finding("order", CheckStatus.NOTE, text, advice)
    for cycle in (await database.read(dependency_cycles))[:MAX_CYCLES]:
        text = f"these tasks wait for each other and never run: {' -> '.join(map(str, (*cycle, cycle[0])))}"
        yield Finding("cycles", CheckStatus.WRONG, text, f"Break the cycle: runner unblock {cycle[0]}")


async def _schedules(checked: Checked) -> AsyncIterator[Finding]:
    """Check that the schedules run, or that an operator paused them."""
    rows, at = await checked.database.read(schedules, runs=1), await checked.database.read(clock)
    for row in rows:
        name, late = shell_word(row.id), row.lateness(at)
        if row.error is not None:
            yield Finding("schedules", CheckStatus.WRONG, f"schedule {row.id} cannot run: {row.error}", row.remedy)
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


CHECKS = (
    *(_connection, _held_locks, _server, _schema, _history, _runners, _rows),
    *(_handlers_without_runner, _pauses, _waiting_tasks, _thresholds, _schedules),
)
"""The checks of a database, in the order of their findings."""


def _print_settings(settings: Settings) -> None:
    rows = settings.describe()
    chosen = [row for row in rows if row.origin != "default"]
    print_title("settings")
    print_table(SETTINGS, chosen)
    if defaults := len(rows) - len(chosen):
        verb = "setting has its default" if defaults == 1 else "settings have their defaults"
        print_line(f"{defaults} {verb}: runner check --json lists them", style="dim")


def _print(finding: Finding) -> None:
    style = "" if finding.verdict is CheckStatus.WELL else "bold"
    print_line(f"{SIGNS[finding.verdict]} {finding.verdict:<5} {finding.topic:<9} {finding.found}", style=style)
    if finding.advice:
        print_line(f"{'':18}{finding.advice}")
