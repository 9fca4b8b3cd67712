"""The changes that would let a task start now, derived from `facts` alone.

Each remedy is a guarantee: if an operator makes all of its changes and nothing else happens, the next claim takes the
task. Uncertain remedies are left out: a task that runs in isolation depends on timing that no change controls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.model.task import State
from runner.policy.claim_facts import RemedyStep
from runner.policy.claim_order import CLAIM_POLICY
from runner.policy.limits import WithinLimits
from runner.queries.counting import Count
from runner.queries.why.cause import resize
from runner.queries.why.facts import CandidateRunner, Facts
from runner.text.sanitize import count_noun, one_line

MAX_GROWTH = 4
"""The largest suggested factor for slots; beyond it, only a priority is suggested."""

MAX_NEW_SLOTS = 1_000
"""Maximum number of slots suggested for a new runner."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes that together let a task start now."""

    changes: tuple[RemedyStep, ...]

    @property
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

    Args:
        facts: the facts about any task.

    Returns:
        The alternatives; none if the task is not waiting, starts anyway, or no change guarantees a start.
    """
    lifted = CLAIM_POLICY.remedies(facts)
    if lifted is None or facts.task.state not in (State.WAITING, State.BLOCKED):
        return ()
    required, most = (*_unblocked(facts), *lifted), WithinLimits.room_after_remedies(facts)
    if not facts.candidates:
        return tuple(Remedy((*required, *changes)) for changes in _new_runner(facts, min(most, MAX_NEW_SLOTS)))
    room = sum(max(0, candidate.free) for candidate in facts.candidates)
    if _fits(facts.ahead, min(room, most)):
        return (Remedy(required),) if required else ()
    return tuple(Remedy((*required, *changes)) for changes in _overtaking(facts, room, most))


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
        command = "runner work -H package.module"
        if any(runner.buckets is not None and facts.task.handler in runner.handlers for runner in facts.alive):
            text, command = f"{text} and bucket {facts.bucket}", f"{command} --buckets {facts.bucket}"
        yield (RemedyStep("runner", text, command), *raise_priority)


def _overtaking(facts: Facts, room: int, most: int) -> Iterator[tuple[RemedyStep, ...]]:
    """More slots or a higher priority; both if neither is enough. The limits start `most` tasks at most."""
    candidate = max(facts.candidates, key=lambda candidate: candidate.size)
    resize = list(_resized(candidate, facts.ahead, room)) if _fits(facts.ahead, most) else []
    priorities = (priority for priority, ahead in facts.raised.items() if _fits(ahead, min(room, most)))
    priority = next(priorities, None)
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
    best = min(facts.raised.items(), key=lambda pair: (pair[1].more, pair[1].number, pair[0]), default=None)
    if best is None or best[1] >= facts.ahead:
        return facts.ahead, ()
    return best[1], (_raised(facts, best[0]),)


def _raised(facts: Facts, priority: int) -> RemedyStep:
    return RemedyStep("priority", f"its priority were {priority}", f"runner edit {facts.task.id} --priority {priority}")


def _resized(candidate: CandidateRunner, ahead: Count, room: int) -> Iterator[RemedyStep]:
    """The slots that one runner needs for the claims of all runners to reach the task."""
    slots = candidate.size - candidate.free + ahead.number - (room - max(0, candidate.free)) + 1
    if ahead.more or slots > MAX_GROWTH * max(1, candidate.size):
        return
    kind = candidate.pool
    text = f"runner {candidate.runner.id} had {count_noun(slots, kind.removesuffix('s'))}"
    yield RemedyStep(kind, text, resize(candidate.runner.id, kind, slots))
