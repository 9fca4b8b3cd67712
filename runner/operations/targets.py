"""Targets of an operation: the tasks that it applies to, the confirmation of their number, and their rows under a lock.

Previews and operations share these rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.dialects import same_id
from runner.db.lock_limits import OPERATION_LOCKS
from runner.db.row_locks import row_locks
from runner.db.transaction import Transaction
from runner.db.types import Instant, next_version
from runner.model.stuck_row import LOCKED, BlockingSession, StuckCause
from runner.model.task import FINAL, LIVE, MOVES, State
from runner.operations.results import Conflict, Result, Skipped, Stuck, Target
from runner.operations.written_rows import write_rows
from runner.policy.claim_conditions import used_up
from runner.queries.rows import from_row, moment, readable
from runner.text.stuck_row import holder_text, lock_advice

REQUEUED = tuple(state for state in MOVES["requeue"].sources if state)
CANCELLED = tuple(state for state in MOVES["cancel"].sources if state)

ACCEPTED_STATES: dict[str, tuple[State, ...]] = {
    "retry_now": (State.WAITING, *REQUEUED),
    "requeue": REQUEUED,
    "delay": (State.WAITING,),
    "terminate": CANCELLED,
    "edit": LIVE,
    "signal": LIVE,
    "rewind": (State.WAITING, State.BLOCKED, *REQUEUED),
    "erase": FINAL,
    "rekey": (State.WAITING, State.BLOCKED, *FINAL),
    "unblock": tuple(state for state in MOVES["unblock"].sources if state),
}
"""The task states that each operation accepts."""

BLOCKED = "it is blocked by other tasks: retry those, or unblock it"
"""The reason why a blocked task is not retried."""

LAST = "with one attempt left: dead if it fails"
"""The remark on tasks for which `is_last` is true, after their number."""


def objection(verb: str, task: Any) -> str | None:
    """The reason why an operation does not apply to a task.

    Args:
        task: a row with state, attempt, max_attempts and cancel_requested.

    Returns:
        The reason as a clause; None if the operation applies.
    """
    state = State(task.state)
    if verb == "edit" and state in REQUEUED:
        return f"it is {state}: only an edit that retries it (--requeue) can change it"
    if state is State.BLOCKED and verb == "retry_now":
        return BLOCKED
    if state not in ACCEPTED_STATES[verb]:
        now = "it has succeeded and is" if state is State.SUCCEEDED else f"it is {state},"
        hint = ": leave out --requeue to change it" if verb == "requeue" and state in ACCEPTED_STATES["edit"] else ""
        return f"{now} not {_either(ACCEPTED_STATES[verb])}{hint}"
    if verb == "terminate" and task.cancel_requested:
        return "its termination is already requested"
    if verb == "retry_now" and state is State.WAITING and used_up(task.attempt, task.max_attempts):
        return f"it has used {task.attempt} of {task.max_attempts} attempts: raise max_attempts first"
    return None


def is_last(verb: str, task: Any) -> bool:
    """True if the operation starts the last attempt of a task that was attempted before."""
    is_waiting = verb == "retry_now" and State(task.state) is State.WAITING
    return is_waiting and task.attempt > 0 and used_up(task.attempt + 1, task.max_attempts)


def _either(states: tuple[State, ...]) -> str:
    *others, last = states
    return f"{', '.join(others)} or {last}" if others else str(last)


FEW = 20
"""Up to this many tasks, `y` confirms; above it, the operator types the number of tasks."""

MANY = 1_000
"""Above this many tasks, the operator types the name of the database and gives a reason."""


@dataclass(frozen=True, slots=True)
class RequiredConfirmation:
    """The confirmation that a change requires.

    Args:
        reason: True if a reason is required.
    """

    word: str
    reason: bool = False


def required_confirmation(count: int, *, production: bool, name: str) -> RequiredConfirmation:
    """Decide the confirmation of a change.

    Args:
        production: True if the database is marked as production.
    """
    if production or count > MANY:
        return RequiredConfirmation(name, reason=True)
    return RequiredConfirmation(str(count) if count > FEW else "y")


DUE_COLUMNS: dict[str, Any] = {"id": sa.BigInteger, "run_at": Instant}

MISSING = "it does not exist; it may have been pruned"


class LockedTask(NamedTuple):
    """A task as read for an operation, usually locked until the transaction ends."""

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
    interruptions: int
    blocked_by: int
    expires_at: datetime | None = None
    finished_at: datetime | None = None
    claimed_at: datetime | None = None
    runner_id: int | None = None
    duration: float | None = None
    hosts: str = ""


async def lock_targets(tx: Transaction, verb: str, targets: Iterable[Target]) -> tuple[list[LockedTask], Result]:
    """Lock tasks and separate the ones that have changed or that the operation does not apply to.

    Args:
        targets: the tasks, with the versions that the operator saw; the first target of an id counts.

    Returns:
        The tasks to change, by id; and a result with only the conflicts, the skipped and the locked tasks.
    """
    target_list = list(targets)
    tasks, stuck = await lock_tasks(tx, sorted({target.id for target in target_list}))
    locked = {each.id for each in stuck}
    eligible, result = partition_targets(verb, [each for each in target_list if each.id not in locked], tasks)
    result.stuck += stuck
    return eligible, result


def partition_targets(
    verb: str, targets: Iterable[Target], tasks: Mapping[int, LockedTask]
) -> tuple[list[LockedTask], Result]:
    """Separate the tasks that have changed or that the operation does not apply to, as `lock_targets` does.

    Args:
        targets: the tasks, with the versions that the operator saw; the first target of an id counts.
    """
    versions: dict[int, int | None] = {}
    for target in targets:
        versions.setdefault(target.id, target.version)
    result, eligible = Result(), []
    for id in sorted(versions):
        task = tasks.get(id)
        if task is None:
            result.skipped.append(Skipped(id, MISSING))
        elif versions[id] not in (None, task.version):
            result.conflicts.append(Conflict(id, task.state, task.version))
        elif why := objection(verb, task):
            result.skipped.append(Skipped(id, why))
        else:
            eligible.append(task)
    return eligible, result


LOCK_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
"""Seconds between two looks at tasks whose rows are locked: claims and settles lock them for milliseconds."""


async def lock_tasks(tx: Transaction, ids: Sequence[int]) -> tuple[dict[int, LockedTask], list[Stuck]]:
    """Lock tasks of the live table and the history until the transaction ends.

    It never waits in the database, so that it holds up no other transaction that waits for this one.

    Args:
        ids: the ids in ascending order.

    Returns:
        The tasks by id; and those that another transaction has locked for longer than about a second.
    """
    tasks = await read_tasks(tx, ids, locked=True)
    if not tx.dialect.row_locks or len(tasks) == len(ids):
        return tasks, []
    rest: list[int] = []
    for pause in (0.0, *LOCK_PAUSES):
        await tx.pause(pause)
        tasks |= await read_tasks(tx, [id for id in ids if id not in tasks], locked=True)
        missing = [id for id in ids if id not in tasks]
        rest = sorted(await read_tasks(tx, missing, locked=False)) if missing else []
        if not rest:
            return tasks, []
    sessions = await row_locks(tx, rest)
    return tasks, [Stuck(id, StuckCause.LOCKED, _held(sessions.get(id))) for id in rest]


def _held(session: BlockingSession | None) -> str:
    fact = LOCKED.fact if session is None else f"its row is {holder_text(session)}"
    return f"{fact}; {lock_advice(session)}"


async def read_tasks(tx: Transaction, ids: Sequence[int], *, locked: bool) -> dict[int, LockedTask]:
    """Read tasks from the live table and the history.

    The live table is read twice, because a task can move between the tables during the reads.

    Args:
        tx: an open transaction; a writing one if `locked`.
        ids: the ids in ascending order, the locking order that avoids deadlocks between operators.
        locked: True to lock the rows until the transaction ends, and leave out those that another one has locked.
    """
    tasks: dict[int, LockedTask] = {}
    for table in (tx.tables.task, tx.tables.history, tx.tables.task):
        missing = [id for id in ids if id not in tasks]
        if missing:
            statement = sa.select(*readable(tx, _columns(table))).where(tx.dialect.one_of(table.c.id, missing))
            if locked:
                limited = statement.where(tx.dialect.lock_limit(OPERATION_LOCKS)).order_by(table.c.id)
                statement = limited.with_for_update(skip_locked=True)
            rows = await tx.execute(statement)
            tasks |= {row["id"]: from_row(LockedTask, row) for row in rows.mappings()}
    return tasks


def _columns(table: sa.Table) -> list[Any]:
    return [table.c[name] for name in LockedTask._fields if name in table.c]


async def change(tx: Transaction, ids: Sequence[int], **values: Any) -> None:
    """Set columns of locked live tasks, and raise their versions.

    Raises:
        DatabaseRefused: a task did not change; the transaction must not commit.
    """
    task = tx.tables.task
    statement = sa.update(task).where(tx.dialect.one_of(task.c.id, ids))
    await write_rows(tx, statement.values(version=next_version(task.c.version), **values), len(set(ids)))


async def reschedule(tx: Transaction, times: Mapping[int, datetime], **others: Any) -> dict[int, datetime | None]:
    """Set the due times of locked live tasks, and other columns, and raise their versions.

    Returns:
        The stored times, by id.
    """
    if not times:
        return {}
    task = tx.tables.task
    due, match = tx.dialect.one_by_one(tx.dialect.rows("due", DUE_COLUMNS), task, same_id)
    values = {"run_at": due.c.run_at, "version": next_version(task.c.version)} | others
    statement = sa.update(task).where(match).values(values).returning(task.c.id, task.c.run_at)
    parameters = tx.dialect.row_parameters("due", DUE_COLUMNS, times.items())
    rows = await write_rows(tx, statement, len(times), parameters)
    return {id: moment(run_at) for id, run_at in rows}
