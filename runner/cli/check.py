"""`runner check`: is all well, and what is to be done where it is not?"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from shlex import quote
from typing import NamedTuple

from runner.cli.connection import NOWHERE, Connection, unopened
from runner.cli.ending import Exit
from runner.cli.handlers import Modules, load_handlers
from runner.cli.printing import Column, print_json, print_line, print_table, print_title
from runner.cli.stats import paused_line, unknown_line
from runner.errors import ConfigurationError, StoreError
from runner.migrations import check as check_schema
from runner.migrations import unguarded
from runner.people import cells
from runner.people.terminal import counted
from runner.settings import Settings
from runner.store.database import Database
from runner.store.observe import (
    Pauses,
    UnknownHandler,
    circles,
    clock,
    health,
    pauses,
    ping,
    runners,
    unknown_handlers,
    worries,
)
from runner.store.partitions import look as look_at_ranges
from runner.store.partitions import overtaken
from runner.urls import DatabaseUrl

MOST_SKEW = timedelta(seconds=2)
"""Between this host's clock and the database's; beyond it, times typed here mean something else there."""

PINGS = 5

MOST_CIRCLES = 5

SETTINGS = (Column("SETTING", whole=True), Column("VALUE"), Column("ORIGIN"))


class Verdict(StrEnum):
    """How it stands with something that was looked at."""

    WELL = "ok"
    NOTE = "note"
    WRONG = "wrong"


SIGNS = {Verdict.WELL: "✔", Verdict.NOTE: "!", Verdict.WRONG: "✖"}


class Finding(NamedTuple):
    """What came out of looking at something.

    Args:
        topic: what was looked at.
        verdict: how it stands.
        found: what was seen.
        advice: what to do about it; empty when all is well.
        code: the exit code that it means when it is wrong.
    """

    topic: str
    verdict: Verdict
    found: str
    advice: str = ""
    code: int = Exit.ERROR


async def check(*, handlers: Modules = (), json: bool = False, connection: Connection = NOWHERE) -> int:
    """Find out whether all is well, and say what to do where it is not.

    Looks at the settings and where they come from, the handlers, the database,
    its tables, its clock and its history, the runners, the tasks that no runner
    takes, and what is paused.
    Nothing is changed. The exit code is 0 when nothing is wrong.

    Args:
        handlers: A module that defines handlers; may be repeated.
        json: Print one JSON document.
        connection: Which database.
    """
    settings = connection.settings(handlers=handlers or None)
    if not json:
        print_table(SETTINGS, settings.describe())
        print_title("checks")
    findings = []
    async for finding in look(settings):
        findings.append(finding)
        if not json:
            _print(finding)
    if json:
        print_json({"settings": settings.describe(), "checks": findings})
    return next((finding.code for finding in findings if finding.verdict is Verdict.WRONG), Exit.OK)


async def look(settings: Settings) -> AsyncIterator[Finding]:
    """Look at everything, and stop where the rest cannot be looked at."""
    for row in settings.describe():
        if row.origin.startswith("ignored"):
            yield Finding("settings", Verdict.NOTE, f"{row.name} is set, but is no setting", "Correct or remove it.")
    yield _handlers(settings)
    try:
        async with unopened(settings, must_exist=True) as database:
            async for finding in _database(database, settings):
                yield finding
    except StoreError as error:
        yield Finding("database", Verdict.WRONG, str(error), code=error.exit_code)


def _handlers(settings: Settings) -> Finding:
    try:
        known = load_handlers(settings)
    except ConfigurationError as error:
        return Finding("handlers", Verdict.WRONG, str(error), "Mend the module, or leave it out.", error.exit_code)
    if known:
        return Finding("handlers", Verdict.WELL, f"{len(known)} known here: {', '.join(sorted(known))}")
    return Finding("handlers", Verdict.NOTE, "none are known here", "Name their modules with -H or RUNNER_HANDLERS.")


async def _database(database: Database, settings: Settings) -> AsyncIterator[Finding]:
    latency, skew = await ping(lambda: database.read(clock), PINGS)
    yield Finding("database", Verdict.WELL, f"{database.url} answers in {cells.duration(latency)}")
    for worry in worries(await database.read(health)):
        yield Finding("database", Verdict.NOTE, worry.text, worry.advice)
    if settings.url.tls.weak:
        advice = "Add sslmode=verify-full to the URL, and the server's certificate."
        yield Finding(
            "tls", Verdict.NOTE, f"the way to the database is only protected by {settings.url.tls.mode}", advice
        )
    yield _clock(skew)
    yield Finding("schema", Verdict.WELL, f"the tables are at {await check_schema(database)}, as needed")
    for finding in of_roles(await database.read(unguarded), settings.url):
        yield finding
    async for finding in _history(database):
        yield finding
    async for finding in _work(database):
        yield finding


def _clock(skew: timedelta) -> Finding:
    direction = "ahead of" if skew > timedelta(0) else "behind"
    said = f"the database's clock is {cells.duration(abs(skew).total_seconds())} {direction} this host's"
    if abs(skew) <= MOST_SKEW:
        return Finding("clock", Verdict.WELL, said)
    advice = "Synchronise both (NTP). Tasks run by the database's clock, but times typed here are read by this one."
    return Finding("clock", Verdict.WRONG, said, advice)


def of_roles(missing: list[str] | None, url: DatabaseUrl) -> Iterator[Finding]:
    """What the script of the roles put in place, where it was run."""
    if missing == []:
        yield Finding("roles", Verdict.WELL, "the triggers and columns of the audit are as the roles need them")
    place = replace(url, user=None, password=None)  # whose login this is does not matter: it must be the owner's
    for gap in missing or ():
        advice = f"Let the owner of the tables run: runner migrate --roles | psql {quote(str(place))}"
        yield Finding("roles", Verdict.WRONG, gap, advice)


async def _history(database: Database) -> AsyncIterator[Finding]:
    layout = await database.read(look_at_ranges)
    if layout is None:
        return
    said = f"{counted(len(layout.ranges), 'partition')} for succeeded tasks"
    end = max((part.end for part in layout.ranges), default=0)
    if await database.read(overtaken, end):
        said += ", and some stand beyond, which are deleted row by row"
        yield Finding("history", Verdict.NOTE, said, "Let the owner of the tables run `runner prune` every hour or so.")
    else:
        yield Finding("history", Verdict.WELL, f"{said}, up to id {end - 1:,}")


async def _work(database: Database) -> AsyncIterator[Finding]:
    registered = await database.read(runners)
    alive = [runner for runner in registered if runner.alive]
    paused = await database.read(pauses)
    unknown = [found for found in await database.read(unknown_handlers) if not _stands_still(found, paused)]
    due = [found for found in unknown if found.due >= 0]
    start = "Start one: runner work -H package.module."
    if alive:
        yield Finding("runners", Verdict.WELL, f"{len(alive)} alive")
    else:
        yield Finding("runners", Verdict.WRONG if due else Verdict.NOTE, "none is alive", start)
    for runner in registered:
        if not runner.alive and runner.holds:
            said = f"runner {runner.id} on {runner.host} is lost and holds {counted(runner.holds, 'task')}"
            yield Finding("runners", Verdict.WRONG, said, "Any live runner takes them back within seconds. " + start)
    for found in unknown:
        verdict = Verdict.WRONG if found.due >= 0 else Verdict.NOTE
        advice = "Start a runner that knows it, with -H and the module that defines it; or terminate these tasks."
        yield Finding("handlers", verdict, unknown_line(found), advice)
    for finding in _pauses(paused, await database.read(clock)):
        yield finding
    for circle in (await database.read(circles))[:MOST_CIRCLES]:
        said = f"tasks that wait for each other can never run: {' -> '.join(map(str, (*circle, circle[0])))}"
        yield Finding("circles", Verdict.WRONG, said, f"Let one of them go: runner unblock {circle[0]}")


def _stands_still(found: UnknownHandler, paused: Pauses) -> bool:
    """Tell whether no runner would start these tasks if it knew them, so that none is missing."""
    return found.handler in paused.handlers or set(found.queues) <= set(paused.queues)


def _pauses(paused: Pauses, at: datetime) -> Iterator[Finding]:
    for queue, pause in paused.queues.items():
        said = paused_line(f"queue {queue}", pause, at)
        yield Finding("pauses", Verdict.NOTE, said, f"To let it go on: runner resume {quote(queue)}")
    for handler, pause in paused.handlers.items():
        said = paused_line(f"handler {handler}", pause, at)
        yield Finding("pauses", Verdict.NOTE, said, f"To let it go on: runner resume --handler {quote(handler)}")


def _print(finding: Finding) -> None:
    style = "" if finding.verdict is Verdict.WELL else "bold"
    print_line(f"{SIGNS[finding.verdict]} {finding.verdict:<5} {finding.topic:<9} {finding.found}", style=style)
    if finding.advice:
        print_line(f"{'':18}{finding.advice}")
