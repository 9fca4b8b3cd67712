"""ended_runners: the runners that have stopped or were lost, and the attempts that ended with lost ones."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NamedTuple

import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.model.outcome import RUNNER_LOST
from runner.model.task import MOVES, State
from runner.queries.rows import as_int, as_text, moment, readable
from runner.text.document import JsonProperty, Treatment
from runner.text.sanitize import count_noun

MOST = 100
"""Ended runners that are read, the latest ones."""

MOST_ATTEMPTS = 10_000
"""Attempts that are searched for those that ended with their runner, the latest ones."""


class LostAttempt(NamedTuple):
    """An attempt that ended with its runner.

    Args:
        verb: the resulting move of its task.
    """

    task_id: int
    handler: str
    verb: str


@dataclass(frozen=True, slots=True)
class EndedRunner:
    """A runner that has stopped, or that a rescue removed as lost.

    Args:
        lost: False if it has stopped by itself.
        tasks: the tasks that were running on it.
        attempts: those of them that are known to have started, if it is lost.
    """

    id: int
    host: str
    pid: int
    version: str
    started_at: datetime | None
    ended_at: datetime
    lost: bool
    tasks: int
    attempts: Annotated[Sequence[LostAttempt], Treatment.HIDDEN] = ()

    def ended(self, state: State) -> int:
        """The number of its tasks that its loss brought to a final state."""
        return sum(each.verb in MOVES and MOVES[each.verb].target is state for each in self.attempts)

    @JsonProperty
    def died(self) -> int:
        """The tasks that died, because it was their last attempt."""
        return self.ended(State.DEAD)

    @JsonProperty
    def cancelled(self) -> int:
        """The tasks that were cancelled, because their termination was requested."""
        return self.ended(State.CANCELLED)

    @property
    def rescued(self) -> int:
        """The tasks that returned to the queue."""
        return max(0, self.tasks - self.died - self.cancelled)


def ends_of_tasks(runners: Sequence[EndedRunner]) -> str:
    """The ends of the tasks of lost runners: `3 tasks rescued, 1 died`."""
    counts = [(sum(each.rescued for each in runners), "rescued")]
    counts += [(sum(each.died for each in runners), "died"), (sum(each.cancelled for each in runners), State.CANCELLED)]
    (first, verb), *others = [each for each in counts if each[0]] or counts[:1]
    return ", ".join([f"{count_noun(first, 'task')} {verb}", *(f"{number:,} {verb}" for number, verb in others)])


def common_tasks(runners: Iterable[EndedRunner]) -> tuple[list[LostAttempt], int]:
    """The tasks that ran on the most lost runners, and the number of these; none if no task ran on two."""
    by_task: dict[int, dict[int, LostAttempt]] = defaultdict(dict)
    for runner in runners:
        for attempt in runner.attempts:
            by_task[attempt.task_id][runner.id] = attempt
    most = max(map(len, by_task.values()), default=0)
    tasks = [next(iter(lost.values())) for _, lost in sorted(by_task.items()) if len(lost) == most]
    return (tasks, most) if most > 1 else ([], 0)


async def ended_runners(
    tx: Transaction, since: datetime, *, lost: bool = False, most: int = MOST, attempts: bool = True
) -> list[EndedRunner]:
    """List the runners that ended since a time, the latest first.

    Args:
        tx: an open transaction; one statement is executed along the index `at`, and one more if any is lost.
        since: the time, aware.
        lost: True for the lost ones alone.
        most: maximum number of runners.
        attempts: False to leave out their attempts, and the statement that reads them.
    """
    ended = tx.tables.ended_runner.c
    columns = (ended.host, ended.pid, ended.version, ended.started_at, ended.ended_at, ended.lost, ended.tasks)
    statement = sa.select(ended.runner_id, *readable(tx, columns)).where(ended.ended_at >= since)
    statement = statement.where(ended.lost) if lost else statement
    rows = await tx.rows(statement.order_by(ended.ended_at.desc(), ended.runner_id.desc()).limit(most))
    ends = await _attempts(tx, since, [row.runner_id for row in rows if row.lost and attempts])
    return [
        EndedRunner(
            *(row.runner_id, as_text(row.host), as_int(row.pid), as_text(row.version), moment(row.started_at)),
            *(at, bool(row.lost), as_int(row.tasks), ends.get(row.runner_id, ())),
        )
        for row in rows
        if (at := moment(row.ended_at)) is not None
    ]


async def _attempts(tx: Transaction, since: datetime, runners: Sequence[int]) -> dict[int, list[LostAttempt]]:
    """The attempts that ended with their runner, by its id."""
    if not runners:
        return {}
    attempt = tx.tables.attempt.c
    columns = (attempt.runner_id, attempt.task_id, attempt.handler, attempt.verb, attempt.error_type)
    latest = sa.select(*columns).where(attempt.ended_at >= since).order_by(attempt.ended_at.desc())
    window = latest.limit(MOST_ATTEMPTS).subquery().c
    with_runner = (window.error_type == RUNNER_LOST, tx.dialect.one_of(window.runner_id, runners))
    lost: dict[int, list[LostAttempt]] = defaultdict(list)
    for runner, task, handler, verb in await tx.rows(
        sa.select(window.runner_id, window.task_id, window.handler, window.verb).where(*with_runner)
    ):
        lost[runner].append(LostAttempt(task, as_text(handler), as_text(verb)))
    return lost
