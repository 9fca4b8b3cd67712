"""why: what keeps a task from running, or what became of it, in plain sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from runner.people.cells import age, since
from runner.people.terminal import one_line
from runner.store.observe.cause import Cause, Sight, runner_of, said, seen_at, when
from runner.store.observe.chances import Chance, chances
from runner.store.observe.facts import Facts, facts
from runner.store.observe.hindrances import hindrances
from runner.store.observe.parents import Parent
from runner.store.observe.tasks import TaskRow
from runner.store.transaction import Transaction
from runner.task import Shown, State


@dataclass(frozen=True, slots=True)
class Why:
    """Why a task is where it is.

    Args:
        task: the task.
        at: the database's time.
        verdict: what all of it is about, in a sentence.
        causes: the most decisive first.
        chances: what would let it start at once, each by itself.
    """

    task: TaskRow
    at: datetime
    verdict: str
    causes: tuple[Cause, ...]
    chances: tuple[Chance, ...] = ()


async def why(tx: Transaction, id: int, zone: tzinfo) -> Why:
    """Tell why a task is not running, or what became of it.

    Args:
        tx: an open transaction; see `facts`.
        id: the task's.
        zone: in which times are told.

    Raises:
        TaskNotFound: there is none with this id.
    """
    known = await facts(tx, id)
    return Why(known.task, known.at, verdict(known), tuple(causes(known, zone)), chances(known))


def verdict(known: Facts) -> str:
    """Say what the causes are causes of."""
    task = known.task
    name = f"Task {task.id} {one_line(task.handler)}"
    match task.shown:
        case Shown.RUNNING:
            return f"{name} is running."
        case Shown.LOST:
            return f"{name} counts as running, but its runner is lost."
        case Shown.SUCCEEDED | Shown.DEAD | Shown.CANCELLED:
            return f"{name} has ended: it is {task.shown}."
    return f"{name} is not running because:"


def causes(known: Facts, zone: tzinfo) -> Iterator[Cause]:
    """Draw the conclusions from what is known.

    Args:
        known: what `facts` read.
        zone: in which times are told.
    """
    match known.task.state:
        case State.WAITING:
            yield from hindrances(known, zone)
        case State.BLOCKED:
            yield from _blocked(known)
        case State.RUNNING:
            yield from _running(known, zone)
        case State.SUCCEEDED | State.DEAD | State.CANCELLED:
            yield _ended(known)


def _blocked(known: Facts) -> Iterator[Cause]:
    for parent in known.parents:
        yield _waits_for(parent)
    if not known.parents:
        text = "It is blocked, but nothing says by what: no row of task_dependency is open for it."
        yield Cause(State.BLOCKED, text, f"runner unblock {known.task.id}")


def _waits_for(parent: Parent) -> Cause:
    if parent.task is not None:
        task = parent.task
        ended = task.state in (State.DEAD, State.CANCELLED)
        advice = f"runner retry {task.id}" if ended else f"runner why {task.id}"
        text = f"It waits for task {task.id} {one_line(task.handler)}, which is {task.shown}{_meaning(parent, ended)}."
        return Cause(State.BLOCKED, text, advice, Sight("task", str(task.id)))
    if parent.id is not None:
        text = f"It waits for task {parent.id}, which is not there any more."
        return Cause(State.BLOCKED, text, f"runner unblock {parent.child} --edge {parent.edge}")
    name = f"{one_line(parent.handler or '?')} with key {one_line(parent.key or '?')}"
    return Cause(State.BLOCKED, f"It waits for a task of {name}, which has not been submitted yet.")


def _meaning(parent: Parent, ended: bool) -> str:
    if not ended:
        return ""
    return ": it is cancelled for that in a moment" if parent.on_failure == "cancel" else ", until that succeeds"


def _running(known: Facts, zone: tzinfo) -> Iterator[Cause]:
    task, runner = known.task, known.runner
    if task.shown is Shown.LOST:
        yield _lost(known)
    elif runner is not None:
        done = f", {task.progress:.0%} done" if task.progress is not None else ""
        limit = f"; it must end {when(known.deadline_at, known.at, zone)}" if known.deadline_at else ""
        tried = f"attempt {task.attempt}{f' of {task.max_attempts}' if task.max_attempts else ''}"
        text = f"It runs on {runner_of(runner)} for {since(task.claimed_at, known.at)}, {tried}{done}{limit}."
        yield Cause(State.RUNNING, text, sight=seen_at(runner))
    if task.cancel_requested:
        yield _asked_to_end(known)


def _asked_to_end(known: Facts) -> Cause:
    task, runner, asked = known.task, known.runner, known.terminated
    by = f" by {one_line(asked.operator)} {since(asked.at, known.at)} ago" if asked else ""
    text = f"Its end was asked for{by}"
    heard = asked and asked.at and runner and (known.at - asked.at).total_seconds() > runner.silent
    if task.shown is Shown.LOST or runner is None:
        return Cause("terminate", f"{text}; it is cancelled when a live runner takes it back.")
    if not heard:
        return Cause("terminate", f"{text}; its runner is told with its next sign of life.")
    if task.handler not in runner.threaded:
        return Cause("terminate", f"{text}, and its runner was told: it is ended as soon as it waits for something.")
    rest = "at its deadline" if known.deadline_at else "when its runner stops"
    return Cause(
        "terminate",
        f"{text}, and it was told. It is a plain function, in a thread that nobody can stop: it ends when the function "
        f"returns or looks at ctx.cancelled, and keeps its slot until then. It is given up {rest}, not before.",
    )


def _lost(known: Facts) -> Cause:
    task, runner = known.task, known.runner
    if runner is None:
        gone = f"Its runner {task.runner_id if task.runner_id is not None else '?'} is not registered any more."
    else:
        ended = f"its lease ended {age(-runner.lease)} ago"
        gone = f"Its {runner_of(runner)} has been silent for {age(runner.silent)}; {ended}."
    if known.alive:
        return Cause(Shown.LOST, f"{gone} A live runner takes the task back within seconds.", sight=seen_at(runner))
    text = f"{gone} No runner is alive that could take the task back."
    return Cause(Shown.LOST, text, "start a runner", seen_at(runner))


def _ended(known: Facts) -> Cause:
    task = known.task
    ago = f"{since(task.finished_at, known.at)} ago"
    tried = f"attempt {task.attempt}{f' of {task.max_attempts}' if task.max_attempts else ''}"
    match task.state:
        case State.SUCCEEDED:
            return Cause(State.SUCCEEDED, f"It succeeded {ago}, at {tried}.")
        case State.CANCELLED:
            asked = known.terminated
            by = f" by {one_line(asked.operator)}: {said(asked.reason)}" if asked else f": {said(task.error)}"
            return Cause(
                State.CANCELLED,
                f"It was {'terminated' if asked else State.CANCELLED} {ago}{by}",
                f"runner retry {task.id}",
            )
    text = f"It failed for good {ago}, at {tried}: {said(task.error)}"
    return Cause(State.DEAD, text, f"runner retry {task.id}", Sight("task", str(task.id)))
