"""`runner alerts`: the problems that the rules find now, their silences, and a trial of the receivers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.output import print_answer, print_json, print_line, print_table
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.model.alert import Alert, Silence, TrialResult
from runner.operations.results import Actor, local_actor
from runner.operations.silence import check_alert, rule_of, silence, unsilence
from runner.operations.sql_export import silence_script
from runner.queries.alerts.causes import AlertCause, causes
from runner.queries.alerts.reading import heard_alerts, read_facts
from runner.queries.alerts.records import AlertRecords, alert_records
from runner.queries.alerts.thresholds import Thresholds
from runner.settings import Settings
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.operator import local_zone
from runner.text.sanitize import one_line
from runner.text.times import parse_moment


@dataclass(frozen=True, slots=True)
class FiringAlert:
    """An alert that fires now.

    Args:
        since: the first evaluation that found it, or when it began if none did yet; None if that is unknown.
        silence: the silence that covers it; None without one.
        cause: the name of the alert that it follows from; None without one.
    """

    alert: Annotated[Alert, Flat(without=("since",))]
    since: datetime | None
    silence: Silence | None
    cause: str | None


class AlertList(NamedTuple):
    """The alerts that fire now, causes first, each before those that follow from it.

    Args:
        evaluated_at: the last evaluation by a runner; None without one.
        silences: the silences in force.
    """

    at: datetime
    evaluated_at: datetime | None
    alerts: list[FiringAlert]
    silences: list[Silence]


class SilenceChange(NamedTuple):
    """A silence that was set or ended.

    Args:
        name: RULE:SUBJECT, or a rule for all of its alerts.
        until: the end of the silence; None if it was ended.
        changed: False if there was nothing to change.
    """

    verb: Literal["silence", "unsilence"]
    name: str
    until: datetime | None
    changed: bool
    dry_run: bool


class TrialDocument(NamedTuple):
    """The receivers, each with the result of a notice."""

    receivers: list[TrialResult]


DOCUMENTS = (AlertList, SilenceChange, TrialDocument)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class SilenceOptions:
    """How alerts are listed or silenced.

    Args:
        rule: list: only alerts of this rule, or RULE:SUBJECT; may be repeated.
        until: silence: its end: 2h, 14:30.
        reason: The reason; recorded with the change.
        dry_run: Show the change without making it.
        sql: Only print equivalent SQL for psql or sqlite3.
        json: Print one JSON document.
    """

    rule: tuple[str, ...] = ()
    until: str | None = None
    reason: str | None = None
    dry_run: bool = False
    sql: bool = False
    json: bool = False


NO_SILENCE_OPTIONS = SilenceOptions()


async def alerts(
    action: Literal["list", "silence", "unsilence", "test"] = "list",
    name: str | None = None,
    /,
    *,
    options: SilenceOptions = NO_SILENCE_OPTIONS,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """List the alerts that fire now, silence them, or test their receivers.

    runner alerts [list]                          the alerts, causes first
    runner alerts list --rule queue-late          those of one rule
    runner alerts silence RULE --until 2h         send no notices of a rule
    runner alerts silence RULE:SUBJECT --until 2h  of one queue, handler or runner
    runner alerts unsilence RULE[:SUBJECT]        send them again
    runner alerts test [RECEIVER]                 send a notice to the receivers now

    The rules are those of the console. The exit code is 15 if an alert fires that
    is not silenced. A silence can be undone with runner undo.

    Args:
        action: list, silence, unsilence or test.
        name: The rule, or RULE:SUBJECT as the list has it; test: the receiver.
        options: How alerts are listed or silenced.
        connection: The database.
    """
    _check_words(action, name, options)
    settings = connection.settings()
    if action == "test":
        return await _test(settings, name, json=options.json)
    async with open_database(settings) as database:
        if name is None:
            return await _list(database, options.rule, Thresholds.of(settings), json=options.json)
        by = local_actor(options.reason)
        if action == "unsilence":
            return await _unsilence(database, name, by, options)
        return await _silence(database, name, by, options)


def _check_words(action: str, name: str | None, options: SilenceOptions) -> None:
    """Reject words and options that an action does not take, and unknown rules."""
    if action == "list" and name is not None:
        raise InvalidInput(why=f"name an action: runner alerts silence {name} --until 2h")
    if action in ("silence", "unsilence") and name is None:
        raise InvalidInput(why=f"name the alert: runner alerts {action} RULE, or RULE:SUBJECT")
    if action != "list" and options.rule:
        raise InvalidInput(why="--rule belongs to alerts list")
    if options.sql and action not in ("silence", "unsilence"):
        raise InvalidInput(why="--sql belongs to alerts silence and alerts unsilence")
    if (options.until is not None) != (action == "silence"):
        why = "a silence has an end: --until 2h" if action == "silence" else "--until belongs to alerts silence"
        raise InvalidInput(why=why)
    for rule in options.rule:
        rule_of(rule)


async def _list(database: Database, names: Sequence[str], thresholds: Thresholds, *, json: bool) -> int:
    facts = await database.read(read_facts, thresholds, local_zone())
    records = await database.read(alert_records)
    at = await database.read(clock)
    found = [alert for alert in heard_alerts(facts) if not names or {alert.rule, alert.name} & {*names}]
    rows = [row for cause in causes(found, facts, records.silences.values()) for row in _rows(cause, records)]
    silences = list(records.silences.values())
    if json:
        print_json(AlertList(at, records.evaluated_at, rows, silences))
    else:
        _print(rows, silences, at)
    return Exit.FIRING if any(row.silence is None for row in rows) else Exit.OK


def _rows(cause: AlertCause, records: AlertRecords) -> Iterator[FiringAlert]:
    for alert in (cause.alert, *cause.effects):
        since = records.firing[alert.name].since if alert.name in records.firing else alert.since
        yield FiringAlert(alert, since, cause.silence, None if alert is cause.alert else cause.alert.name)


BELOW = "└ "
"""The beginning of an alert that follows from the one above it."""

COLUMNS: tuple[Column[FiringAlert], ...] = (
    Column("SEVERITY", lambda row: row.alert.severity, fixed=True),
    Column("ALERT", lambda row: f"{BELOW if row.cause else ''}{row.alert.name}"),
)


def _print(rows: list[FiringAlert], silences: list[Silence], at: datetime) -> None:
    if rows:
        since: Column[FiringAlert] = figure("SINCE", lambda row: row.since, lambda moment: formatting.since(moment, at))
        silenced = Column[FiringAlert]("SILENCED", lambda row: row.silence, lambda each: _until(each, at), fixed=True)
        has_silence = any(row.silence for row in rows)
        print_table([COLUMNS[0], since, *([silenced] if has_silence else []), *COLUMNS[1:]], rows)
        for row in rows:
            if row.cause is None:
                print_line("")
            below = BELOW if row.cause else ""
            print_line(f"{below}{row.alert.sentence}", style="bold" if not (row.silence or row.cause) else "")
            print_line(f"  {' ' * len(below)}{row.alert.advice}")
    else:
        print_line("No alert fires.")
    for silence_ in silences:
        if not any(row.silence == silence_ for row in rows):
            print_line(f"{silence_.name} is silenced {_sentence(silence_, at)}")


def _until(silence_: Silence | None, at: datetime) -> str:
    return formatting.distance(silence_.until, at) if silence_ else ""


def _sentence(silence_: Silence, at: datetime) -> str:
    why = f": {one_line(silence_.why)}" if silence_.why else ""
    by = f" by {one_line(silence_.by)}" if silence_.by else ""
    return f"until {formatting.clock(silence_.until, at, local_zone())}{by}{why}"


async def _silence(database: Database, name: str, by: Actor, options: SilenceOptions) -> int:
    at = await database.read(clock)
    until = parse_moment(options.until or "", at, local_zone())
    if options.sql:
        return await _print_script(database, name, partial(silence, name=name, until=until, by=by))
    if options.dry_run:
        await database.read(check_alert, name)
        result = Silence(name, until, by.operator, by.reason)
    else:
        result = await database.write(silence, name, until, by)
    verb = "would be silenced" if options.dry_run else "silenced"
    end = f"notices again {formatting.distance(until, at)}, or: runner alerts unsilence {one_line(name)}"
    change = SilenceChange("silence", name, result.until, True, options.dry_run)
    print_answer(change, f"alert {one_line(name)} {verb}; {end}", json=options.json)
    return Exit.OK


async def _print_script(database: Database, name: str, operation: Callable[..., Awaitable[object]]) -> int:
    print(await database.write(silence_script, name, operation), end="")
    return Exit.OK


async def _unsilence(database: Database, name: str, by: Actor, options: SilenceOptions) -> int:
    if options.sql:
        return await _print_script(database, name, partial(unsilence, name=name, by=by))
    if options.dry_run:
        rule_of(name)
        changed = name in (await database.read(alert_records)).silences
    else:
        changed = await database.write(unsilence, name, by)
    verb = ("would send" if options.dry_run else "sends") + " its notices again" if changed else "was not silenced"
    change = SilenceChange("unsilence", name, None, changed, options.dry_run)
    print_answer(change, f"alert {one_line(name)} {verb}", json=options.json)
    return Exit.OK


async def _test(settings: Settings, name: str | None, *, json: bool) -> int:
    from runner.alerts.deliver import try_receivers

    results = await asyncio.to_thread(try_receivers, settings, name)
    if json:
        print_json(TrialDocument(results))
    else:
        for result in results:
            print_line(f"{result.receiver}: {result.problem or 'took the notice'}")
    return Exit.ERROR if any(result.problem for result in results) else Exit.OK
