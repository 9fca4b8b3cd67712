"""The steps of a task, with the signals for it."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa

from runner.db.schema import Tables, is_state
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.step import StepKind
from runner.model.task import State
from runner.queries.rows import as_int, as_text, from_row, readable
from runner.queries.task_list.row import task_rows
from runner.text import formatting
from runner.text.document import Treatment
from runner.text.redact import mask
from runner.text.sanitize import count_noun, one_line

MOST_STEPS = 200
"""Steps and signals that are read: the last ones."""

VALUE_LENGTH = 80
"""Characters of a result in a list of steps."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step.

    Args:
        kind: function, call, sleep or wait.
        number: position among the steps of the handler, from 1; None for one of another asyncio task or thread.
        function: qualified name of its function, or the handler of its child; None without one.
        signal: the name of the signal that ends it; None for a function or a call.
        attempt: number of the attempt that wrote it last.
        failures: number of its failures so far.
        error: its last failure; None without one.
        due_at: the end of a sleep, the timeout of a wait, or the next try of a function; None without one.
        at: when it was written last.
        done_at: when it was done; None before.
        duration: seconds that its function took.
        result: its result, JSON text.
        child: the id of the task that it calls; None without one.
        child_state: the state of the task that it calls; None without one, or if it was deleted.
    """

    name: str
    kind: str
    number: int | None
    function: str | None
    signal: str | None
    attempt: int
    failures: int
    error: str | None
    due_at: datetime | None
    at: datetime | None
    done_at: datetime | None
    duration: float | None
    result: Annotated[str | None, Treatment.JSON]
    child: int | None = None
    child_state: str | None = None

    @property
    def has_failed(self) -> bool:
        """True if its last run failed: a function is tried again, a call has ended."""
        return self.failures > 0 and (self.done_at is None or self.kind == StepKind.CALL)

    def state(self, at: datetime) -> str:
        """Its state in words."""
        if self.done_at is not None:
            return self._end()
        left = (
            f", {formatting.age((self.due_at - at).total_seconds())} left" if self.due_at and self.due_at > at else ""
        )
        match self.kind:
            case StepKind.WAIT:
                return f"waits for signal {one_line(self.signal or self.name)}{left}"
            case StepKind.CALL:
                return self._call()
            case StepKind.SLEEP:
                return f"sleeps{left}"
        return f"failed {count_noun(self.failures, 'time')}"

    def _call(self) -> str:
        """The child of a call that is not done."""
        child = " ".join(["task", *([str(self.child)] if self.child else []), one_line(self.function or "")]).strip()
        match self.child_state:
            case State.SUCCEEDED:
                return f"{child} succeeded"
            case State.DEAD:
                return f"{child} is dead"
            case State.CANCELLED:
                return f"{child} was cancelled"
        return f"{child} was deleted" if self.child and self.child_state is None else f"waits for {child}"

    def _end(self) -> str:
        """How it ended."""
        match self.kind:
            case StepKind.FUNCTION if self.duration is not None:
                return f"done in {formatting.age(self.duration)}"
            case StepKind.WAIT:
                return "timed out" if self.result is None else "received"
            case StepKind.SLEEP:
                return "done" if self.result is None else "ended by a signal"
        return "failed" if self.has_failed else "done"

    def text(self, at: datetime, *, reveal: bool = False) -> str:
        """Its state, and the beginning of its result or of its last failure."""
        value, by = self.error if self.done_at is None or self.has_failed else self.result, ""
        if self.done_at is not None and self.kind in (StepKind.SLEEP, StepKind.WAIT):
            value, by = _received(value)
        text = "" if value in (None, "null") else f": {one_line(mask(value or '', reveal=reveal))[:VALUE_LENGTH]}"
        return f"{self.state(at)}{by}{text}"


def _received(result: str | None) -> tuple[str | None, str]:
    """The payload of a received signal as JSON text, and its sender."""
    try:
        values = json.loads(result or "null") or {}
        return json.dumps(values.get("payload"), ensure_ascii=False), f" by {one_line(values['by'])}" if values.get(
            "by"
        ) else ""
    except (ValueError, AttributeError, RecursionError):  # a client has changed the row
        return result, ""


@dataclass(frozen=True, slots=True)
class SignalRow:
    """A signal for a task.

    Args:
        actor: who sent it; None if unknown.
        received_at: when a wait of the task took it; None before.
        payload: its value, JSON text; None without one.
    """

    id: int
    name: str
    actor: str | None
    sent_at: datetime | None
    received_at: datetime | None
    payload: Annotated[str | None, Treatment.JSON]


async def steps_of(tx: Transaction, id: int) -> list[StepRow]:
    """Read the last steps of a task, in the order in which they were written."""
    step, called = tx.tables.step, tx.tables.dependency.c
    is_own = (called.task_id == step.c.task_id) & (called.step == step.c.name)
    columns = *readable(tx, step.c), called.parent_id.label("child")
    statement = (
        sa.select(*columns).select_from(step.outerjoin(tx.tables.dependency, is_own)).where(step.c.task_id == id)
    )
    last = statement.order_by(step.c.at.desc(), step.c.number.desc()).limit(MOST_STEPS)
    rows = [from_row(StepRow, row) for row in reversed((await tx.execute(last)).mappings().all())]
    children = [row.child for row in rows if row.child is not None]
    states = {task.id: task.state.value for task in await task_rows(tx, children)}
    return [row if row.child is None else replace(row, child_state=states.get(row.child)) for row in rows]


def waits_for(task: sa.Table, tables: Tables) -> sa.ColumnElement[Any]:
    """The column with the signal, the sleep or the call that a task waits for; null without one."""
    step = tables.step.c
    pending = (step.task_id == task.c.id) & step.done_at.is_(None)
    calls = sa.select(step.name).where(pending, step.kind == StepKind.CALL.value)
    signals = sa.select(step.signal).where(pending, step.signal.is_not(None))
    called, signal = (
        each.order_by(step.at, step.name).limit(sa.literal_column("1")).scalar_subquery() for each in (calls, signals)
    )
    is_later = is_state(task.c.state, State.WAITING) & (task.c.run_at > db_now())
    return sa.case((is_state(task.c.state, State.BLOCKED), called), (is_later, signal))


async def signals_of(tx: Transaction, id: int) -> list[SignalRow]:
    """Read the last signals of a task, in the order in which they were sent."""
    table = tx.tables.signal
    statement = sa.select(*readable(tx, table.c)).where(table.c.task_id == id).order_by(table.c.id.desc())
    return [
        from_row(SignalRow, row) for row in reversed((await tx.execute(statement.limit(MOST_STEPS))).mappings().all())
    ]


async def awaited_signals(tx: Transaction, ids: Sequence[int]) -> list[str]:
    """Read the names of the signals that some tasks wait for, most tasks first."""
    step = tx.tables.step.c
    waits = tx.dialect.one_of(step.task_id, ids) & step.done_at.is_(None) & (step.kind == StepKind.WAIT)
    names = sa.select(step.signal).where(waits, step.signal.is_not(None)).group_by(step.signal)
    return [as_text(row.signal) for row in await tx.rows(names.order_by(sa.func.count().desc(), step.signal))]


async def pending_steps(tx: Transaction, ids: Sequence[int]) -> dict[int, list[StepRow]]:
    """Read the steps that waiting tasks wait for: sleeps, waits, and functions that are tried again."""
    table, pending = tx.tables.step, defaultdict[int, list[StepRow]](list)
    if not ids:
        return pending
    is_pending = (tx.dialect.one_of(table.c.task_id, ids), table.c.done_at.is_(None))
    statement = sa.select(*readable(tx, table.c)).where(*is_pending, table.c.kind != StepKind.CALL.value)
    rows = await tx.execute(statement.order_by(table.c.at, table.c.name).limit(MOST_STEPS * len(ids)))
    for row in rows.mappings().all():
        pending[as_int(row["task_id"])].append(from_row(StepRow, row))
    return pending


def step_lines(rows: Sequence[StepRow], at: datetime, *, reveal: bool = False) -> list[str]:
    """List steps: number, name and text."""
    width = max((len(one_line(row.name)) for row in rows), default=0)
    return [f"{row.number or '':>4}  {one_line(row.name):<{width}}  {row.text(at, reveal=reveal)}" for row in rows]


def signal_lines(rows: Sequence[SignalRow], at: datetime, *, reveal: bool = False) -> list[str]:
    """List signals: name, age, sender, whether the task has received it, and the beginning of the payload."""
    lines = []
    for row in rows:
        sent = formatting.distance(row.sent_at, at) if row.sent_at else ""
        by = f" by {one_line(row.actor)}" if row.actor else ""
        state = "received" if row.received_at else "not received yet"
        value = f": {one_line(mask(row.payload, reveal=reveal))[:VALUE_LENGTH]}" if row.payload else ""
        lines.append(f"{one_line(row.name)}  sent {sent}{by}, {state}{value}")
    return lines
