"""why: why a task is not running, or how it ended, as sentences.

A condition of the claim explains itself: the sentences about waiting tasks are in runner.policy.claim_conditions, and
those about limits in runner.policy.limits.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from shlex import quote
from typing import Annotated

import sqlalchemy as sa

from runner.db.row_locks import locks_of, table_locks
from runner.db.transaction import Transaction
from runner.errors import InvalidInput, TaskNotFound
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.schedule import OVERLAPS, overlap_effect
from runner.model.stuck_row import HeldLock, StuckRow
from runner.model.task import Shown, State
from runner.policy.claim_conditions import AttemptsLeft, NotExpired, used_up
from runner.policy.claim_facts import CommonCause
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.limits import UNLIMITED, LimitUsage, SharedLimits
from runner.queries.breakers import breakers
from runner.queries.health import reads_audit
from runner.queries.past.as_of import CANDIDATES, task_as_of, tasks_as_of
from runner.queries.past.reconstruction import UNRECORDED as WAITING_OR_RUNNING
from runner.queries.past.reconstruction import PastTask
from runner.queries.registries import RegistryEntry, registries_as_of
from runner.queries.rows import moment
from runner.queries.runners import OWN_SLOTS, runner_names
from runner.queries.schedules import TaskSchedule, schedule_of
from runner.queries.stuck_rows import with_sessions
from runner.queries.task.parents import Parent
from runner.queries.task_list.row import TaskRow
from runner.queries.why.blockers import blockers
from runner.queries.why.facts import Facts, read_facts
from runner.queries.why.remedies import (
    Cause,
    RelatedView,
    Remedy,
    at_runner,
    blocked_runner,
    describe,
    remedies,
    stuck_cause,
)
from runner.text.document import JsonProperty, Treatment
from runner.text.formatting import age, sentence_of, since, when
from runner.text.runner_name import runner_name
from runner.text.sanitize import one_line
from runner.text.stuck_row import lock_advice, lock_text
from runner.text.times import format_moment


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to "why is this task in this state?".

    Args:
        verdict: a one-sentence summary.
        causes: the reasons, most important first.
        remedies: alternative ways to let the task start now.
        word: the state of the task in words, if it is not known exactly; only at a past moment.
    """

    task: TaskRow
    at: datetime
    verdict: str
    causes: tuple[Cause, ...]
    remedies: Annotated[tuple[Remedy, ...], Treatment.HIDDEN] = ()
    word: str = ""

    @JsonProperty
    def would_start_if(self) -> tuple[Remedy, ...]:
        """Alternative changes, each of which lets the task start now."""
        return self.remedies


async def why(tx: Transaction, id: int, zone: tzinfo) -> Why:
    """Find out why a task is not running, or how it ended.

    Args:
        tx: an open transaction; see `read_facts`.

    Raises:
        TaskNotFound: no task has this id.
    """
    facts, schedule, locks = await tx.gather(read_facts(tx, id), schedule_of(tx, id), table_locks(tx))
    facts = replace(facts, stuck=tuple(await with_sessions(tx, facts.stuck)))
    reasons = [*causes(facts, zone), *([_scheduled(schedule, facts, zone)] if schedule else [])]
    if not facts.stuck and not facts.task.state.final:
        locks += await _registry_locks(tx, facts.task)
        if long_locks := [lock for lock in locks if lock.is_long]:
            reasons = [*map(_locked, long_locks), *(reason for reason in reasons if reason.kind != "now")]
    return Why(facts.task, facts.at, verdict(facts), tuple(reasons), remedies(facts))


async def _registry_locks(tx: Transaction, task: TaskRow) -> list[HeldLock]:
    """The locks of the rows of a task's queue and handler, for which a claim of the task waits."""
    names = ((tx.tables.queue.c.name, task.queue), (tx.tables.handler.c.name, task.handler))
    locks = []
    for column, name in names if task.state is State.WAITING else ():
        sessions = await locks_of(tx, column, [name])
        locks += [HeldLock(column.table.name, name, session) for session in sessions.values()]
    return locks


def _locked(lock: HeldLock) -> Cause:
    """A lock that claims under a limit, or settles, wait for."""
    text = f"{lock_text(lock)}. Changes of it wait, and so may this task."
    return Cause("lock", f"{text[:1].upper()}{text[1:]}", lock_advice(lock.session))


SCHEDULED = "schedule"
"""The kind of a cause that names the schedule of a task."""


def _scheduled(schedule: TaskSchedule, facts: Facts, zone: tzinfo) -> Cause:
    """The schedule that the task comes from, which may be the reason why it waits."""
    name = one_line(schedule.id)
    cause = "an operator ran it" if schedule.manual else f"the run of {format_moment(schedule.tick, zone)}"
    overlap = f"; {overlap_effect(schedule.overlap)}" if facts.parents and schedule.overlap in OVERLAPS else ""
    text = f"Schedule {name} submitted it: {cause}{overlap}."
    return Cause(SCHEDULED, text, view=RelatedView("schedules", schedule.id))


def verdict(facts: Facts) -> str:
    """One sentence that introduces the causes."""
    task = facts.task
    name = f"Task {task.id} {one_line(task.handler)}"
    match task.shown:
        case Shown.RUNNING if _ended(facts) is not None:
            return f"{name} has ended, and its outcome is not written."
        case Shown.RUNNING:
            return f"{name} is running."
        case Shown.LOST:
            return f"{name} is running, but its runner is lost."
        case Shown.SUCCEEDED:
            return f"{name} has succeeded."
        case Shown.DEAD | Shown.CANCELLED:
            return f"{name} is {task.shown}."
    return f"{name} is not running because:"


def causes(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    """Derive the causes from the facts.

    Args:
        facts: the result of `read_facts`.
    """
    for row in facts.stuck:
        yield stuck_cause(row, facts.at, facts.runner)
    match facts.task.state:
        case State.WAITING:
            yield from blockers(facts, zone)
            if facts.rule:
                text = f"After attempt {facts.task.attempt} a rule decided: {one_line(facts.rule)}."
                yield Cause("rule", text, view=RelatedView("task", str(facts.task.id)))
        case State.BLOCKED:
            yield from _blocked(facts)
        case State.RUNNING:
            yield from _running(facts, zone)
        case State.SUCCEEDED | State.DEAD | State.CANCELLED:
            yield _final_cause(facts)


def _blocked(facts: Facts) -> Iterator[Cause]:
    for parent in facts.parents:
        yield waits_for(parent)
    if not facts.parents:
        yield no_dependency(facts.task.id)


def no_dependency(id: int) -> Cause:
    """The cause of a task that is blocked without a dependency."""
    text = "It is blocked, but has no open row in task_dependency."
    common = CommonCause("the task is blocked without an open dependency", "runner unblock FILTER")
    return Cause(State.BLOCKED, text, f"runner unblock {id}", common=common)


def waits_for(parent: Parent) -> Cause:
    """The cause of a task with an open dependency."""
    if parent.task is not None:
        task = parent.task
        failed = task.state in (State.DEAD, State.CANCELLED)
        advice = f"runner retry {task.id}" if failed else f"runner why {task.id}"
        effect = _effect(parent) if failed else ""
        verb = "comes after" if parent.in_order else "depends on" if parent.step is None else "waits for"
        key = " in their order key" if parent.in_order else _called(parent)
        name = one_line(task.handler)
        text = f"It {verb} task {task.id} {name}{key}, which is {task.shown}{effect}."
        same = Filter((Term("handler", Operator.EQ, name), Term("state", Operator.IN, (task.shown.value,))))
        retry = f"runner retry {quote(str(same))}" if failed else ""
        common = CommonCause(f"the task {verb} a task of {name} that is {task.shown}", retry)
        return Cause(State.BLOCKED, text, advice, RelatedView("task", str(task.id)), common)
    if parent.id is not None:
        text = f"It depends on task {parent.id}, which no longer exists."
        advice = f"runner unblock {parent.child} --dependency {parent.dependency_id}"
        return Cause(State.BLOCKED, text, advice, common=CommonCause("the task depends on one that no longer exists"))
    name = f"{one_line(parent.handler or '?')} with key {one_line(parent.key or '?')}"
    common = CommonCause(f"the task depends on one of {one_line(parent.handler or '?')} that is not submitted yet")
    return Cause(State.BLOCKED, f"It depends on a task of {name}, which has not been submitted yet.", common=common)


def _called(parent: Parent) -> str:
    return "" if parent.step is None else f" (call {one_line(parent.step)})"


def _effect(parent: Parent) -> str:
    if parent.on_failure == "cancel":
        return "; it waits until that task is retried" if parent.judged else "; it will be cancelled in a moment"
    return "; it waits until that task succeeds"


def _running(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    task, runner = facts.task, facts.runner
    if task.shown is Shown.LOST:
        yield _lost(facts)
    elif runner is not None:
        limit = f"; its deadline is {when(facts.deadline_at, facts.at, zone)}" if facts.deadline_at else ""
        attempt = f"attempt {task.attempt}{f' of {task.max_attempts}' if task.max_attempts else ''}"
        duration = since(task.claimed_at, facts.at)
        pool = runner.pool_of(task.handler)
        process = " in a process of its own" if pool == "processes" else ""
        process = process if pool in OWN_SLOTS else f" in executor {one_line(pool)}"
        text = f"It has been running on {describe(runner)}{process} for {duration}, {attempt}{limit}."
        if not facts.started:
            others = f" or for more tasks of its chunk, up to {facts.chunk}" if facts.chunk else ""
            text = f"{describe(runner)} claimed it {duration} ago, {attempt}; it waits there for a slot{others}."
        if _ended(facts) is not None:
            text = f"It ran on {describe(runner)}{process}, {attempt}, started {duration} ago."
        yield Cause(State.RUNNING, text, view=at_runner(runner))
        if runner.blocked_for:
            yield blocked_runner(runner)
    if task.cancel_requested:
        yield _termination(facts)


def _ended(facts: Facts) -> StuckRow | None:
    """The stuck row of an attempt that has ended."""
    return next((row for row in facts.stuck if row.verb == "settle"), None)


def _termination(facts: Facts) -> Cause:
    task, runner, request = facts.task, facts.runner, facts.terminated
    by = f" by {one_line(request.operator)} {since(request.at, facts.at)} ago" if request else ""
    text = f"Termination was requested{by}"
    notified = request and request.at and runner and (facts.at - request.at).total_seconds() > runner.heartbeat_age
    if task.shown is Shown.LOST or runner is None:
        return Cause("terminate", f"{text}; the task is cancelled when a live runner rescues it.")
    if not notified:
        return Cause("terminate", f"{text}; its runner learns about it with its next heartbeat.")
    if task.handler in runner.in_processes:
        return Cause("terminate", f"{text}, and its runner knows: the process of the handler ends within a second.")
    if runner.pool_of(task.handler) not in OWN_SLOTS:
        asked = "a coroutine is cancelled at its next await, and a function can look at ctx.cancelled"
        return Cause("terminate", f"{text}, and its executor knows: {asked}.")
    if task.handler not in runner.threaded:
        return Cause("terminate", f"{text}, and its runner knows: the handler is cancelled at its next await.")
    limit = "at its deadline" if facts.deadline_at else "when its runner stops"
    return Cause(
        "terminate",
        f"{text}, and its runner knows. The handler is a plain function in a thread, which cannot be stopped: it ends "
        f"when the function returns or checks ctx.cancelled, and keeps its slot until then. It is abandoned {limit}, "
        "not before.",
    )


def _lost(facts: Facts) -> Cause:
    task, runner = facts.task, facts.runner
    if runner is None:
        loss = f"Its runner {task.runner_id if task.runner_id is not None else '?'} is no longer registered."
    else:
        lease = f"its lease expired {age(-runner.lease)} ago"
        loss = f"Its {describe(runner)} has sent no heartbeat for {age(runner.heartbeat_age)}; {lease}."
    if facts.alive:
        text = f"{loss} A live runner will rescue the task within seconds."
        return Cause(Shown.LOST, text, view=at_runner(runner))
    return Cause(Shown.LOST, f"{loss} No live runner can rescue the task.", "start a runner", at_runner(runner))


def _final_cause(facts: Facts) -> Cause:
    task = facts.task
    ago = f"{since(task.finished_at, facts.at)} ago"
    attempt = f"attempt {task.attempt}{f' of {task.max_attempts}' if task.max_attempts else ''}"
    match task.state:
        case State.SUCCEEDED:
            return Cause(State.SUCCEEDED, f"It succeeded {ago}, on {attempt}.")
        case State.CANCELLED:
            request = facts.terminated
            by = f" by {one_line(request.operator)}" if request else ""
            text = sentence_of(request.reason if request else task.error)
            verb = "terminated" if request else State.CANCELLED
            return Cause(State.CANCELLED, f"It was {verb} {ago}{by}: {text}", f"runner retry {task.id}")
    rule = f" The rule: {one_line(facts.rule)}." if facts.rule else ""
    text = f"It died {ago}, on {attempt}: {sentence_of(task.error)}{rule}"
    return Cause(State.DEAD, text, f"runner retry {task.id}", RelatedView("task", str(task.id)))


MOST_PARENTS = 10
"""Parents to reconstruct at a past moment."""

UNRECORDED = "unrecorded"
"""The kind of a cause that names facts of a past moment that the database does not have."""


async def why_as_of(tx: Transaction, id: int, at: datetime, zone: tzinfo) -> Why:
    """Find out why a task was not running at a past moment, by the conditions whose facts are known for then.

    Args:
        at: the moment, aware.

    Returns:
        The causes without advice. The last one names the facts that are not recorded. See `task_as_of` for errors.
    """
    past = await task_as_of(tx, id, at)
    task = past.task
    begin = f"Task {id} {one_line(task.handler)} was {past.word} at {format_moment(at, zone)}"
    causes: list[Cause] = []
    match task.state:
        case State.WAITING:
            causes = await _waiting_as_of(tx, past, at, zone)
            begin += " and was not running because:" if len(causes) > 1 else ". No recorded condition held it back."
        case State.BLOCKED:
            begin += " because:"
            causes = [await _parent_as_of(tx, parent, at) for parent in past.parents[:MOST_PARENTS]]
        case State.RUNNING:
            name = _name_as_of(past, await runner_names(tx))
            run = f"Attempt {task.attempt} had been running on {name} for {since(task.claimed_at, at)}."
            lease = "Not recorded for that time: whether the lease of its runner was valid."
            causes = [Cause(State.RUNNING, run), Cause(UNRECORDED, lease)]
        case State.SUCCEEDED | State.DEAD | State.CANCELLED:
            error = f": {sentence_of(task.error)}" if task.error else "."
            causes = [Cause(task.state, f"It had ended {since(task.finished_at, at)} earlier{error}")]
    text = begin if begin.endswith((":", ".")) else f"{begin}."
    return Why(task, at, text, tuple(causes), word="" if past.certain else past.word)


async def _waiting_as_of(tx: Transaction, past: PastTask, at: datetime, zone: tzinfo) -> list[Cause]:
    task, unknown = past.task, ["the live runners and their free slots", "the tasks ahead of it"]
    if past.word == WAITING_OR_RUNNING:
        unknown.insert(0, "a run that its runner postponed or returned")
    elif task.run_at is None:
        unknown.insert(0, "its due time, which a later retry has replaced")
    entries, usages = [], []
    for kind, name in (("queue", task.queue), ("handler", task.handler)):
        registries = await registries_as_of(tx, at, kind, audited=await reads_audit(tx))
        pause, limits = registries.get(name, (None, UNLIMITED))
        entries.append(RegistryEntry(name, pause, limits))
        if limits.counts_running:
            usages.append(await _usage_as_of(tx, at, kind, name, limits._replace(rate=None)))
        if limits.rate is not None:
            unknown.append(f"the use of the rate limit of {kind} {one_line(name)}")
    later = task.run_at is not None and task.run_at > at
    expired = task.expires_at is not None and task.expires_at <= at
    spent = used_up(task.attempt, task.max_attempts)
    conditions = {CLAIM_POLICY.due.name: later, NotExpired.name: expired, AttemptsLeft.name: spent}
    refused = frozenset(name for name, is_refused in conditions.items() if is_refused)
    queue, handler = entries
    facts = Facts(task, at, refused, later, queue=queue, handler=handler, limits=tuple(usages))
    causes = [Cause(each.kind, each.text) for each in CLAIM_POLICY.explain(facts, zone)]
    name = one_line(task.handler)
    opened = await _breaker_as_of(tx, task.handler, at)
    if isinstance(opened, datetime):
        causes.append(Cause("breaker", f"The breaker of {name} had been open for {since(opened, at)}."))
    elif opened is None:
        unknown.append(f"the breaker of {name}")
    return [*causes, Cause(UNRECORDED, f"Not recorded for that time: {', '.join(unknown)}.")]


async def _usage_as_of(tx: Transaction, at: datetime, kind: str, name: str, limits: SharedLimits) -> LimitUsage:
    of_place = Filter((Term("state", Operator.EQ, State.RUNNING.value), Term(kind, Operator.EQ, name)))
    page = await tasks_as_of(tx, at, of_place, limit=CANDIDATES)
    running = Counter(past.task.tenant or "" for past in page.tasks)
    names = await runner_names(tx)
    holders = Counter(_name_as_of(past, names) for past in page.tasks)
    return LimitUsage(kind, name, limits, running=dict(running), holders=dict(holders.most_common()))


def _name_as_of(past: PastTask, names: Mapping[int, str]) -> str:
    """The runner of a task at a moment, which may have ended since; its process id is unknown if it was pruned."""
    id, host = past.task.runner_id, past.task.host
    name = names.get(id) if id is not None else None
    return f"runner {id} ({name})" if name else runner_name(id, host)


async def _breaker_as_of(tx: Transaction, handler: str, at: datetime) -> datetime | bool | None:
    """When the breaker that was open at a moment had opened; False if it was closed, None if that is unknown.

    Its row has only the last opening and the last close.
    """
    row = next(iter(await breakers(tx, handler)), None)
    if row is None:
        return False
    table = tx.tables.handler.c
    column = tx.dialect.readable_time(table.breaker_opened_at)
    opened, closed = moment(await tx.scalar(sa.select(column).where(table.name == handler))), row.closed_at
    if opened is not None and opened <= at and (row.state is not None or (closed is not None and closed > at)):
        return opened
    if opened is None or opened <= at:
        return False
    return False if closed is not None and closed <= at else None


async def _parent_as_of(tx: Transaction, id: int | None, at: datetime) -> Cause:
    if id is None:
        return Cause(State.BLOCKED, "It depended on a task named by handler and key.")
    try:
        parent = await task_as_of(tx, id, at)
    except (TaskNotFound, InvalidInput):
        return Cause(State.BLOCKED, f"It depended on task {id}, which is unknown for that time.")
    text = f"It depended on task {id} {one_line(parent.task.handler)}, which was {parent.word}."
    return Cause(State.BLOCKED, text, view=RelatedView("task", str(id)))
