"""story: everything about one task, wherever it is."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from runner.errors import InvalidRetryPlan, TaskNotFound
from runner.policy.retry import next_runs, parse_plan
from runner.store.observe.audit import Audited, audit
from runner.store.observe.evidence import MOST_ATTEMPTS, Attempt, attempts_of
from runner.store.observe.family import Family, family
from runner.store.observe.legible import clock, legible, moment, number, text, texts, whole, words
from runner.store.observe.pauses import Pause, pauses
from runner.store.observe.rights import reads_audit
from runner.store.observe.runners import RunnerRow, runner_of
from runner.store.observe.tasks import TaskRow, one_task, shown_state, task_row
from runner.store.observe.unique import UniqueKey, unique_key
from runner.store.transaction import Transaction
from runner.task import State

ALONE = Family()


@dataclass(frozen=True, slots=True)
class Story:
    """Everything about one task.

    Args:
        task: the task as a list shows it.
        error: the last error, whole.
        payload: its arguments, JSON text.
        result: JSON text; None for nothing.
        checkpoint: what it saved of itself, JSON text.
        retry: its retry plan as text; None for the handler's.
        timeout: seconds that an attempt may take; None for the handler's.
        tags: its tags.
        trace: the W3C traceparent that it came with.
        bucket: the number by which tasks of its handler are spread.
        unique: its unique key, and who has that; None when it came without one.
        submitted_by: who submitted it.
        deadline_at: when its present attempt has to be over.
        attempts: those that failed, in order.
        audit: what operators did to it, in order.
        audit_seen: False when this login may not see that.
        next_runs: when it will run again if every attempt fails at once; empty when its plan or its number of
            attempts is its handler's and not known here.
        runner: the runner that has it; None when none has, or when that one is gone.
        queue_pause: that of its queue; None when it is not paused.
        handler_pause: that of its handler; None when it is not paused.
        at: the database's time.
        family: what it waits for, and what waits for it.
    """

    task: TaskRow
    error: str | None
    payload: str
    result: str | None
    checkpoint: str | None
    retry: str | None
    timeout: float | None
    tags: tuple[str, ...]
    trace: str | None
    submitted_by: str | None
    deadline_at: datetime | None
    attempts: tuple[Attempt, ...]
    audit: tuple[Audited, ...]
    next_runs: tuple[datetime, ...]
    runner: RunnerRow | None
    at: datetime
    bucket: int = 0
    unique: UniqueKey | None = None
    queue_pause: Pause | None = None
    handler_pause: Pause | None = None
    family: Family = ALONE
    audit_seen: bool = True


async def story(tx: Transaction, id: int, default_retry: str | None = None) -> Story:
    """Tell everything about a task.

    Args:
        tx: an open transaction.
        id: the task's.
        default_retry: its handler's retry plan, for a task that has none of its own; None when not known.

    Raises:
        TaskNotFound: there is none with this id, neither live nor in the history.
    """
    row = await _row(tx, id)
    task, now = task_row(row), await clock(tx)
    retry = text(row["retry"])
    paused = await pauses(tx)
    seen = await reads_audit(tx)
    return Story(
        task=task,
        error=text(row["error"]),
        payload=words(row["payload"]),
        result=text(row.get("result")),
        checkpoint=text(row["checkpoint"]),
        retry=retry,
        timeout=number(row["timeout"]),
        tags=texts(row["tags"]),
        trace=text(row["trace"]),
        submitted_by=text(row["submitted_by"]),
        deadline_at=moment(row.get("deadline_at")),
        attempts=tuple(await attempts_of(tx, id)),
        audit=tuple(reversed(await audit(tx, task_id=id, limit=MOST_ATTEMPTS))) if seen else (),
        next_runs=forecast(task, retry or default_retry, now),
        runner=await runner_of(tx, task.runner_id) if task.state is State.RUNNING else None,
        at=now,
        bucket=whole(row["bucket"]),
        unique=await unique_key(tx, id, task.handler, key) if (key := text(row["unique_key"])) is not None else None,
        queue_pause=paused.queues.get(task.queue),
        handler_pause=paused.handlers.get(task.handler),
        family=await family(tx, task),
        audit_seen=seen,
    )


def forecast(task: TaskRow, retry: str | None, now: datetime) -> tuple[datetime, ...]:
    """Tell when a task will run again if every attempt fails at once.

    Args:
        task: any task.
        retry: the plan in force, as text; None when not known.
        now: the database's time.

    Returns:
        The times of its next attempts to the end of its plan: with the next one when it waits, without the present
        one when it runs. Empty when it has ended, or when that cannot be known.
    """
    if task.state.final or task.state is State.BLOCKED or task.max_attempts is None:
        return ()
    if task.state is State.RUNNING:
        return _runs(retry, task.attempt, task.max_attempts, now)
    if task.attempt >= task.max_attempts:
        return ()
    start = max(task.run_at or now, now)
    return (start, *_runs(retry, task.attempt + 1, task.max_attempts, start))


def _runs(retry: str | None, attempt: int, max_attempts: int, start: datetime) -> tuple[datetime, ...]:
    if retry is None:
        return ()
    try:
        return tuple(next_runs(parse_plan(retry), attempt, max_attempts, start))
    except InvalidRetryPlan:
        return ()


async def _row(tx: Transaction, id: int) -> sa.RowMapping:
    for table in (tx.tables.task, tx.tables.history):
        shown = shown_state(tx.tables, table).label("shown")
        statement = one_task(tx, table, id, [*legible(tx, table.c), shown])
        row = (await tx.execute(statement)).mappings().one_or_none()
        if row is not None:
            return row
    raise TaskNotFound(id=id)
