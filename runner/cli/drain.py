"""`runner drain`, `runner resize`: ask a runner for something; it hears of it with its next beat."""

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit, complain
from runner.cli.printing import print_json, print_line
from runner.cli.targets import RunnerId
from runner.errors import InvalidInput
from runner.people import cells
from runner.policy.wish import Wish
from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import who
from runner.store.observe import RunnerRow, runner_of


async def drain(
    runner: RunnerId,
    /,
    *,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Ask a runner to take no more tasks, let the running ones end, and leave, as after SIGTERM.

    Args:
        runner: The runner's number, as runner runners lists it.
        dry_run: Only show what would be asked of whom.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    async with opened(connection.settings()) as database:
        if sql:
            return await _print_script(database, runner, Wish(drain=True), reason)
        return await _ask(database, "drain", runner, Wish(drain=True), reason, dry_run=dry_run, json=json)


async def resize(
    runner: RunnerId,
    /,
    *,
    slots: int | None = None,
    threads: int | None = None,
    dry_run: bool = False,
    sql: bool = False,
    reason: str | None = None,
    json: bool = False,
    connection: Connection = NOWHERE,
) -> int:
    """Ask a runner to run more or fewer tasks at once, until it ends.

    Args:
        runner: The runner's number, as runner runners lists it.
        slots: How many async handlers to run at once.
        threads: How many plain functions to run at once.
        dry_run: Only show what would be asked of whom.
        sql: Only print the SQL that does the same, for psql or sqlite3.
        reason: Why; it is kept with the change.
        json: Print one JSON document.
        connection: Which database.
    """
    if slots is None and threads is None:
        raise InvalidInput(why="say how many: --slots 50, --threads 4, or both")
    async with opened(connection.settings()) as database:
        wish = Wish(slots=slots, threads=threads)
        if sql:
            return await _print_script(database, runner, wish, reason)
        return await _ask(database, "resize", runner, wish, reason, dry_run=dry_run, json=json)


async def _print_script(database: Database, number: int, wish: Wish, reason: str | None) -> int:
    print(await database.write(intervene.wish_script, number, str(wish), who(reason)), end="")
    return Exit.OK


async def _ask(
    database: Database, verb: str, number: int, wish: Wish, reason: str | None, *, dry_run: bool, json: bool
) -> int:
    found = await database.read(runner_of, number)
    if found is None:
        complain(f"there is no runner {number}; see runner runners")
        return Exit.NOT_FOUND
    if not dry_run:
        await database.write(intervene.wish, number, str(wish), who(reason))
    if json:
        print_json({"verb": verb, "runner": number, "wish": str(wish), "alive": found.alive, "dry_run": dry_run})
    else:
        print_line(_said(found, wish, dry_run))
    if not found.alive:
        complain(f"runner {number} has been silent for {cells.age(found.silent)}: it hears of it only if it comes back")
    return Exit.OK


def _said(found: RunnerRow, wish: Wish, dry_run: bool) -> str:
    place = f"runner {found.id} on {found.host} (process {found.pid}, {found.holds} of {found.capacity} slots in use)"
    return f"{place} {'would be' if dry_run else 'is'} asked for: {wish}"
