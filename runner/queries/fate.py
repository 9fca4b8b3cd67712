"""fate: the results of the tasks of a change group: how many succeeded, failed again, or still wait."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.task import FINAL, Shown
from runner.queries.counting import Count
from runner.queries.rows import as_text, moment
from runner.queries.task_list.row import STORED, displayed_state

CAP = 10_000
"""Maximum number of tasks that are counted."""

MOST_CAUSES = 10
"""Maximum number of failure groups in a fate."""


class FailureCause(NamedTuple):
    """A failure group of attempts after a change.

    Args:
        error: error type and message of one attempt.
        tasks: the number of tasks that failed with it.
        repeated: True if one of the tasks failed with it before the change as well.
    """

    fingerprint: str
    error: str
    tasks: int
    task_id: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class GroupFate:
    """The tasks of a change group, now.

    Args:
        total: the number of tasks.
        states: their number by displayed state, largest first; deleted tasks are missing.
        causes: the failures since the change, most tasks first. The numbers are lower bounds if `total` is one.
        pending: the ids of the tasks that have neither finished nor failed since the change.
    """

    total: Count
    states: Mapping[Shown, int]
    causes: tuple[FailureCause, ...]
    pending: tuple[int, ...]

    @property
    def counts(self) -> Mapping[str, Count]:
        """The tasks by displayed state, and those deleted."""
        deleted = self.total.number - sum(self.states.values())
        numbers = [*self.states.items(), ("deleted", deleted)]
        return {name: self.counted(number) for name, number in numbers if number}

    def counted(self, number: int) -> Count:
        """A number of these tasks, a lower bound if there are more of them than were counted."""
        return Count(number, self.total.more)

    def __str__(self) -> str:
        words = [f"{count} {name}" for name, count in self.counts.items()]
        failed = self.counted(sum(cause.tasks for cause in self.causes))
        again = f"; {failed} failed since the change" if failed.number else ""
        return f"{self.total.of('task')}: {', '.join(words)}{again}"


async def fate(tx: Transaction, change_group: str) -> GroupFate:
    """Read the fate of the tasks of a change group.

    Args:
        tx: an open transaction; five statements are executed.
    """
    audit = tx.tables.audit.c
    mine = (audit.change_group == change_group) & audit.task_id.is_not(None)
    begin = tx.dialect.readable_time(sa.func.min(audit.at, type_=audit.at.type))
    rows, first = await tx.gather(
        tx.rows(sa.select(audit.task_id).where(mine).distinct().limit(CAP + 1)),
        tx.scalar(sa.select(begin).where(mine)),
    )
    ids, since = sorted(row.task_id for row in rows), moment(first)
    if since is None:
        return GroupFate(Count(), {}, (), ())
    return await fate_of(tx, ids[:CAP], since, more=len(ids) > CAP)


async def fate_of(tx: Transaction, ids: Sequence[int], since: datetime, *, more: bool = False) -> GroupFate:
    """Read the fate of tasks.

    Args:
        tx: an open transaction; three statements are executed.
        since: the time of the change, aware; earlier failures do not count.
        more: True if there are more tasks.
    """
    tables = (tx.tables.history, tx.tables.task)  # A task that moves between the two reads is found in one.
    selects = (sa.select(each.c.id, displayed_state(tx.tables, each)) for each in tables)
    statements = [select.where(tx.dialect.one_of(each.c.id, ids)) for select, each in zip(selects, tables, strict=True)]
    (past, live), failures = await tx.gather(tx.gather(*map(tx.rows, statements)), _failures(tx, ids, since))
    states = {id: Shown(state) for id, state in (*past, *live)}
    failed = {failure.task_id for failure in failures if failure.after}
    finished = {id for id, shown in states.items() if STORED[shown] in FINAL}
    pending = tuple(id for id in ids if id in states and id not in failed | finished)
    counts = dict(Counter(states.values()).most_common())
    return GroupFate(Count(len(ids), more), counts, _causes(failures), pending)


async def last_causes(tx: Transaction, ids: Sequence[int]) -> dict[int, str]:
    """Read the fingerprint of the last failed attempt of each task that has one, by task id."""
    attempt = tx.tables.attempt.c
    mine = sa.select(attempt.task_id, attempt.fingerprint).where(tx.dialect.one_of(attempt.task_id, ids))
    return {row.task_id: as_text(row.fingerprint) for row in await tx.rows(mine.order_by(attempt.fence))}


class _Failure(NamedTuple):
    """The attempts of one task with one error: whether some of them ended before the change, and after it."""

    fingerprint: str
    task_id: int
    error: str
    before: bool
    after: bool


async def _failures(tx: Transaction, ids: Sequence[int], since: datetime) -> list[_Failure]:
    attempt = tx.tables.attempt.c
    columns = (attempt.fingerprint, attempt.task_id, attempt.error_type, attempt.message)
    is_after = sa.case((attempt.ended_at >= since, 1), else_=0)
    before, after = 1 - sa.func.min(is_after), sa.func.max(is_after)
    statement = sa.select(*columns, before, after).where(tx.dialect.one_of(attempt.task_id, ids)).group_by(*columns)
    return [
        _Failure(as_text(row[0]), row[1], f"{as_text(row[2])}: {as_text(row[3])}", row[4] == 1, row[5] == 1)
        for row in await tx.rows(statement)
    ]


def _causes(failures: Sequence[_Failure]) -> tuple[FailureCause, ...]:
    earlier = {failure.fingerprint for failure in failures if failure.before}
    causes: dict[str, dict[int, str]] = {}
    for failure in failures:
        if failure.after:
            causes.setdefault(failure.fingerprint, {})[failure.task_id] = failure.error
    all_causes = [
        FailureCause(fingerprint, error, len(tasks), task_id, fingerprint in earlier)
        for fingerprint, tasks in causes.items()
        for task_id, error in [next(iter(tasks.items()))]
    ]
    return tuple(sorted(all_causes, key=lambda cause: -cause.tasks)[:MOST_CAUSES])
