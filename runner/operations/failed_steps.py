"""failed_steps: the failures of steps, which a retry forgets and its undo brings back."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.step import StepKind
from runner.operations.written_rows import write_rows
from runner.queries.rows import from_row, readable

FAILED_STEPS = "failed_steps"
"""The value of an audit entry with the rows that a retry has deleted."""


class FailedStep(NamedTuple):
    """The row of a failed step, without its task."""

    name: str
    number: int | None
    function: str | None
    fence: int
    attempt: int
    failures: int
    error: str | None
    due_at: datetime | None
    at: datetime | None
    duration: float | None


async def forget_failures(tx: Transaction, ids: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
    """Give the failed steps of tasks all their retries, the first one now.

    Returns:
        The former rows by task, for `restore_failures`.
    """
    step = tx.tables.step
    failed = tx.dialect.one_of(step.c.task_id, ids) & step.c.done_at.is_(None)
    failed &= step.c.kind == StepKind.FUNCTION
    columns = readable(tx, [step.c[name] for name in ("task_id", *FailedStep._fields)])
    rows = (await tx.execute(sa.select(*columns).where(failed))).mappings().all()
    if rows:
        await write_rows(tx, sa.delete(step).where(failed), len(rows))
    by_task: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_task.setdefault(row["task_id"], []).append(from_row(FailedStep, row)._asdict())
    return by_task


async def restore_failures(tx: Transaction, recorded: Mapping[int, object]) -> None:
    """Bring forgotten failures back, except those of steps that a task has stored again.

    Args:
        recorded: the rows by task as an audit entry has them; unreadable ones are left out.
    """
    steps = [
        {"task_id": id, "kind": StepKind.FUNCTION.value, **from_row(FailedStep, row)._asdict()}
        for id, rows in recorded.items()
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    ]
    if readable_steps := [step for step in steps if step["name"] and step["at"]]:
        await tx.execute(tx.dialect.insert(tx.tables.step).on_conflict_do_nothing(), readable_steps)
