"""The list of workflows, with the counts of their tasks by state."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import is_state
from runner.db.transaction import Transaction
from runner.db.types import db_now
from runner.model.task import FINAL, State
from runner.queries.rows import moment, readable, text
from runner.text.document import JsonProperty

MOST = 1_000
"""Maximum number of workflows of a list."""

ORDER = (State.RUNNING, State.WAITING, State.BLOCKED, State.DEAD, State.CANCELLED, State.SUCCEEDED)
"""The states of a workflow: the first one that one of its tasks has."""


@dataclass(frozen=True, slots=True)
class WorkflowRow:
    """A workflow.

    Args:
        name: its name; None without one.
        submitted_at: when it was submitted; None if its row is gone, after a restore of its tasks from an archive.
        submitted_by: the user or program that submitted it.
        tasks: the number of its tasks by stored state, without states that none has.
        oldest: the due time of the oldest due task that waits or runs; None without one.
    """

    id: int
    name: str | None
    submitted_at: datetime | None
    submitted_by: str | None
    tasks: dict[str, int]
    oldest: datetime | None

    @property
    def total(self) -> int:
        """The number of its tasks."""
        return sum(self.tasks.values())

    @property
    def done(self) -> int:
        """The number of its tasks that have finished, in any state."""
        return sum(self.tasks.get(state, 0) for state in FINAL)

    @property
    def failed(self) -> int:
        """The number of its tasks that are dead or cancelled."""
        return self.done - self.tasks.get(State.SUCCEEDED, 0)

    @JsonProperty
    def state(self) -> State:
        """The state of the whole: running or waiting while a task is, blocked if only blocked ones are left.

        Finished, it is dead or cancelled if a task is, and else succeeded.
        """
        return next((state for state in ORDER if self.tasks.get(state)), State.SUCCEEDED)


class WorkflowName(NamedTuple):
    """The id and the name of a workflow; None without a name."""

    id: int
    name: str | None


async def workflow_name(tx: Transaction, id: int | None) -> WorkflowName | None:
    """Read the name of a workflow, also of one without a row; None without an id."""
    if id is None:
        return None
    table = tx.tables.workflow.c
    return WorkflowName(id, text(await tx.scalar(sa.select(table.name).where(table.id == id))))


async def workflows(
    tx: Transaction, limit: int = 50, before: int | None = None, *, name: str | None = None, unfinished: bool = False
) -> list[WorkflowRow]:
    """Read workflows, the newest first.

    Args:
        limit: maximum number of workflows.
        before: only those with a lower id.
        name: only those with this name, in which each `*` is any text; None for all.
        unfinished: only those with a live task.
    """
    table, task = tx.tables.workflow.c, tx.tables.task.c
    selection = sa.select(table.id).order_by(table.id.desc()).limit(limit)
    if before is not None:
        selection = selection.where(table.id < before)
    if name is not None:
        pieces = name.split("*")
        selection = selection.where(tx.dialect.matches(table.name, pieces) if pieces[1:] else table.name == name)
    if unfinished:
        selection = selection.where(sa.exists().where(task.workflow == table.id))
    return await workflow_rows(tx, [row.id for row in await tx.rows(selection)])


async def workflow_rows(tx: Transaction, ids: Sequence[int]) -> list[WorkflowRow]:
    """Read workflows by id, in the order of the ids, also those without a row."""
    if not ids:
        return []
    rows, *counts = await tx.gather(_rows(tx, ids), *(tx.rows(statement) for statement in count_statements(tx, ids)))
    tasks: dict[int, Counter[str]] = defaultdict(Counter)
    oldest: dict[int, datetime] = {}
    for row in (row for part in counts for row in part):
        tasks[row.workflow][row.state] += row.number
        if (due := moment(getattr(row, "oldest", None))) is not None:
            oldest[row.workflow] = min(due, oldest.get(row.workflow, due))
    return [
        WorkflowRow(
            *(id, text(rows[id]["name"]), moment(rows[id]["submitted_at"]), text(rows[id]["submitted_by"]))
            if id in rows
            else (id, None, None, None),
            dict(tasks[id]),
            oldest.get(id),
        )
        for id in ids
    ]


def count_statements(tx: Transaction, ids: Sequence[int]) -> list[sa.Select[Any]]:
    """The statements that count the tasks of workflows by state: of the live table, and of the history."""
    task, past = tx.tables.task.c, tx.tables.history.c
    due = sa.case((is_state(task.state, State.WAITING, State.RUNNING) & (task.run_at <= db_now()), task.run_at))
    statements = []
    for table, more in ((task, [tx.dialect.readable_time(sa.func.min(due)).label("oldest")]), (past, [])):
        number = sa.func.count().label("number")
        members = tx.dialect.one_of(table.workflow, list(ids)) & table.workflow.is_not(None)
        statements.append(
            sa.select(table.workflow, table.state, number, *more).where(members).group_by(table.workflow, table.state)
        )
    return statements


async def _rows(tx: Transaction, ids: Sequence[int]) -> dict[int, Any]:
    table = tx.tables.workflow
    statement = sa.select(*readable(tx, table.c)).where(tx.dialect.one_of(table.c.id, list(ids)))
    return {row["id"]: row for row in (await tx.execute(statement)).mappings().all()}
