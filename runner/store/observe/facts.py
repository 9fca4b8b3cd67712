"""facts: everything that decides whether and when a task runs, read in one go; `why` draws the conclusions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.columns import db_now
from runner.errors import TaskNotFound
from runner.policy.selection import Lane
from runner.policy.wish import Wish
from runner.schema import is_state
from runner.store.eligible import has_attempts_left, is_due, is_suspect
from runner.store.observe.ahead import ahead, pace, suspects_ahead
from runner.store.observe.audit import Audited, audit
from runner.store.observe.legible import clock, legible, moment, words
from runner.store.observe.parents import Parent, parents
from runner.store.observe.pauses import Pauses, Registered, entry, pauses
from runner.store.observe.runners import RunnerRow, runner_of, runners
from runner.store.observe.tallies import Count
from runner.store.observe.tasks import TaskRow, one_task, shown_state, task_row
from runner.store.survey import survey
from runner.store.transaction import Transaction
from runner.task import Priority, State

CAP = 10_000
NONE = Count()
DRAIN = str(Wish(drain=True))
"""What a runner is asked to do that is to claim nothing more."""

TERMINATE = "terminate"
"""What stands in the audit when an operator has asked for the end of a task."""

MOST_OVERTAKING = 1_000
"""Tasks that are counted at most to tell whether another priority would be enough."""

MOST_HELD = 10_000
"""Tasks in runners' hands that are looked at, to tell by whom the slots are taken."""


@dataclass(frozen=True, slots=True)
class Taker:
    """A live runner that claims such tasks.

    Args:
        runner: the runner.
        threads: such tasks run in its threads, and not on its event loop.
        size: its slots for such tasks.
        held: what it has in hand for these slots, by handler.
    """

    runner: RunnerRow
    threads: bool
    size: int
    held: Mapping[str, int]

    @property
    def free(self) -> int:
        """Its slots that nothing is in hand for; negative while it has more in hand than slots."""
        return self.size - sum(self.held.values())

    @property
    def full(self) -> bool:
        """True while it has no slot for another one."""
        return self.free <= 0

    def serves(self, lane: Lane) -> bool:
        """Tell whether these slots also serve the tasks of a lane."""
        return self.runner.takes(lane.queue, lane.handler) and (lane.handler in self.runner.threaded) is self.threads


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a task and about what it needs.

    Args:
        task: the task.
        at: the database's time.
        due: True when its time has come.
        attempts_left: False when a claim passes over it, for it has used up its attempts.
        suspect: True when it is run apart from others.
        later: True when its time has not come, whatever else keeps it.
        deadline_at: when its present attempt has to be over.
        queue: what the registry says of its queue; None when nothing.
        handler: what the registry says of its handler; None when no runner has ever known it.
        runners: all that are registered.
        takers: the live ones that claim such tasks, and were not asked to drain.
        ahead: due tasks that are claimed before it, if nothing but them and the slots stands in its way.
        raised: the same for higher priorities that it might have, up to the first that nothing goes before.
        pace: attempts that ended in a second lately, of all that these slots serve.
        parents: what it still waits for.
        runner: the runner that has it in hand; None when none has, or that one is not registered any more.
        terminated: who asked for its end; None when nobody did.
    """

    task: TaskRow
    at: datetime
    due: bool
    attempts_left: bool
    suspect: bool
    later: bool = False
    deadline_at: datetime | None = None
    queue: Registered | None = None
    handler: Registered | None = None
    runners: tuple[RunnerRow, ...] = ()
    takers: tuple[Taker, ...] = ()
    ahead: Count = NONE
    raised: Mapping[int, Count] = field(default_factory=dict)
    pace: float = 0.0
    parents: tuple[Parent, ...] = ()
    runner: RunnerRow | None = None
    terminated: Audited | None = None

    @property
    def alive(self) -> tuple[RunnerRow, ...]:
        """The runners whose lease holds."""
        return tuple(runner for runner in self.runners if runner.alive)


async def facts(tx: Transaction, id: int, cap: int = CAP) -> Facts:
    """Read everything that decides whether and when a task runs.

    Args:
        tx: an open transaction; about fifteen statements are executed, each along an index.
        id: the task's.
        cap: the most tasks to count.

    Raises:
        TaskNotFound: there is none with this id, neither live nor in the history.
    """
    row = await _row(tx, id)
    known = Facts(
        task_row(row),
        await clock(tx),
        bool(row["due"]),
        bool(row["attempts_left"]),
        bool(row["suspect"]),
        bool(row["later"]),
        moment(row.get("deadline_at")),
    )
    match known.task.state:
        case State.WAITING:
            return await _of_waiting(tx, known, None if known.later else row["run_at"], cap)
        case State.BLOCKED:
            known = replace(known, parents=await parents(tx, id))
            return await _of_waiting(tx, known, None, cap)
        case State.RUNNING:
            known = replace(known, runner=await runner_of(tx, known.task.runner_id), runners=tuple(await runners(tx)))
    return replace(known, terminated=await _terminated(tx, id))


async def _row(tx: Transaction, id: int) -> sa.RowMapping:
    for table in (tx.tables.task, tx.tables.history):
        asked: dict[str, sa.ColumnElement[Any]] = {
            "shown": shown_state(tx.tables, table),
            "due": is_due(table),
            "attempts_left": has_attempts_left(table),
            "suspect": is_suspect(table),
            "later": table.c.run_at > db_now(),
        }
        columns = [*legible(tx, table.c), *(answer.label(name) for name, answer in asked.items())]
        row = (await tx.execute(one_task(tx, table, id, columns))).mappings().one_or_none()
        if row is not None:
            return row
    raise TaskNotFound(id=id)


async def _of_waiting(tx: Transaction, known: Facts, run_at: Any, cap: int) -> Facts:
    task = known.task
    registered = tuple(await runners(tx))
    known = replace(
        known,
        queue=await entry(tx, tx.tables.queue, task.queue),
        handler=await entry(tx, tx.tables.handler, task.handler),
        runners=registered,
        takers=await _takers(tx, registered, task),
    )
    if known.suspect:
        return replace(known, ahead=await suspects_ahead(tx, task.id, cap))
    lanes = await _rivals(tx, known)
    before = await ahead(tx, task.id, run_at, task.priority, lanes, cap)
    raised = await _raised(tx, task, run_at, lanes) if before.number else {}
    return replace(known, ahead=before, raised=raised, pace=await pace(tx, lanes))


async def _rivals(tx: Transaction, known: Facts) -> list[Lane]:
    """The due lanes that want the same slots."""
    still = await pauses(tx)
    return [head.lane for head in await survey(tx) if head.wait <= 0 and _is_rival(head.lane, known, still)]


def _is_rival(lane: Lane, known: Facts, still: Pauses) -> bool:
    """Tell whether a lane wants the same slots once the task's own queue and handler are not paused any more.

    Where nobody claims such tasks, it is their own queue and handler: a runner that takes just these can be started.
    """
    task, queue, handler = known.task, words(lane.queue), words(lane.handler)
    if (queue in still.queues and queue != task.queue) or (handler in still.handlers and handler != task.handler):
        return False
    if known.takers:
        return any(taker.serves(lane) for taker in known.takers)
    return (queue, handler) == (task.queue, task.handler)


async def _raised(tx: Transaction, task: TaskRow, run_at: Any, lanes: Sequence[Lane]) -> dict[int, Count]:
    found: dict[int, Count] = {}
    for priority in range(task.priority + 1, Priority.HIGHEST + 1):
        found[priority] = await ahead(tx, task.id, run_at, priority, lanes, MOST_OVERTAKING)
        if not found[priority].number:
            break
    return found


async def _takers(tx: Transaction, registered: Sequence[RunnerRow], task: TaskRow) -> tuple[Taker, ...]:
    takers = [one for one in registered if one.alive and one.wish != DRAIN and one.takes(task.queue, task.handler)]
    held = await _held(tx, [runner.id for runner in takers])
    return tuple(_taker(runner, task.handler, held[runner.id]) for runner in takers)


def _taker(runner: RunnerRow, handler: str, held: Mapping[str, int]) -> Taker:
    threads = handler in runner.threaded
    alike = {name: number for name, number in held.items() if (name in runner.threaded) is threads}
    return Taker(runner, threads, runner.threads if threads else runner.capacity - runner.threads, alike)


async def _held(tx: Transaction, ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Count what runners have in hand by handler, along the index of running tasks."""
    task = tx.tables.task.c
    mine = is_state(task.state, State.RUNNING) & tx.dialect.one_of(task.runner_id, ids)
    window = sa.select(task.runner_id, task.handler).where(mine).limit(MOST_HELD).subquery()
    groups = (window.c.runner_id, window.c.handler)
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for runner_id, handler, number in await tx.rows(sa.select(*groups, sa.func.count()).group_by(*groups)):
        held[runner_id][words(handler)] = number
    return held


async def _terminated(tx: Transaction, id: int) -> Audited | None:
    entries = await audit(tx, task_id=id)
    return next((entry for entry in entries if entry.verb == TERMINATE), None)
