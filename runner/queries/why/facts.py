"""Facts: the data from which `why` derives the causes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.db.types import db_now
from runner.errors import InvalidSettings, TaskNotFound
from runner.model.stuck_row import StuckRow
from runner.model.task import Priority, State
from runner.policy.claim_facts import ClaimScope
from runner.policy.claim_order import STRICT, ClaimOrder, known_order
from runner.policy.claim_policy import CLAIM_POLICY, ORDERING
from runner.policy.lanes import Lane
from runner.policy.limits import LimitUsage
from runner.queries.audit import AuditRecord, audit
from runner.queries.counting import Count
from runner.queries.limits import limit_usages
from runner.queries.registries import Pauses, RegistryEntry, entry, pauses
from runner.queries.rows import as_int, as_text, from_row, moment, readable
from runner.queries.runners import RunnerRow, SlotKind, busy_slots, runner_of, runners
from runner.queries.signatures import chunk_sizes, stored_signature
from runner.queries.stuck_rows import stuck_on, with_sessions
from runner.queries.task.attempts import last_rule
from runner.queries.task.parents import Parent, parents
from runner.queries.task.steps import StepRow, pending_steps
from runner.queries.task_list.row import TaskRow, computed, one_task, task_rows
from runner.queries.why.ahead import ahead, arrivals, pace, suspects_ahead
from runner.store.claim.survey import MANY, survey
from runner.text.hosts import admits

CAP = 10_000
MET = "claim_"
"""The prefix of the columns that report whether a task meets each claim condition."""

NONE = Count()
TERMINATE = "terminate"
"""The audit verb of a terminate."""

OVERTAKING_CAP = 1_000
"""Maximum number of tasks to count when checking whether another priority helps."""


@dataclass(frozen=True, slots=True)
class CandidateRunner:
    """A live runner that claims tasks like this one.

    Args:
        pool: the kind of slots in which it runs such tasks.
        size: its slots for such tasks.
        running: the tasks in these slots, by handler.
    """

    runner: RunnerRow
    pool: SlotKind
    size: int
    running: Mapping[str, int]

    @property
    def free(self) -> int:
        """Its free slots; negative if it runs more tasks than it has slots."""
        return self.size - sum(self.running.values())

    @property
    def full(self) -> bool:
        """True if it has no free slot."""
        return self.free <= 0

    def serves(self, lane: Lane) -> bool:
        """True if these slots also serve a lane's tasks."""
        return self.runner.takes_of(lane) and self.runner.pool_of(lane.handler) == self.pool


UNMARKED = 0.5
"""Seconds from the claim of a task that starts immediately until its runner has recorded its start, at most."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a task and its surroundings.

    Args:
        refused: the names of the claim conditions that a live task does not meet.
        later: True if its due time is in the future, regardless of other obstacles.
        deadline_at: when its current attempt times out.
        queue: the registry entry of its queue; None if there is none.
        handler: the registry entry of its handler; None if no runner ever had it.
        limits: the limits of its queue and of its handler, with their use.
        candidates: the live runners that claim such tasks and are not draining.
        ahead: the due tasks that are claimed before it, assuming that nothing else blocks it.
        raised: the same for each higher priority, up to the first with no task ahead.
        pace: attempts that ended per second recently, of all tasks in these slots.
        arrivals: tasks per second that become due in these slots and are claimed before it.
        parents: its open dependencies.
        runner: the runner that executes it; None if none does, or if it is no longer registered.
        terminated: the audit entry of its termination; None if there is none.
        predecessor: the task whose turn it is, of those with its order key; None if it is its own turn.
        order: the order in which the runners of such tasks claim.
        rule: the rule for unexpected results that decided after its last attempt; "" without one.
        stuck: the verbs of live runners that could not change its row, with the reasons.
        codec: what encrypts the tasks of its handler, if no live runner has that; None without a codec.
        pending: the steps of a waiting task that are not done: its sleeps and waits, and its failed calls.
        started: True unless it was claimed a while ago, and no start is recorded.
        chunk: the maximum number of tasks of a chunk, if it has not started; None without chunks.
    """

    task: TaskRow
    at: datetime
    refused: frozenset[str]
    later: bool = False
    deadline_at: datetime | None = None
    queue: RegistryEntry | None = None
    handler: RegistryEntry | None = None
    limits: tuple[LimitUsage, ...] = ()
    runners: tuple[RunnerRow, ...] = ()
    candidates: tuple[CandidateRunner, ...] = ()
    ahead: Count = NONE
    raised: Mapping[int, Count] = field(default_factory=dict)
    pace: float = 0.0
    arrivals: float = 0.0
    parents: tuple[Parent, ...] = ()
    runner: RunnerRow | None = None
    terminated: AuditRecord | None = None
    predecessor: TaskRow | None = None
    order: ClaimOrder = STRICT
    bucket: int = 0
    rule: str = ""
    stuck: tuple[StuckRow, ...] = ()
    codec: str | None = None
    pending: tuple[StepRow, ...] = ()
    started: bool = True
    chunk: int | None = None

    @property
    def due(self) -> bool:
        """True if it waits, and its time has come."""
        return CLAIM_POLICY.due.name not in self.refused

    @property
    def suspect(self) -> bool:
        """True if it runs in isolation."""
        return CLAIM_POLICY.isolation.name in self.refused

    @property
    def alive(self) -> tuple[RunnerRow, ...]:
        """The runners whose lease is valid."""
        return tuple(runner for runner in self.runners if runner.alive)


async def read_facts(tx: Transaction, id: int, cap: int = CAP) -> Facts:
    """Read the data that decides whether and when a task runs.

    Args:
        tx: an open transaction; about twenty statements are executed, each along an index.
        cap: maximum number of tasks to count.

    Raises:
        TaskNotFound: neither the live table nor the history has a task with this id.
    """
    row = await _row(tx, id)
    facts = Facts(
        from_row(TaskRow, row),
        await clock(tx),
        frozenset(name.removeprefix(MET) for name, met in row.items() if name.startswith(MET) and not met),
        bool(row["later"]),
        moment(row.get("deadline_at")),
        bucket=as_int(row["bucket"]),
    )
    if facts.task.state in (State.WAITING, State.DEAD) and facts.task.attempt:
        facts = replace(facts, rule=await last_rule(tx, id, facts.task.attempt))
    match facts.task.state:
        case State.WAITING:
            facts = replace(facts, pending=tuple(await pending_steps(tx, id)))
            return await _of_waiting(tx, facts, None if facts.later else row["run_at"], cap)
        case State.BLOCKED:
            facts = replace(facts, parents=await parents(tx, id))
            return await _of_waiting(tx, facts, None, cap)
        case State.RUNNING:
            facts = replace(facts, runner=await runner_of(tx, facts.task.runner_id), runners=tuple(await runners(tx)))
            facts = replace(facts, stuck=await _stuck(tx, id, facts.runners))
            claimed_at = facts.task.claimed_at
            if row.get("started_at") is None and claimed_at and (facts.at - claimed_at).total_seconds() > UNMARKED:
                facts = replace(facts, started=False, chunk=await _chunk(tx, facts.task.handler))
    return replace(facts, terminated=await _terminated(tx, id))


async def _stuck(tx: Transaction, id: int, runners: Sequence[RunnerRow]) -> tuple[StuckRow, ...]:
    return tuple(await with_sessions(tx, [row for row in stuck_on(runners) if row.task == id]))


async def _row(tx: Transaction, id: int) -> sa.RowMapping:
    for table in (tx.tables.task, tx.tables.history):
        flags: dict[str, sa.ColumnElement[Any]] = {"later": table.c.run_at > db_now()}
        if table is tx.tables.task:
            met = CLAIM_POLICY.met(table.c, ClaimScope(tx.tables))
            flags |= {f"{MET}{name}": condition for name, condition in met.items()}
        labelled = (flag.label(name) for name, flag in flags.items())
        columns = [*readable(tx, table.c), *computed(tx.tables, table), *labelled]
        row = (await tx.execute(one_task(tx, table, id, columns))).mappings().one_or_none()
        if row is not None:
            return row
    raise TaskNotFound(id=id)


async def _of_waiting(tx: Transaction, facts: Facts, run_at: Any, cap: int) -> Facts:
    task = facts.task
    all_runners = tuple(await runners(tx))
    facts = replace(
        facts,
        queue=await entry(tx, tx.tables.queue, task.queue),
        handler=await entry(tx, tx.tables.handler, task.handler),
        limits=tuple(await limit_usages(tx, {"queue": task.queue, "handler": task.handler})),
        runners=all_runners,
        stuck=await _stuck(tx, task.id, all_runners),
    )
    candidates = claimants_of(all_runners, task.queue, task.handler, facts.bucket, task.hosts)
    running = await busy_slots(tx, [runner.id for runner in candidates])
    facts = replace(facts, candidates=as_candidates(candidates, task.handler, running))
    if not any(task.handler in runner.handlers for runner in facts.alive):
        facts = replace(facts, codec=await _codec(tx, task.handler))
    if ORDERING.name in facts.refused:
        facts = replace(facts, predecessor=await _predecessor(tx, task.id))
    if facts.suspect:
        return replace(facts, ahead=await suspects_ahead(tx, task.id, cap))
    lanes, complete = await _rivals(tx, facts)
    facts = replace(facts, order=order_of([each.runner for each in facts.candidates]))
    priority = facts.order.effective(task.priority, task.attempt > 0)
    tasks_ahead = await ahead(tx, task.id, run_at, priority, lanes, cap, facts.order)
    tasks_ahead = tasks_ahead._replace(more=tasks_ahead.more or not complete)
    raised = await _raised(tx, facts, run_at, lanes) if tasks_ahead.number else {}
    rate = await pace(tx, lanes)
    new = await arrivals(tx, lanes, priority, facts.order, rate) if tasks_ahead.number and rate else 0.0
    return replace(facts, ahead=tasks_ahead, raised=raised, pace=rate, arrivals=new)


async def _codec(tx: Transaction, handler: str) -> str | None:
    """The codec of a handler as its runners stored it last; None without one."""
    signature = await stored_signature(tx, handler)
    return signature and signature.codec


async def _chunk(tx: Transaction, handler: str) -> int | None:
    """The maximum number of tasks in a chunk of a handler; None without chunks."""
    return (await chunk_sizes(tx)).get(handler)


async def _predecessor(tx: Transaction, id: int) -> TaskRow | None:
    """The running task with the order key of a task, or the first one before it."""
    own, other = tx.tables.task.alias("own"), tx.tables.task.alias("other")
    running, earlier = ORDERING.running(other.c, own.c), ORDERING.earlier(other.c, own.c)
    predecessors = sa.select(other.c.id).where(own.c.id == id, sa.or_(running, earlier))
    ids = (await tx.execute(predecessors.order_by(running.desc(), other.c.id).limit(1))).scalars().all()
    return next(iter(await task_rows(tx, ids)), None)


async def _rivals(tx: Transaction, facts: Facts) -> tuple[list[Lane], bool]:
    """The lanes that compete for the same slots, and false if these are not all, because there are too many lanes."""
    task = facts.task
    priorities = range(Priority.LOWEST, Priority.HIGHEST + 1)
    own = [
        Lane(task.queue, task.handler, priority, task.hosts, retried)
        for priority in priorities
        for retried in (False, True)
    ]
    if not facts.candidates:
        return own, True
    current_pauses, heads = await pauses(tx), await survey(tx, most=MANY + 1)
    rivals = [head.lane for head in heads if head.wait <= 0 and _is_rival(head.lane, facts, current_pauses)]
    return list(dict.fromkeys([*own, *rivals])), len(heads) <= MANY


def _is_rival(lane: Lane, facts: Facts, current_pauses: Pauses) -> bool:
    """True if a lane competes for the same slots, assuming that the task's own queue and handler are not paused."""
    task, queue, handler = facts.task, as_text(lane.queue), as_text(lane.handler)
    if (queue in current_pauses.queues and queue != task.queue) or (
        handler in current_pauses.handlers and handler != task.handler
    ):
        return False
    return any(candidate.serves(lane) for candidate in facts.candidates)


def order_of(runners: Sequence[RunnerRow]) -> ClaimOrder:
    """The order of the first runner. A class of its own is unknown here, and counts as strict."""
    try:
        return (known_order(runners[0].claim_order) if runners else None) or STRICT
    except InvalidSettings:
        return STRICT


async def _raised(tx: Transaction, facts: Facts, run_at: Any, lanes: Sequence[Lane]) -> dict[int, Count]:
    counts: dict[int, Count] = {}
    task = facts.task
    for priority in range(task.priority + 1, Priority.HIGHEST + 1):
        effective = facts.order.effective(priority, task.attempt > 0)
        counts[priority] = await ahead(tx, task.id, run_at, effective, lanes, OVERTAKING_CAP, facts.order)
        if not counts[priority].number:
            break
    return counts


def claimants_of(
    runners: Sequence[RunnerRow], queue: str, handler: str, bucket: int, hosts: str = ""
) -> list[RunnerRow]:
    """The live runners that claim such tasks and are not draining."""
    return [
        runner
        for runner in runners
        if runner.alive
        and not runner.draining
        and runner.takes(queue, handler)
        and runner.takes_bucket(queue, bucket)
        and admits(hosts, runner.host)
    ]


def as_candidates(
    runners: Sequence[RunnerRow], handler: str, running: Mapping[int, Mapping[str, int]]
) -> tuple[CandidateRunner, ...]:
    """Add the running tasks, from `busy_slots`, to the runners that claim tasks of a handler."""
    return tuple(_candidate(runner, handler, running.get(runner.id, {})) for runner in runners)


def _candidate(runner: RunnerRow, handler: str, running: Mapping[str, int]) -> CandidateRunner:
    pool = runner.pool_of(handler)
    own_tasks = {name: number for name, number in running.items() if runner.pool_of(name) == pool}
    return CandidateRunner(runner, pool, runner.sizes[pool], own_tasks)


async def _terminated(tx: Transaction, id: int) -> AuditRecord | None:
    entries = await audit(tx, task_id=id)
    return next((entry for entry in entries if entry.verb == TERMINATE), None)
