"""locking: hold the tasks that are to be changed, leave out those that must not be, and change them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.columns import Instant
from runner.store.dialects import by_column, same_id
from runner.store.intervene.answers import MovedOn, Refused, Result, Target
from runner.store.intervene.eligibility import objection
from runner.store.observe.legible import legible, moment, number, text, whole, words
from runner.store.transaction import Transaction
from runner.task import State

DUE_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "run_at": Instant}

MISSING = "there is no such task, neither live nor in the history; it may have been pruned"


class Held(NamedTuple):
    """A task that nobody else can change until the transaction ends."""

    id: int
    state: State
    version: int
    fence: int
    handler: str
    attempt: int
    max_attempts: int | None
    cancel_requested: bool
    run_at: datetime | None
    priority: int
    retry: str | None
    timeout: float | None
    payload: str
    key: str | None
    unique_key: str | None
    error: str | None
    rescues: int
    progress: float | None
    blocked_by: int


async def hold(tx: Transaction, verb: str, targets: Iterable[Target]) -> tuple[list[Held], Result]:
    """Lock tasks and sort out those that have changed or to which the intervention does not apply.

    Args:
        tx: a writing transaction.
        verb: a key of eligibility.VERBS.
        targets: what the operator chose, as it was seen; of one id the first counts.

    Returns:
        The tasks to change, in the order of their ids; and the answer so far, in which only what is left alone stands.
    """
    chosen = list(targets)
    return sorted_out(verb, chosen, await standing(tx, sorted({target.id for target in chosen}), locked=True))


def sorted_out(verb: str, targets: Iterable[Target], found: Mapping[int, Held]) -> tuple[list[Held], Result]:
    """Sort out the tasks that have changed or to which the intervention does not apply: as `hold` does it.

    Args:
        verb: a key of eligibility.VERBS.
        targets: what the operator chose, as it was seen; of one id the first counts.
        found: the tasks as they are.
    """
    seen: dict[int, int | None] = {}
    for target in targets:
        seen.setdefault(target.id, target.seen)
    answer, held = Result(), []
    for id in sorted(seen):
        task = found.get(id)
        if task is None:
            answer.refused.append(Refused(id, MISSING))
        elif seen[id] not in (None, task.version):
            answer.moved_on.append(MovedOn(id, task.state, task.version))
        elif why := objection(verb, task):
            answer.refused.append(Refused(id, why))
        else:
            held.append(task)
    return held, answer


async def standing(tx: Transaction, ids: Sequence[int], *, locked: bool) -> dict[int, Held]:
    """Read tasks as they are, wherever they are.

    A task that is moved between the tables meanwhile is met in the other one: the live one is looked at twice.

    Args:
        tx: an open transaction; a writing one to lock.
        ids: in their order, in which they are locked, so that no two operators wait for each other.
        locked: until the transaction ends.
    """
    found: dict[int, Held] = {}
    for table in (tx.tables.task, tx.tables.history, tx.tables.task):
        missing = [id for id in ids if id not in found]
        if missing:
            statement = sa.select(*legible(tx, _columns(table))).where(tx.dialect.one_of(table.c.id, missing))
            rows = await tx.execute(statement.order_by(table.c.id).with_for_update() if locked else statement)
            found |= {row["id"]: _held(row) for row in rows.mappings()}
    return found


def _columns(table: sa.Table) -> list[Any]:
    return [table.c[name] for name in Held._fields if name in table.c]


def _held(row: sa.RowMapping) -> Held:
    return Held(
        id=row["id"],
        state=State(row["state"]),
        version=whole(row["version"]),
        fence=whole(row["fence"]),
        handler=words(row["handler"]),
        attempt=whole(row["attempt"]),
        max_attempts=None if row["max_attempts"] is None else whole(row["max_attempts"]),
        cancel_requested=row.get("cancel_requested") in (1, True),
        run_at=moment(row["run_at"]),
        priority=whole(row["priority"]),
        retry=text(row["retry"]),
        timeout=number(row["timeout"]),
        payload=words(row["payload"]),
        key=text(row["key"]),
        unique_key=text(row["unique_key"]),
        error=text(row["error"]),
        rescues=whole(row["rescues"]),
        progress=number(row.get("progress")),
        blocked_by=whole(row.get("blocked_by")),
    )


async def change(tx: Transaction, ids: Sequence[int], **values: Any) -> None:
    """Set columns of live tasks that are held, and raise their versions."""
    task = tx.tables.task
    statement = sa.update(task).where(tx.dialect.one_of(task.c.id, ids))
    await tx.execute(statement.values(version=task.c.version + 1, **values))


async def reschedule(tx: Transaction, times: Mapping[int, datetime]) -> dict[int, datetime | None]:
    """Set when live tasks that are held may run, and raise their versions.

    Returns:
        The times as they are stored, by id.
    """
    if not times:
        return {}
    task = tx.tables.task
    due, meant = tx.dialect.one_by_one(tx.dialect.rows("due", DUE_COLUMNS), task, same_id)
    values = {"run_at": due.c.run_at, "version": task.c.version + 1}
    statement = sa.update(task).where(meant).values(values).returning(task.c.id, task.c.run_at)
    rows = await tx.rows(statement, tx.dialect.parameters("due", by_column(DUE_COLUMNS, times.items())))
    return {id: moment(run_at) for id, run_at in rows}
