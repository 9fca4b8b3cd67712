"""why: why a task is not running, or how it ended, as sentences.

A condition of the claim explains itself: the sentences about waiting tasks are in runner.policy.claim_conditions, and
those about limits in runner.policy.limits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo
from shlex import quote

from runner.db.transaction import Transaction
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.schedule import OVERLAPS, overlap_effect
from runner.model.task import Shown, State
from runner.policy.claim_facts import CommonCause
from runner.queries.schedules import TaskSchedule, schedule_of
from runner.queries.task.parents import Parent
from runner.queries.task_list.row import TaskRow
from runner.queries.why.blockers import blockers
from runner.queries.why.facts import Facts, read_facts
from runner.queries.why.remedies import Cause, RelatedView, Remedy, at_runner, blocked_runner, describe, remedies
from runner.text.formatting import age, sentence_of, since, when
from runner.text.sanitize import one_line
from runner.text.times import format_moment


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to "why is this task in this state?".

    Args:
        task: the task.
        at: the database's time.
        verdict: a one-sentence summary.
        causes: the reasons, most important first.
        remedies: alternative ways to let the task start now.
    """

    task: TaskRow
    at: datetime
    verdict: str
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...] = ()


async def why(tx: Transaction, id: int, zone: tzinfo) -> Why:
    """Find out why a task is not running, or how it ended.

    Args:
        tx: an open transaction; see `read_facts`.
        id: the task's id.
        zone: the time zone of times in the text.

    Raises:
        TaskNotFound: no task has this id.
    """
    facts = await read_facts(tx, id)
    schedule = await schedule_of(tx, id)
    reasons = [*causes(facts, zone), *([_scheduled(schedule, facts, zone)] if schedule else [])]
    return Why(facts.task, facts.at, verdict(facts), tuple(reasons), remedies(facts))


def _scheduled(schedule: TaskSchedule, facts: Facts, zone: tzinfo) -> Cause:
    """The schedule that the task comes from, which may be the reason why it waits."""
    name = one_line(schedule.id)
    cause = "an operator ran it" if schedule.manual else f"the run of {format_moment(schedule.tick, zone)}"
    overlap = f"; {overlap_effect(schedule.overlap)}" if facts.parents and schedule.overlap in OVERLAPS else ""
    text = f"Schedule {name} submitted it: {cause}{overlap}."
    return Cause("schedule", text, f"runner schedules show {quote(schedule.id)}")


def verdict(facts: Facts) -> str:
    """One sentence that introduces the causes."""
    task = facts.task
    name = f"Task {task.id} {one_line(task.handler)}"
    match task.shown:
        case Shown.RUNNING:
            return f"{name} is running."
        case Shown.LOST:
            return f"{name} is running, but its runner is lost."
        case Shown.SUCCEEDED | Shown.DEAD | Shown.CANCELLED:
            return f"{name} is {task.shown}."
    return f"{name} is not running because:"


def causes(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    """Derive the causes from the facts.

    Args:
        facts: the result of `read_facts`.
        zone: the time zone of times in the text.
    """
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
            yield _ended(facts)


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
        verb = "comes after" if parent.in_order else "depends on"
        key = " in their order key" if parent.in_order else ""
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


def _effect(parent: Parent) -> str:
    if parent.on_failure == "cancel":
        return "; it will be cancelled in a moment"
    return "; it waits until that task succeeds"


def _running(facts: Facts, zone: tzinfo) -> Iterator[Cause]:
    task, runner = facts.task, facts.runner
    if task.shown is Shown.LOST:
        yield _lost(facts)
    elif runner is not None:
        limit = f"; its deadline is {when(facts.deadline_at, facts.at, zone)}" if facts.deadline_at else ""
        attempt = f"attempt {task.attempt}{f' of {task.max_attempts}' if task.max_attempts else ''}"
        duration = since(task.claimed_at, facts.at)
        process = " in a process of its own" if task.handler in runner.in_processes else ""
        text = f"It has been running on {describe(runner)}{process} for {duration}, {attempt}{limit}."
        yield Cause(State.RUNNING, text, view=at_runner(runner))
        if runner.blocked_for:
            yield blocked_runner(runner)
    if task.cancel_requested:
        yield _termination(facts)


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


def _ended(facts: Facts) -> Cause:
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
