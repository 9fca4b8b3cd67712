"""rescue: take tasks back from runners that are lost."""

from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import db_later, db_now
from runner.outcome import Failure
from runner.schema import Tables, is_state, state_literal
from runner.store.attempts import Tried, record, started
from runner.store.move import IN_NO_HANDS, NOBODY, Ending, finish, make_way
from runner.store.statement import Prepared
from runner.store.transaction import Transaction
from runner.task import MOVES, State

LOST = Failure("runner lost", "its runner stopped giving signs of life while it had this task")
OVERDUE = Failure("runner lost", "its runner did not end this task at its deadline")
CHUNK = 1_000
"""Tasks taken back in one transaction."""


async def any_lost(tx: Transaction, asker: int, grace: float) -> bool:
    """Tell whether there is anything to rescue: one statement, asked often, and almost always answered with no.

    Args:
        tx: an open transaction.
        asker: the runner that asks; with its own lease run out it must not judge others.
        grace: as for `rescue`.
    """
    rows = await tx.run(_any_lost(tx.tables, tx.driver), {"asker": asker, "grace": -grace})
    return bool(rows[0][0])


@lru_cache
def _any_lost(tables: Tables, driver: sa.Dialect) -> Prepared:
    expired = sa.exists().where(tables.runner.c.lease_until < db_now())
    taken = sa.exists().where(_is_lost(tables, sa.bindparam("grace", type_=sa.Float)))
    me = tables.runner.c.id == sa.bindparam("asker", type_=sa.BigInteger)
    alive = sa.exists().where(me, tables.runner.c.lease_until >= db_now())
    return Prepared(sa.select(alive & (expired | taken)), driver)


class Rescued(NamedTuple):
    """A task that was taken back, and the move that it made: "rescue", "bury" or "cancel"."""

    verb: str
    queue: str
    handler: str
    attempt: int
    key: str | None


async def rescue(tx: Transaction, grace: float) -> dict[int, Rescued]:
    """Take back what lost runners had in hand; every crash counts as an attempt.

    Every runner calls this; none is special. The fence is raised at once, so that whatever a lost runner still
    writes is refused.

    Args:
        tx: an open transaction.
        grace: seconds beyond a task's deadline that its runner is given to end it by itself.

    Returns:
        What became of each task, by id: it waits again, it has no attempts left, or it was to be terminated.
    """
    runner = tx.tables.runner
    await tx.execute(sa.delete(runner).where(runner.c.lease_until < db_now()))
    lost = await _lock_lost(tx, grace)
    if not lost:
        return {}
    for failure in (LOST, OVERDUE):
        await _take_back(tx, [row.id for row in lost if _failure(row) is failure], failure)
    verbs = {row.id: _verb(row) for row in lost}
    await record(tx, [Tried(row, verbs[row.id], _failure(row), None) for row in lost])
    for verb in ("bury", "cancel"):
        ended = [Ending(row.id, row.fence + 1) for row in lost if verbs[row.id] == verb]
        if ended:
            await make_way(tx, [ending.id for ending in ended])
            await finish(tx, verb, NOBODY, ended)
    return {row.id: Rescued(verbs[row.id], row.queue, row.handler, row.attempt, row.key) for row in lost}


async def _lock_lost(tx: Transaction, grace: float) -> list[Any]:
    task, runner = tx.tables.task.c, tx.tables.runner.c
    alive = sa.exists().where(runner.id == task.runner_id)
    names = ("id", "queue", "handler", "key", "attempt", "max_attempts", "fence", "cancel_requested")
    columns = [*(task[name] for name in (*names, "runner_id", "host")), started(task)]
    statement = (
        sa.select(*columns, alive.label("alive"))
        .where(_is_lost(tx.tables, -grace))
        # As the index of running tasks has them: in the order of ids alone, SQLite would read the whole table.
        .order_by(task.runner_id, task.id)
        .limit(CHUNK)
        .with_for_update(skip_locked=True, of=tx.tables.task)
    )
    return list(await tx.rows(statement))


def _is_lost(tables: Tables, grace: Any) -> sa.ColumnElement[bool]:
    """The condition that a task is in the hands of no live runner, or kept by one beyond its deadline.

    Args:
        tables: of the installation.
        grace: seconds beyond the deadline, negative.
    """
    task, runner = tables.task.c, tables.runner.c
    orphaned = ~sa.exists().where(runner.id == task.runner_id)
    overdue = task.deadline_at < db_later(db_now(), grace)
    return is_state(task.state, State.RUNNING) & (orphaned | overdue)


def _failure(row: Any) -> Failure:
    return OVERDUE if row.alive else LOST


async def _take_back(tx: Transaction, ids: list[int], failure: Failure) -> None:
    task = tx.tables.task
    values = {
        "state": state_literal(MOVES["rescue"].target),
        "fence": task.c.fence + 1,
        "version": task.c.version + 1,
        "rescues": task.c.rescues + 1,
        "error": failure.reason,
    } | IN_NO_HANDS
    await tx.execute(sa.update(task).where(task.c.id.in_(ids)).values(values))


def _verb(row: Any) -> str:
    if row.cancel_requested:
        return "cancel"
    spent = row.max_attempts is not None and row.attempt >= row.max_attempts  # a row edited by hand may have no maximum
    return "bury" if spent else "rescue"
