"""`runner retry`, `terminate`, `delay`, `unblock`: done to tasks by number, or to all that a filter lets through."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from cyclopts import Group, Parameter

from runner.cli.answer import tell
from runner.cli.bar import Bar
from runner.cli.confirm import ask, confirm, demanded, need_reason, number, show
from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.script import few, print_script
from runner.cli.targets import EntryId, read_targets
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.fields import Operator
from runner.people.filters import Filter, Term
from runner.people.terminal import counted
from runner.people.times import parse_duration
from runner.settings import Settings
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import Course, Operation, Preview, Result, Target, together, who

Targets = Annotated[str, Parameter(name="TASKS")]


@Parameter(name="*", group=Group("Confirm", sort_key=50))
@dataclass(frozen=True, slots=True)
class Consent:
    """How a change is confirmed and accounted for.

    Args:
        dry_run: Only show what would be changed.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        yes: The number of tasks that the preview says would be changed.
        first: Change only so many of them, the newest: 1 to try it.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
    """

    dry_run: bool = False
    sql: bool = False
    yes: str | None = None
    first: int | None = None
    reason: str | None = None
    json: bool = False


ASK = Consent()


async def retry(
    *targets: Targets, over: str | None = None, consent: Consent = ASK, connection: Connection = NOWHERE
) -> int:
    """Run tasks again, now: waiting ones at once, dead and cancelled ones anew.

    TASKS are numbers (runner retry 12 13), or a filter (runner retry queue:mail
    state:dead). For a filter a preview is shown first; it is done when --yes
    repeats the number of tasks that would be changed, or when you say so on a
    terminal.

    Args:
        targets: Numbers of tasks, or a filter.
        over: Spread them at random over this time: 10m.
        consent: Whether it is meant.
        connection: Which database.
    """
    seconds = parse_duration(over).total_seconds() if over else 0.0
    operation = partial(intervene.retry_now, over=seconds)
    return await _change("retry_now", operation, targets, consent, connection)


async def terminate(*targets: Targets, consent: Consent = ASK, connection: Connection = NOWHERE) -> int:
    """End tasks for good: those that wait at once, those that run by asking their runner.

    TASKS are numbers, or a filter, as for runner retry.

    Args:
        targets: Numbers of tasks, or a filter.
        consent: Whether it is meant.
        connection: Which database.
    """
    return await _change("terminate", intervene.terminate, targets, consent, connection)


async def delay(
    *targets: Targets,
    length: Annotated[str, Parameter(name=("--by", "--for"))],
    consent: Consent = ASK,
    connection: Connection = NOWHERE,
) -> int:
    """Put waiting tasks off, counted from when they would run.

    TASKS are numbers, or a filter, as for runner retry.

    Args:
        targets: Numbers of tasks, or a filter.
        length: By how much: 30s, 10m, 2h.
        consent: Whether it is meant.
        connection: Which database.
    """
    seconds = parse_duration(length).total_seconds()
    operation = partial(intervene.delay, seconds=seconds)
    return await _change("delay", operation, targets, consent, connection)


async def unblock(
    *targets: Targets, edge: EntryId | None = None, consent: Consent = ASK, connection: Connection = NOWHERE
) -> int:
    """Let tasks go that wait for others, whatever becomes of these.

    TASKS are numbers, or a filter, as for runner retry. What a task waits for is
    taken as if it had ended well.

    Args:
        targets: Numbers of tasks, or a filter.
        edge: Only this one of what it waits for, by the number that runner show gives it.
        consent: Whether it is meant.
        connection: Which database.
    """
    operation = partial(intervene.unblock, edge=edge)
    return await _change("unblock", operation, targets, consent, connection)


async def _change(
    verb: str,
    intervention: Callable[..., Awaitable[Result]],
    words: Sequence[str],
    consent: Consent,
    connection: Connection,
) -> int:
    if consent.first is not None and consent.first < 1:
        raise InvalidInput(why=f"--first takes a number of tasks from 1 on, not {consent.first}")
    chosen, settings = read_targets(words), connection.settings()
    async with opened(settings) as database:
        if consent.dry_run:
            show(await _preview(database, verb, chosen), json=consent.json)
            return Exit.OK
        if consent.sql:
            await _print_script(database, intervention, chosen, consent)
            return Exit.OK
        if isinstance(chosen, Filter):
            chosen, most = await _confirmed(database, verb, chosen, consent, settings)
        else:
            most = len(chosen)
        by = who(consent.reason) if most == 1 else together(who(consent.reason))
        operation = partial(intervention, by=by)
        result = await _carried_out(database, operation, chosen, most, consent, cells.verb(verb))
    return tell(cells.verb(verb), result, json=consent.json, batch=by.batch)


async def _print_script(
    database: Database, intervention: Callable[..., Awaitable[Result]], chosen: list[int] | Filter, consent: Consent
) -> None:
    targets = await few(database, chosen) if isinstance(chosen, Filter) else [Target(id) for id in chosen]
    by = who(consent.reason) if len(targets) == 1 else together(who(consent.reason))
    await print_script(database, partial(intervention, by=by), targets[: consent.first])


async def _confirmed(
    database: Database, verb: str, wanted: Filter, consent: Consent, settings: Settings
) -> tuple[Filter, int | None]:
    """Which tasks may be changed, and how many; None for more than were counted."""
    seen = await _preview(database, verb, wanted)
    yes = consent.yes
    if yes is None:
        show(seen, json=False)
    need_reason(demanded(number(seen), settings), consent.reason)
    if yes is None:
        yes = ask(number(seen), demanded(number(seen), settings))
        seen = await _preview(database, verb, wanted)  # a person thinks for longer than a queue stands still
    confirm(number(seen), yes)
    return intervene.bounded(wanted, seen.newest), None if seen.total.more else seen.eligible


async def _preview(database: Database, verb: str, chosen: list[int] | Filter) -> Preview:
    if isinstance(chosen, list):
        one = Term("id", Operator.EQ, chosen[0])
        chosen = Filter((one if len(chosen) == 1 else Term("id", Operator.IN, tuple(chosen)),))
    return await database.read(intervene.preview, chosen, verb)


async def _carried_out(
    database: Database,
    operation: Operation,
    chosen: list[int] | Filter,
    most: int | None,
    consent: Consent,
    what: str,
) -> Result:
    """Do it chunk by chunk, and to no more tasks than were confirmed, though more may match by now."""
    bar = Bar(what, most if consent.first is None else min(consent.first, most or consent.first))
    course = Course(most=bar.total, on_progress=bar.show)
    try:
        if isinstance(chosen, Filter):
            return await intervene.to_all(database, operation, chosen, course)
        return await intervene.to_each(database, operation, [Target(id) for id in chosen], course)
    except asyncio.CancelledError:
        complain(f"stopped: {counted(bar.done, 'task')} changed until then")
        raise
    finally:
        bar.end()
