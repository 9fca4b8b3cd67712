"""chances: what would have to be otherwise for a task to be claimed by the next scan; decided from `facts` alone.

Each chance is true: with all of its changes made, and nothing else happening, the next claim takes the task. What
nobody can promise is left out: a task that is run apart from others waits for a moment that no change brings about.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote

from runner.people.terminal import counted, one_line
from runner.store.observe.facts import Facts, Taker
from runner.store.observe.tallies import Count
from runner.task import State

MOST_FOLD = 4
"""So many times as many slots as there are is still advice; beyond, another priority is."""

MOST_ROOM = 1_000
"""Slots that a runner which is yet to be started is asked for at most."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that would be otherwise.

    Args:
        kind: its name for programs: unblock, attempts, due, resume, runner, slots, threads or priority.
        text: what would be so, as it follows "if".
        command: what makes it so.
    """

    kind: str
    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Chance:
    """Changes that would let a task start at once when all of them were made."""

    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        """What would be so, as it follows "if"."""
        return " and ".join(change.text for change in self.changes)

    @property
    def commands(self) -> str:
        """What makes it so, in one line for a shell."""
        return " && ".join(change.command for change in self.changes)


def sentence(chances: Sequence[Chance]) -> str:
    """Say all chances in one sentence; empty when there is none."""
    return f"It would start at once if: {', or '.join(chance.text for chance in chances)}." if chances else ""


def chances(known: Facts) -> tuple[Chance, ...]:
    """Find what would let a task start at once.

    Args:
        known: about any task.

    Returns:
        The ways there are; empty when the task does not wait, starts at once anyway, or no change can promise it.
    """
    if known.suspect or known.task.state not in (State.WAITING, State.BLOCKED):
        return ()
    needed = (*_unblocked(known), *_tried(known), *_due(known), *_resumed(known))
    if not known.takers:
        return tuple(Chance((*needed, *way)) for way in _taken(known))
    room = sum(max(0, taker.free) for taker in known.takers)
    if _fits(known.ahead, room):
        return (Chance(needed),) if needed else ()
    return tuple(Chance((*needed, *way)) for way in _overtaking(known, room))


def _fits(before: Count, room: int) -> bool:
    """Tell whether a claim reaches a task behind so many others.

    Each runner takes the first of those that it serves until it is full. If none took the task, which all of them
    serve, each would be full of what goes before it.
    """
    return not before.more and before.number < room


def _unblocked(known: Facts) -> Iterator[Change]:
    if known.task.state is State.BLOCKED:
        yield Change("unblock", "it waited for nothing", f"runner unblock {known.task.id}")


def _tried(known: Facts) -> Iterator[Change]:
    if not known.attempts_left:
        most = known.task.attempt + 1
        command = f"runner edit {known.task.id} --max-attempts {most}"
        yield Change("attempts", f"its maximum were {counted(most, 'attempt')}", command)


def _due(known: Facts) -> Iterator[Change]:
    if known.later:
        yield Change("due", "it were due now", f"runner retry {known.task.id}")


def _resumed(known: Facts) -> Iterator[Change]:
    for what, option, entry in (("queue", "", known.queue), ("handler", "--handler ", known.handler)):
        if entry is not None and entry.pause is not None:
            name = one_line(entry.name)
            yield Change("resume", f"{what} {name} were not paused", f"runner resume {option}{quote(name)}")


def _taken(known: Facts) -> Iterator[tuple[Change, ...]]:
    """A runner that takes just such tasks, as there is none."""
    before, raise_it = _cheapest(known) if known.ahead.number >= MOST_ROOM else (known.ahead, ())
    if not before.more and before.number < MOST_ROOM:
        room = f" with {before.number + 1:,} free slots" if before.number else ""
        text = f"a runner{room} took handler {one_line(known.task.handler)} from queue {one_line(known.task.queue)}"
        yield (Change("runner", text, "runner work -H package.module"), *raise_it)


def _overtaking(known: Facts, room: int) -> Iterator[tuple[Change, ...]]:
    """More slots, or a higher priority; where neither is enough, both."""
    taker = max(known.takers, key=lambda taker: taker.size)
    slots = list(_resized(taker, known.ahead, room))
    enough = (priority for priority, before in known.raised.items() if _fits(before, room))
    priority = next(enough, None)
    if slots:
        yield (*slots,)
    if priority is not None:
        yield (_raised(known, priority),)
    if not slots and priority is None:
        before, raise_it = _cheapest(known)
        for change in _resized(taker, before, room):
            yield (*raise_it, change)


def _cheapest(known: Facts) -> tuple[Count, tuple[Change, ...]]:
    """The lowest priority that fewest tasks go before, with how many these are."""
    best = min(known.raised.items(), key=lambda pair: (pair[1].more, pair[1].number, pair[0]), default=None)
    if best is None or best[1] >= known.ahead:
        return known.ahead, ()
    return best[1], (_raised(known, best[0]),)


def _raised(known: Facts, priority: int) -> Change:
    return Change("priority", f"its priority were {priority}", f"runner edit {known.task.id} --priority {priority}")


def _resized(taker: Taker, before: Count, room: int) -> Iterator[Change]:
    """So many slots for one runner that the claims of all reach behind those who go before."""
    size = taker.size - taker.free + before.number - (room - max(0, taker.free)) + 1
    if before.more or size > MOST_FOLD * max(1, taker.size):
        return
    kind = "threads" if taker.threads else "slots"
    text = f"runner {taker.runner.id} had {counted(size, kind.removesuffix('s'))}"
    yield Change(kind, text, f"runner resize {taker.runner.id} --{kind} {size}")
