"""`runner pause`, `runner resume`: let a queue or a handler stand still, and go on."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated

from cyclopts import Parameter

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_json, print_line
from runner.errors import InvalidInput
from runner.people import cells
from runner.people.person import local_zone
from runner.people.times import parse_moment
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import Kind, Paused, Place, who
from runner.store.observe import clock

Handler = Annotated[str | None, Parameter(name="--handler")]


async def pause(
    queue: str | None = None,
    /,
    *,
    handler: Handler = None,
    until: str | None = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Let no more tasks of a queue or a handler start; what runs goes on.

    Args:
        queue: The queue's name.
        handler: A handler's name, instead of a queue.
        until: When the pause ends by itself: 30m, 14:30; never when left out. A
            second pause keeps the end and the reason that it does not name.
        dry_run: Only show what would be paused, and until when.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        reason: Why; it is shown wherever the pause is.
        json: Print one JSON document.
        connection: Which database.
    """
    place = _place(queue, handler)
    async with opened(connection.settings()) as database:
        at = await database.read(clock)
        end = parse_moment(until, at, local_zone()) if until is not None else None
        if sql:
            await _print_script(database, place, partial(intervene.pause, place=place, by=who(reason), until=end))
            return Exit.OK
        doubt = await database.read(intervene.misnamed, place)
        if dry_run:
            done = await database.read(intervene.pausing, place, who(reason), end)
        else:
            done = await database.write(intervene.pause, place, who(reason), end)
    if json:
        told = {"until": done.until, "why": done.why, "replaced": done.again, "dry_run": dry_run}
        print_json({"verb": "pause", "place": str(place)} | told)
    else:
        print_line(_said(place, done, at, dry_run=dry_run))
    if doubt:
        complain(f"runner: {doubt}")
    return Exit.OK


async def resume(
    queue: str | None = None,
    /,
    *,
    handler: Handler = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """End a pause.

    Args:
        queue: The queue's name.
        handler: A handler's name, instead of a queue.
        dry_run: Only show whether there is a pause to end.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    place = _place(queue, handler)
    async with opened(connection.settings()) as database:
        if sql:
            await _print_script(database, place, partial(intervene.resume, place=place, by=who(reason)))
            return Exit.OK
        if dry_run:
            done = bool(await database.read(intervene.pause_of, place, locked=False))
        else:
            done = await database.write(intervene.resume, place, who(reason))
    if json:
        print_json({"verb": "resume", "place": str(place), "changed": done, "dry_run": dry_run})
    else:
        goes_on = "would go on" if dry_run else "goes on"
        print_line(f"{place} {goes_on}." if done else f"{place} {'is' if dry_run else 'was'} not paused.")
    return Exit.OK if done else Exit.MOVED_ON


async def _print_script(database: Database, place: Place, doing: Callable[..., Awaitable[object]]) -> None:
    print(await database.write(intervene.place_script, place, doing), end="")


def _said(place: Place, done: Paused, at: datetime, *, dry_run: bool) -> str:
    before = ", as it was before" if done.again else ""
    why = f" ({done.why})" if done.why else ""
    then = f"goes on {cells.distance(done.until, at)}" if done.until else f"goes on with: runner resume {_typed(place)}"
    paused = "would be paused" if dry_run else "is paused"
    return f"{place} {paused}{before}{why}; it {then}"


def _typed(place: Place) -> str:
    return f"--handler {place.name}" if place.kind is Kind.HANDLER else place.name


def _place(queue: str | None, handler: str | None) -> Place:
    if (queue is None) == (handler is None):
        raise InvalidInput(why="name either a queue, or a handler with --handler")
    return Place(Kind.QUEUE, queue) if queue is not None else Place(Kind.HANDLER, handler or "")
