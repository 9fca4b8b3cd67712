"""tasks: one line of a list for each task, wherever it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.people.terminal import counted
from runner.schema import Tables
from runner.store.observe.legible import legible, moment, number, text, whole, words
from runner.store.observe.subjects import live_states
from runner.store.transaction import Transaction
from runner.task import Shown, State

SHORT = 500
"""Characters of a long text that a list shows."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as a list shows it: long texts are cut to SHORT characters, what could not be read is None.

    Args:
        id: the task's.
        shown: its state as people see it, by the database's clock.
        version: what an intervention has to show.
        queue: its queue.
        handler: its handler's name.
        key: its business key.
        priority: 1 to 9.
        attempt: attempts used.
        max_attempts: attempts allowed; None for the handler's.
        rescues: how often it was taken back from a lost runner.
        run_at: not before this time.
        submitted_at: when it was submitted.
        claimed_at: when its last attempt began.
        finished_at: when it ended.
        duration: seconds that the last attempt took.
        progress: from 0 to 1, when its handler tells.
        runner_id: the runner that has it, or had it last.
        host: of that runner.
        cancel_requested: its end has been asked for while it runs.
        error: the last one.
        blocked_by: how many tasks it still waits for.
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
    progress: float | None
    runner_id: int | None
    host: str | None
    cancel_requested: bool
    error: str | None
    blocked_by: int = 0

    @property
    def remark(self) -> str | None:
        """What a list says about it: what it waits for, else its last error."""
        if self.state is State.BLOCKED:
            return f"waits for {counted(self.blocked_by, 'task')}" if self.blocked_by else None
        return self.error

    @property
    def state(self) -> State:
        """The stored state behind the one that is shown."""
        return STORED[self.shown]

    @property
    def telling(self) -> datetime | None:
        """The time that tells most about it: its end, the start of its run, or when it is due."""
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

    Args:
        tx: an open transaction.
        ids: a screenful.

    Returns:
        The tasks that exist, in the order of `ids`.
    """
    found = {
        row["id"]: task_row(row) for table in (tx.tables.task, tx.tables.history) for row in await _read(tx, table, ids)
    }
    return [found[id] for id in ids if id in found]


async def _read(tx: Transaction, table: sa.Table, ids: Sequence[int]) -> Sequence[sa.RowMapping]:
    columns = legible(tx, [column for column in table.c if column.name in TaskRow.__slots__])
    cut = [sa.func.substr(table.c[name], 1, SHORT).label(name) for name in ("key", "error")]
    others = [column for column in columns if column.name not in ("key", "error")]
    shown = shown_state(tx.tables, table).label("shown")
    statement = sa.select(*others, *cut, shown).where(tx.dialect.one_of(table.c.id, ids))
    return (await tx.execute(statement)).mappings().all()


def one_task(tx: Transaction, table: sa.Table, id: int, columns: Sequence[Any]) -> sa.Select[Any]:
    """Select columns of one task, in the live table or in the history.

    Where the history has partitions, each of them has a key of its own: two rows of one id stand there if somebody has
    copied a dead task back by hand and it then succeeded. The last one counts.
    """
    found = sa.select(*columns).where(table.c.id == id)
    if table is tx.tables.history and tx.dialect.partitions:
        # As an expression, so that no index offers this order: the planner would walk along it instead of to the id.
        return found.order_by(tx.dialect.legible(table.c.finished_at).desc().nulls_last()).limit(1)
    return found


def shown_state(tables: Tables, table: sa.Table) -> sa.ColumnElement[str]:
    """The state that people see, as an expression."""
    if table is tables.history:
        return sa.type_coerce(table.c.state, sa.Text)
    states = live_states(tables)
    order = (Shown.LOST, Shown.RUNNING, Shown.BLOCKED, Shown.READY, Shown.RETRYING)
    cases = [(states[shown], sa.literal_column(f"'{shown.value}'", sa.Text)) for shown in order]
    return sa.case(*cases, else_=sa.literal_column(f"'{Shown.SCHEDULED.value}'", sa.Text))


def task_row(row: sa.RowMapping) -> TaskRow:
    """Make a line of a row that `legible` columns were read into."""
    return TaskRow(
        id=row["id"],
        shown=Shown(row["shown"]),
        version=whole(row["version"]),
        queue=words(row["queue"]),
        handler=words(row["handler"]),
        key=text(row["key"]),
        priority=whole(row["priority"]),
        attempt=whole(row["attempt"]),
        max_attempts=None if row["max_attempts"] is None else whole(row["max_attempts"]),
        rescues=whole(row["rescues"]),
        run_at=moment(row["run_at"]),
        submitted_at=moment(row["submitted_at"]),
        claimed_at=moment(row["claimed_at"]),
        finished_at=moment(row.get("finished_at")),
        duration=number(row.get("duration")),
        progress=number(row.get("progress")),
        runner_id=row["runner_id"],
        host=text(row["host"]),
        cancel_requested=row.get("cancel_requested") in (1, True),
        error=text(row["error"]),
        blocked_by=whole(row.get("blocked_by")),
    )
