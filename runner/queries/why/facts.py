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
from runner.policy.lanes import Head, Lane
from runner.policy.limits import LimitUsage
from runner.queries.audit import AuditRecord, audit
from runner.queries.counting import Count
from runner.queries.limits import limit_usages
from runner.queries.registries import Pauses, RegistryEntry, entry, pauses
from runner.queries.rows import as_int, as_text, from_row, moment, readable
from runner.queries.runners import RunnerRow, SlotKind, busy_slots, runners
from runner.queries.signatures import chunk_sizes, stored_signature
from runner.queries.stuck_rows import stuck_on
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
        stuck: the verbs of live runners that could not change its row, with the reasons as they stored them.
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
        tx: an open transaction; about twenty statements are executed, each along an index, in four round trips.
        cap: maximum number of tasks to count.

    Raises:
        TaskNotFound: neither the live table nor the history has a task with this id.
    """
    row, at, all_runners = await tx.gather(_row(tx, id), clock(tx), runners(tx))
    facts = Facts(
        from_row(TaskRow, row),
        at,
        frozenset(name.removeprefix(MET) for name, met in row.items() if name.startswith(MET) and not met),
        bool(row["later"]),
        moment(row.get("deadline_at")),
        runners=tuple(all_runners),
        bucket=as_int(row["bucket"]),
    )
    match facts.task.state:
        case State.WAITING | State.BLOCKED:
            run_at = None if facts.later or facts.task.state is State.BLOCKED else row["run_at"]
            facts = await _of_waiting(tx, facts, run_at, cap)
        case State.RUNNING:
            facts = replace(facts, runner=next((each for each in all_runners if each.id == facts.task.runner_id), None))
            claimed_at = facts.task.claimed_at
            if row.get("started_at") is None and claimed_at and (at - claimed_at).total_seconds() > UNMARKED:
                facts = replace(facts, started=False, chunk=await _chunk(tx, facts.task.handler))
            facts = replace(facts, terminated=await _terminated(tx, id))
        case _:
            rule, terminated = await tx.gather(_rule(tx, facts.task), _terminated(tx, id))
            return replace(facts, rule=rule, terminated=terminated)
    return replace(facts, stuck=tuple(each for each in stuck_on(all_runners) if each.task == id))


async def _rule(tx: Transaction, task: TaskRow) -> str:
    """The rule that decided after the last attempt; "" without one."""
    decided = task.attempt and task.state in (State.WAITING, State.DEAD)
    return await last_rule(tx, task.id, task.attempt) if decided else ""


async def _row(tx: Transaction, id: int) -> sa.RowMapping:
    live, past = await tx.gather(*(_rows(tx, table, id) for table in (tx.tables.task, tx.tables.history)))
    for row in (*live, *past):
        return row
    raise TaskNotFound(id=id)


async def _rows(tx: Transaction, table: sa.Table, id: int) -> Sequence[sa.RowMapping]:
    flags: dict[str, sa.ColumnElement[Any]] = {"later": table.c.run_at > db_now()}
    if table is tx.tables.task:
        met = CLAIM_POLICY.met(table.c, ClaimScope(tx.tables))
        flags |= {f"{MET}{name}": condition for name, condition in met.items()}
    labelled = (flag.label(name) for name, flag in flags.items())
    columns = [*readable(tx, table.c), *computed(tx.tables, table), *labelled]
    return (await tx.execute(one_task(tx, table, id, columns))).mappings().all()


async def _of_waiting(tx: Transaction, facts: Facts, run_at: Any, cap: int) -> Facts:
    task = facts.task
    (rule, pending, open_parents), (queue, handler, usages), (codec, predecessor), facts = await tx.gather(
        tx.gather(_rule(tx, task), _pending(tx, task), _parents(tx, task)),
        tx.gather(
            entry(tx, tx.tables.queue, task.queue),
            entry(tx, tx.tables.handler, task.handler),
            limit_usages(tx, {"queue": task.queue, "handler": task.handler}),
        ),
        tx.gather(_codec(tx, facts), _predecessor(tx, facts)),
        _with_rivals(tx, facts, run_at, cap),
    )
    return replace(
        facts,
        rule=rule,
        pending=tuple(pending),
        parents=open_parents,
        queue=queue,
        handler=handler,
        limits=tuple(usages),
        codec=codec,
        predecessor=predecessor,
    )


async def _pending(tx: Transaction, task: TaskRow) -> Sequence[StepRow]:
    return (await pending_steps(tx, [task.id]))[task.id] if task.state is State.WAITING else ()


async def _parents(tx: Transaction, task: TaskRow) -> tuple[Parent, ...]:
    return await parents(tx, task.id) if task.state is State.BLOCKED else ()


async def _with_rivals(tx: Transaction, facts: Facts, run_at: Any, cap: int) -> Facts:
    """Add the runners that claim such tasks, and the tasks that they claim before this one."""
    task = facts.task
    claimants = claimants_of(facts.runners, task.queue, task.handler, facts.bucket, task.hosts)
    if facts.suspect:
        running, count = await tx.gather(
            busy_slots(tx, [runner.id for runner in claimants]), suspects_ahead(tx, task.id, cap)
        )
        return replace(facts, candidates=as_candidates(claimants, task.handler, running), ahead=count)
    running, current_pauses, heads = await tx.gather(
        busy_slots(tx, [runner.id for runner in claimants]),
        pauses(tx),
        survey(tx, most=MANY + 1) if claimants else tx.gather(),
    )
    facts = replace(facts, candidates=as_candidates(claimants, task.handler, running), order=order_of(claimants))
    lanes = _rivals(facts, current_pauses, heads)
    priority = facts.order.effective(task.priority, task.attempt > 0)
    tasks_ahead, rate = await tx.gather(ahead(tx, task.id, run_at, priority, lanes, cap, facts.order), pace(tx, lanes))
    tasks_ahead = tasks_ahead._replace(more=tasks_ahead.more or len(heads) > MANY)
    facts = replace(facts, ahead=tasks_ahead, pace=rate)
    if not tasks_ahead.number:
        return facts
    raised, new = await tx.gather(
        _raised(tx, facts, run_at, lanes),
        arrivals(tx, lanes, priority, facts.order, rate),
    )
    return replace(facts, raised=raised, arrivals=new if rate else 0.0)


async def _codec(tx: Transaction, facts: Facts) -> str | None:
    """The codec of a handler that no live runner has, as its runners stored it last; None without one."""
    if any(facts.task.handler in runner.handlers for runner in facts.alive):
        return None
    signature = await stored_signature(tx, facts.task.handler)
    return signature and signature.codec


async def _chunk(tx: Transaction, handler: str) -> int | None:
    """The maximum number of tasks in a chunk of a handler; None without chunks."""
    return (await chunk_sizes(tx)).get(handler)


async def _predecessor(tx: Transaction, facts: Facts) -> TaskRow | None:
    """The running task with the order key of a task, or the first one before it; None if it is its own turn."""
    if ORDERING.name not in facts.refused:
        return None
    own, other = tx.tables.task.alias("own"), tx.tables.task.alias("other")
    running, earlier = ORDERING.running(other.c, own.c), ORDERING.earlier(other.c, own.c)
    predecessors = sa.select(other.c.id).where(own.c.id == facts.task.id, sa.or_(running, earlier))
    ids = (await tx.execute(predecessors.order_by(running.desc(), other.c.id).limit(1))).scalars().all()
    return next(iter(await task_rows(tx, ids)), None)


def _rivals(facts: Facts, current_pauses: Pauses, heads: Sequence[Head]) -> list[Lane]:
    """The lanes that compete for the same slots."""
    task = facts.task
    own = [
        Lane(task.queue, task.handler, priority, task.hosts, retried)
        for priority in range(Priority.LOWEST, Priority.HIGHEST + 1)
        for retried in (False, True)
    ]
    rivals = [head.lane for head in heads if head.wait <= 0 and _is_rival(head.lane, facts, current_pauses)]
    return list(dict.fromkeys([*own, *rivals]))


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
    task, order = facts.task, facts.order
    priorities = range(task.priority + 1, Priority.HIGHEST + 1)
    effective = [order.effective(priority, task.attempt > 0) for priority in priorities]
    steps = (ahead(tx, task.id, run_at, each, lanes, OVERTAKING_CAP, order) for each in effective)
    counts = dict(zip(priorities, await tx.gather(*steps), strict=True))
    first = next((priority for priority, count in counts.items() if not count.number), Priority.HIGHEST)
    return {priority: count for priority, count in counts.items() if priority <= first}


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
