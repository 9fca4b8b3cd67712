"""A scene on which every intervention has something to be done to, and the interventions."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import db_now
from runner.store import intervene, observe
from runner.store.database import Database
from runner.store.intervene import By, Changes, Kind, Place, Target
from runner.store.transaction import Transaction
from runner.task import State
from tests.store.family import put_after
from tests.store.rows import add_attempt, add_live, add_past, add_runner, ahead

TOGETHER = "1f2e3d4c"
BY = By("ana", "web-1", "relay is back", TOGETHER)

DUE, LATER, HELD, BLOCKED = range(1, 5)
DEAD, OLD = 11, 12
"""Tasks that are there: two that wait, one in the hands of RUNNER, one that waits for LATER; one dead, one to prune."""

RUNNER, LOST = 1, 2
FAR = datetime(2099, 1, 1, tzinfo=UTC)
EDITED = 1
"""The number of an entry of the audit."""

Verb = Callable[[Transaction], Awaitable[Any]]


async def _undo_script(tx: Transaction) -> str:
    entry = await observe.audited(tx, EDITED)
    assert entry is not None
    return await intervene.undo_script(tx, entry, BY)


INTERVENES: dict[str, Verb] = {
    "retry_now": lambda tx: intervene.retry_now(tx, [Target(LATER)], BY),
    "requeue": lambda tx: intervene.requeue(tx, [Target(DEAD)], BY),
    "terminate": lambda tx: intervene.terminate(tx, [Target(LATER), Target(HELD)], BY),
    "delay": lambda tx: intervene.delay(tx, [Target(LATER)], seconds=60, by=BY),
    "edit": lambda tx: intervene.edit(tx, LATER, None, Changes(FAR, 9, 9, "1m", 5.0, "{}", "k"), BY),
    "edit_each": lambda tx: intervene.edit_each(tx, [Target(LATER)], Changes(key="k"), BY),
    "undo_script": _undo_script,
    "wish_script": lambda tx: intervene.wish_script(tx, RUNNER, "drain", BY),
    "undo": lambda tx: intervene.undo(tx, [EDITED], BY),
    "pause": lambda tx: intervene.pause(tx, Place(Kind.QUEUE, "mail"), BY),
    "pause handler": lambda tx: intervene.pause(tx, Place(Kind.HANDLER, "h"), BY),
    "resume": lambda tx: intervene.resume(tx, Place(Kind.QUEUE, "slow"), BY),
    "reveal": lambda tx: intervene.reveal(tx, LATER, BY),
    "unblock": lambda tx: intervene.unblock(tx, [Target(BLOCKED)], BY),
    "wish": lambda tx: intervene.wish(tx, RUNNER, "drain", BY),
}
"""Every intervention of the store, by its name; each has something to do."""


def undone(verb: Verb) -> Verb:
    """Do something, and take it back."""

    async def both(tx: Transaction) -> Any:
        await verb(tx)
        audit = tx.tables.audit.c
        return await intervene.undo(tx, [await tx.scalar(sa.select(sa.func.max(audit.id)))], BY)

    return both


TAKES_BACK: dict[str, Verb] = {
    f"undo {name}": undone(verb)
    for name, verb in {
        **{name: INTERVENES[name] for name in ("retry_now", "requeue", "delay", "unblock", "pause", "resume", "wish")},
        "terminate": lambda tx: intervene.terminate(tx, [Target(LATER)], BY),
        "terminate of what was blocked": lambda tx: intervene.terminate(tx, [Target(BLOCKED)], BY),
        "terminate of what runs": lambda tx: intervene.terminate(tx, [Target(HELD)], BY),
    }.items()
}
"""Taking back each of them."""


async def arrange(database: Database) -> None:
    """Set the scene in an empty database."""
    await add_live(database, queue="mail")
    await add_live(database, run_at=ahead(600))
    await add_runner(database)
    await add_runner(database, lease=-60)
    held: dict[str, Any] = {"state": State.RUNNING.value, "runner_id": RUNNER, "fence": 1, "attempt": 1}
    await add_live(database, max_attempts=3, claimed_at=db_now(), **held)
    assert await put_after(database, LATER) == BLOCKED
    await add_past(database, DEAD, State.DEAD)
    await add_past(database, OLD, finished_at=ahead(-400 * 86_400))
    await add_attempt(database, DEAD, started_at=ahead(-2), ended_at=ahead(-1))
    await database.write(intervene.edit, LATER, None, Changes(priority=5), BY)
    await database.write(intervene.pause, Place(Kind.QUEUE, "slow"), BY)


async def everything(database: Database) -> dict[str, list[str]]:
    """All rows of all tables."""
    async with database.reading() as tx:
        found = {table.name: await tx.rows(sa.select(table)) for table in tx.tables.metadata.sorted_tables}
    return {name: sorted(map(str, rows)) for name, rows in found.items()}
