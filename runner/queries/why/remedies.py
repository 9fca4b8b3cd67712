"""Remedies: the changes that would let a task start now, with the reason for its state."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Annotated, Literal, NamedTuple

from runner.model.stuck_row import StuckRow
from runner.model.task import State
from runner.policy.claim_facts import CommonCause, RemedyStep
from runner.policy.claim_policy import CLAIM_POLICY
from runner.policy.harm import harm_of
from runner.policy.limits import WithinLimits
from runner.queries.counting import Count
from runner.queries.runners import PIPES, RESIZABLE, RunnerRow, SlotKind
from runner.queries.why.facts import CandidateRunner, Facts
from runner.text.document import JsonProperty, Treatment
from runner.text.formatting import age
from runner.text.hosts import host_names
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun, first_names, one_line
from runner.text.stuck_row import MISSED, stuck_advice, stuck_fact, stuck_fate

MOST_NAMED = 4
"""Maximum number of handlers that one sentence lists."""


class RelatedView(NamedTuple):
    """A place that shows more about a cause.

    Args:
        kind: a list of tasks, one task, the runners, the audit log, or the schedules.
        about: the filter, the task's id, the runner's id or nothing, the changed object: "queue mail", or the schedule.
    """

    kind: Literal["tasks", "task", "runners", "audit", "schedules"]
    about: str = ""

    @JsonProperty
    def command(self) -> str:
        """The shell command that shows it."""
        match self.kind:
            case "tasks":
                return f"runner tasks {quote(self.about)}"
            case "task":
                return f"runner show {self.about}"
            case "audit":
                return f"runner audit --of {quote(self.about)}"
            case "schedules":
                return f"runner schedules show {quote(self.about)}"
        return "runner runners"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for a task's state.

    Args:
        kind: a name for programs, such as due, paused, unknown or full.
        text: a sentence; values from the database in it are safe to print.
        advice: the next step; empty if there is none.
        view: where to see more; None if there is nothing more.
        common: the cause without the details of the task; None for the text.
    """

    kind: str
    text: str
    advice: str = ""
    view: RelatedView | None = None
    common: Annotated[CommonCause | None, Treatment.HIDDEN] = None

    @property
    def sentences(self) -> str:
        """The text and the advice."""
        return f"{self.text} {self.advice[:1].upper()}{self.advice[1:]}{'.' if self.advice else ''}".rstrip()


def describe(runner: RunnerRow) -> str:
    """A runner, as a phrase."""
    return runner_name(runner.id, runner.host, runner.pid)


def blocked_runner(runner: RunnerRow) -> Cause:
    """The reason why a live runner neither starts nor ends tasks."""
    duration, culprit = age(runner.blocked_for), one_line(runner.culprit)
    if runner.block is not None and runner.block.locked:
        fact = f", and {one_line(runner.block.fact)}" if runner.block.fact else ""
        text = f"R{describe(runner)[1:]} has sent neither a heartbeat nor a ping for {duration}{fact}: "
        text += f"{one_line(runner.guess)}."
        advice = "read its log" if runner.block.fact.endswith(PIPES) else 'use executor="process" for this handler'
        return Cause("locked", text, advice, at_runner(runner))
    place = one_line(runner.block.place) if runner.block is not None and runner.block.tasks else ""
    text = (
        f"The event loop of {describe(runner)} has been blocked for {duration} by {culprit}"
        f"{f' at {place}' if place else ''}: a blocking call in an async handler."
    )
    return Cause("stalled", text, 'make it a plain function, or use executor="process"', at_runner(runner))


def stuck_cause(row: StuckRow, at: datetime, runner: RunnerRow | None = None) -> Cause:
    """The reason why a row of a task does not change.

    Args:
        runner: the runner of the task; None without one.
    """
    tries = f"tried {count_noun(row.tries, 'time')} in {age(at - row.since)}"
    end = f" {fate}." if (fate := stuck_fate(row)) else ""
    text = f"Its row is {row.cause}: {stuck_fact(row)}. So {MISSED[row.verb]}, {tries}.{end}"
    common = CommonCause(f"the row is {row.cause}: {one_line(row.fact)}")
    return Cause("stuck", text, stuck_advice(row), at_runner(runner), common)


def at_runner(runner: RunnerRow | None) -> RelatedView:
    """The list of runners at one runner, or at the top without one."""
    return RelatedView("runners", str(runner.id) if runner else "")


def tasks_of(runners: Sequence[RunnerRow]) -> RelatedView:
    """The list of tasks that these runners execute."""
    return RelatedView("tasks", f"state:running runner:{','.join(str(runner.id) for runner in runners)}")


def claimants(runners: Sequence[RunnerRow]) -> str:
    """Runners as the subject of a sentence, with the verb: `Runner 3 (...) claims`, `2 runners claim`."""
    return f"R{describe(runners[0])[1:]} claims" if len(runners) == 1 else f"{len(runners)} runners claim"


def listed(names: Iterable[str]) -> str:
    """The first names of a list, and the number of the others."""
    return first_names(list(names), MOST_NAMED)


def resize(runner_id: int, kind: SlotKind, number: int) -> str:
    """The command that changes the number of slots of one kind; empty if no command does."""
    if kind not in RESIZABLE:
        return ""
    option = "concurrency" if kind == "slots" else kind
    return f"runner runners resize {runner_id} --{option} {number}"


MAX_GROWTH = 4
"""The largest suggested factor for slots; beyond it, only a priority is suggested."""

MAX_NEW_SLOTS = 1_000
"""Maximum number of slots suggested for a new runner."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together let a task start now."""

    changes: tuple[RemedyStep, ...]

    @JsonProperty
    def text(self) -> str:
        """The condition, as the continuation of "if"."""
        return " and ".join(change.text for change in self.changes)

    @property
    def commands(self) -> str:
        """One shell line that makes all changes."""
        return " && ".join(change.command for change in self.changes)


def sentence(remedies: Sequence[Remedy]) -> str:
    """All remedies as one sentence, or an empty string."""
    return f"It would start now if: {', or '.join(remedy.text for remedy in remedies)}." if remedies else ""


def remedies(facts: Facts) -> tuple[Remedy, ...]:
    """Find the changes that would let a task start now.

    Returns:
        The alternatives, the least harmful first; none if the task is not waiting, starts anyway, or no change
        guarantees a start.
    """
    lifted = CLAIM_POLICY.remedies(facts)
    waits = not facts.due and any(step.signal is not None for step in facts.pending)
    waits = waits or any(parent.step is not None for parent in facts.parents)  # it would start, and wait again
    if lifted is None or waits or facts.task.state not in (State.WAITING, State.BLOCKED):
        return ()
    required, most = (*_unblocked(facts), *lifted), WithinLimits.room_after_remedies(facts)
    if not facts.candidates:
        return _alternatives(required, _new_runner(facts, min(most, MAX_NEW_SLOTS)))
    room = free_slots(facts)
    if _fits(facts.ahead, min(room, most)):
        return (Remedy(required),) if required else ()
    return _alternatives(required, _overtaking(facts, room, most))


def _alternatives(required: Sequence[RemedyStep], choices: Iterable[Sequence[RemedyStep]]) -> tuple[Remedy, ...]:
    found = [Remedy((*required, *changes)) for changes in choices]
    return tuple(sorted(found, key=lambda remedy: harm_of(step.kind for step in remedy.changes)))


def free_slots(facts: Facts) -> int:
    """The free slots of all runners that claim the task."""
    return sum(max(0, candidate.free) for candidate in facts.candidates)


def is_in_reach(facts: Facts) -> bool:
    """True if the next claims reach the task behind those ahead of it, as far as slots and limits allow."""
    return _fits(facts.ahead, min(free_slots(facts), WithinLimits.room_after_remedies(facts)))


def better_priority(facts: Facts) -> int | None:
    """The lowest priority at which the next claims reach the task, or else the one with the fewest tasks ahead.

    Returns:
        None if no priority leaves fewer tasks ahead of it.
    """
    most = min(free_slots(facts), WithinLimits.room_after_remedies(facts))
    reached = (priority for priority, ahead in facts.raised.items() if _fits(ahead, most))
    return next(reached, None) or _fewest_ahead(facts)


def _fits(ahead: Count, room: int) -> bool:
    """True if a claim reaches a task behind this many others.

    Every runner claims in order until its slots are full. If no runner took the task, all free slots would be taken by
    the tasks ahead of it.
    """
    return not ahead.more and ahead.number < room


def _unblocked(facts: Facts) -> Iterator[RemedyStep]:
    if facts.task.state is State.BLOCKED:
        yield RemedyStep("unblock", "it had no open dependencies", f"runner unblock {facts.task.id}")


def _new_runner(facts: Facts, most: int) -> Iterator[tuple[RemedyStep, ...]]:
    """A new runner for tasks that no runner claims; it starts `most` tasks at most."""
    ahead, raise_priority = (facts.ahead, ()) if _fits(facts.ahead, most) else _cheapest(facts)
    if _fits(ahead, most):
        room = f" with {ahead.number + 1:,} free slots" if ahead.number else ""
        text = f"a runner{room} claimed handler {one_line(facts.task.handler)} from queue {one_line(facts.task.queue)}"
        hosts = host_names(facts.task.hosts)
        text += f" on {one_line(' or '.join(hosts))}" if hosts else ""
        command = "runner work -H package.module"
        if any(runner.buckets is not None and facts.task.handler in runner.handlers for runner in facts.alive):
            text, command = f"{text} and bucket {facts.bucket}", f"{command} --buckets {facts.bucket}"
        yield (RemedyStep("runner", text, command), *raise_priority)


def _overtaking(facts: Facts, room: int, most: int) -> Iterator[tuple[RemedyStep, ...]]:
    """More slots or a higher priority; both if neither is enough. The limits start `most` tasks at most."""
    candidate = max(facts.candidates, key=lambda candidate: candidate.size)
    resize = list(_resized(candidate, facts.ahead, room)) if _fits(facts.ahead, most) else []
    priority = better_priority(facts)
    if priority is not None and not _fits(facts.raised[priority], min(room, most)):
        priority = None
    if resize:
        yield (*resize,)
    if priority is not None:
        yield (_raised(facts, priority),)
    if not resize and priority is None:
        ahead, raise_priority = _cheapest(facts)
        for change in _resized(candidate, ahead, room) if _fits(ahead, most) else ():
            yield (*raise_priority, change)


def _cheapest(facts: Facts) -> tuple[Count, tuple[RemedyStep, ...]]:
    """The lowest priority with the fewest tasks ahead, and their number."""
    best = _fewest_ahead(facts)
    return (facts.ahead, ()) if best is None else (facts.raised[best], (_raised(facts, best),))


def _fewest_ahead(facts: Facts) -> int | None:
    """The lowest priority with the fewest tasks ahead; None if they are no fewer than now."""
    best = min(facts.raised.items(), key=lambda pair: (pair[1].more, pair[1].number, pair[0]), default=None)
    return None if best is None or best[1] >= facts.ahead else best[0]


def _raised(facts: Facts, priority: int) -> RemedyStep:
    return RemedyStep("priority", f"its priority were {priority}", f"runner edit {facts.task.id} --priority {priority}")


def _resized(candidate: CandidateRunner, ahead: Count, room: int) -> Iterator[RemedyStep]:
    """The slots that one runner needs for the claims of all runners to reach the task."""
    slots = candidate.size - candidate.free + ahead.number - (room - max(0, candidate.free)) + 1
    if ahead.more or slots > MAX_GROWTH * max(1, candidate.size):
        return
    kind = candidate.pool
    if kind not in RESIZABLE:
        return
    text = f"runner {candidate.runner.id} had {count_noun(slots, kind.removesuffix('s'))}"
    yield RemedyStep(kind, text, resize(candidate.runner.id, kind, slots))
