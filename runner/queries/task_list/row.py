"""One row of a list per task, live or finished."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema import Tables
from runner.db.transaction import Transaction
from runner.model.step import error_of
from runner.model.task import Shown, State
from runner.queries.rows import from_row, readable
from runner.queries.task_list.sources import live_states
from runner.text.document import JsonProperty
from runner.text.sanitize import count_noun

SHORT = 500
"""Maximum number of characters of a long text in a list."""


class TaskRow(NamedTuple):
    """A task as a list shows it: long texts are cut to SHORT characters, unreadable values are None.

    Args:
        shown: its displayed state, by the database's clock.
        version: the version that an operation must present.
        key: its business key.
        hosts: the hosts that may take it; empty for all.
        hosts_until: from then on any host may take it; None for never.
        priority: 1 to 9.
        max_attempts: the attempts allowed; None for the handler's limit.
        rescues: the times that it was rescued from a lost runner.
        run_at: its due time.
        expires_at: the time after which no attempt starts; None without one.
        submitted_at: when it was submitted.
        claimed_at: when its last attempt began.
        finished_at: when it ended.
        duration: seconds that the last attempt took.
        runner_id: the runner of its last attempt.
        cancel_requested: True if termination was requested while it runs.
        error: the last error.
        blocked_by: the number of its open dependencies.
        interruptions: the times that a runner stopped before it ended, since its last checkpoint.
    """

    id: int
    shown: Shown
    version: int
    queue: str
    handler: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int | None
    rescues: int
    run_at: datetime | None
    submitted_at: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    duration: float | None
    runner_id: int | None
    host: str | None
    cancel_requested: bool
    error: str | None
    blocked_by: int = 0
    interruptions: int = 0
    expires_at: datetime | None = None
    tenant: str | None = None
    hosts: str = ""
    hosts_until: datetime | None = None

    @property
    def remark(self) -> str | None:
        """The text of a list's last column: the open dependencies, or the last error or the reason of a wait."""
        if self.state is State.BLOCKED:
            return f"waits for {count_noun(self.blocked_by, 'task')}" if self.blocked_by else None
        return error_of(self.error) if self.state is State.SUCCEEDED else self.error

    @JsonProperty
    def state(self) -> State:
        """The stored state."""
        return STORED[self.shown]

    @property
    def relevant_time(self) -> datetime | None:
        """The most relevant time: its end, the start of its attempt, or its due time."""
        if self.state.final:
            return self.finished_at
        return self.claimed_at if self.state is State.RUNNING else self.run_at


STORED = {shown: State(shown.value) for shown in Shown if shown.value in tuple(State)} | {
    Shown.READY: State.WAITING,
    Shown.SCHEDULED: State.WAITING,
    Shown.RETRYING: State.WAITING,
    Shown.LOST: State.RUNNING,
}


async def task_rows(tx: Transaction, ids: Sequence[int]) -> list[TaskRow]:
    """Read tasks by id.

    Returns:
        The existing tasks, in the order of `ids`.
    """
    if not ids:
        return []
    parts = await tx.gather(*(_read(tx, table, ids) for table in (tx.tables.task, tx.tables.history)))
    tasks = {row["id"]: from_row(TaskRow, row) for part in parts for row in part}
    return [tasks[id] for id in ids if id in tasks]


async def same_key_tasks(tx: Transaction, task: TaskRow) -> list[TaskRow]:
    """Read the newest other tasks of the same handler with the same key, the newest first.

    Args:
        tx: an open transaction; without a key nothing is executed.
        task: a task with its full key.
    """
    if task.key is None:
        return []
    await tx.keep_to_indexes()
    statements = []
    for table in (tx.tables.task, tx.tables.history):
        column = table.c  # The index of the keys has the handler and the id: it ends after the last row that is read.
        same = (column.key == task.key) & (column.handler == task.handler) & (column.id != task.id)
        statements.append(sa.select(column.id).where(same).order_by(column.id.desc()).limit(MOST_SAME_KEY))
    ids = {row[0] for rows in await tx.gather(*map(tx.rows, statements)) for row in rows}
    return await task_rows(tx, sorted(ids, reverse=True)[:MOST_SAME_KEY])


async def _read(tx: Transaction, table: sa.Table, ids: Sequence[int]) -> Sequence[sa.RowMapping]:
    columns = readable(tx, [column for column in table.c if column.name in TaskRow._fields])
    short_columns = [sa.func.substr(table.c[name], 1, SHORT).label(name) for name in ("key", "tenant", "error")]
    full_columns = [column for column in columns if column.name not in ("key", "tenant", "error")]
    selected = (*full_columns, *short_columns, *computed(tx.tables, table))
    statement = sa.select(*selected).where(tx.dialect.one_of(table.c.id, ids))
    return (await tx.execute(statement)).mappings().all()


def one_task(tx: Transaction, table: sa.Table, id: int, columns: Sequence[Any]) -> sa.Select[Any]:
    """Select columns of one task, from the live table or the history.

    Every partition of the history has its own primary key, so two rows can have the same id if a client copied a dead
    task back and it succeeded. The last row counts.
    """
    statement = sa.select(*columns).where(table.c.id == id)
    if table is tx.tables.history and tx.dialect.partitions:
        # As an expression, so that the planner does not walk along an index in this order instead of by id.
        return statement.order_by(tx.dialect.readable_time(table.c.finished_at).desc().nulls_last()).limit(1)
    return statement


def computed(tables: Tables, table: sa.Table) -> tuple[sa.Label[Any], ...]:
    """The fields of TaskRow that are no columns, as expressions; `reconstruction` derives those of a past time."""
    return (displayed_state(tables, table).label("shown"),)


@lru_cache
def displayed_state(tables: Tables, table: sa.Table) -> sa.ColumnElement[str]:
    """The displayed state, as an expression."""
    if table is tables.history:
        return sa.type_coerce(table.c.state, sa.Text)
    states = live_states(tables)
    order = (Shown.LOST, Shown.RUNNING, Shown.BLOCKED, Shown.READY, Shown.RETRYING)
    cases = [(states[shown], sa.literal_column(f"'{shown.value}'", sa.Text)) for shown in order]
    return sa.case(*cases, else_=sa.literal_column(f"'{Shown.SCHEDULED.value}'", sa.Text))


MOST_SAME_KEY = 5
"""Maximum number of other tasks with the key of a task."""
