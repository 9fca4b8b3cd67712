"""suspicion: how many tasks that may have killed their runner run together, and how long that takes.

A task that was running when its runner was lost is innocent most of the time. A suspect is a task that lost two
runners, or one before its last attempt. Suspects run in groups of a width that narrows with each lost runner: 16, then
4, then 1. A group that loses its runner costs each of its members one attempt, and its members run in narrower groups.
A suspect that has run for the proof time makes room for the next one, and a suspect that a living runner settles is
cleared.

The order. A runner starts the suspects of groups of 16 first, because most of them are innocent, and the oldest suspect
of any group in one claim of four, so that a steady flow of new suspects delays none without end. Oldest means due for
the longest time. A suspect starts as soon as its group allows it, and others of at least its width start beside it.
Other tasks delay no suspect: a runner without a free slot looks for suspects about once a second, and starts them in
the next free slots; see runner.engine.claiming.suspect_claims.

The bound. n innocents and c killers become suspects of one runner with k slots. A killer takes at most 15 innocents
along in a group of 16, at most 3 in a group of 4, and none alone. So there are at most

    R = (ceil(n / w1) + 2c) + (ceil(w1 * c / w2) + c) + (w2 - 1 + a) * c    with w1 = min(16, k) and w2 = min(4, k)

rounds, where a is the number of attempts of a killer; tests/policy/suspicion_bounds.py computes it. A round that loses
no runner takes at most the proof time, or the time of its slowest task where that is less. A round that loses its
runner takes in addition the time until its tasks are rescued. An innocent that runs no longer than the proof time loses
at most four attempts to a killer: two before it is a suspect, one in a group of 16, one in a group of 4; its last
attempt is run alone.

The limit. A task that kills its runner after the proof time can take suspects along that started beside it later. The
proof time of a task that runs alone is therefore one whole lease, and that of a group is one heartbeat interval.
"""

from collections.abc import Iterable
from typing import NamedTuple

WIDTHS = (16, 4, 1)
"""How many suspects run together in one runner, from the least suspicious to the most suspicious."""

ALONE = WIDTHS[-1]

OLDEST_FIRST = 0.25
"""Share of the claims that take the oldest suspect before those of the widest groups."""

FIRST = 2
"""Lost runners that make a suspect of a task that has attempts left after the next one."""


def is_suspect(rescues: int, attempts_left: int | None, used: int) -> bool:
    """True if a task lost two runners, or one before its last attempt.

    A rescue that counted no attempt found no sign that the task had started: only a second one makes a suspect.

    Args:
        attempts_left: attempts that it has left; None when it has no maximum.
    """
    return rescues >= FIRST or (rescues > 0 and used > 0 and attempts_left is not None and attempts_left <= 1)


def width(rescues: int, attempts_left: int | None) -> int:
    """How many suspects may run together, with this one among them.

    The last attempt is run alone, and so is a task that lost a runner in a group of 4.

    Args:
        attempts_left: attempts that it has left; None when it has no maximum.
    """
    last = len(WIDTHS) - 1
    level = max(0, rescues - FIRST)
    return WIDTHS[min(last, level if attempts_left is None else max(level, last + 1 - attempts_left))]


def describe(rescues: int, attempts_left: int | None) -> str:
    """A suspect in one sentence.

    Args:
        attempts_left: attempts that it has left; None when it has no maximum.
    """
    lost = "1 runner before its last attempt" if rescues == 1 else f"{rescues} runners"
    most = width(rescues, attempts_left)
    group = "alone" if most == ALONE else f"in groups of {most}"
    return f"It lost {lost}, and is suspected of killing them: a runner runs such tasks {group}."


class Suspect(NamedTuple):
    """A suspect that a runner executes.

    Args:
        width: as `width` returns it.
        ran: seconds since its body started; 0 when it waits for a slot.
    """

    width: int
    ran: float


class Ask(NamedTuple):
    """Which suspects to claim next.

    Args:
        limit: maximum number of tasks.
        width: the least width that they must have.
        among: of the suspects of at least this width, the oldest `limit` are considered.
    """

    limit: int
    width: int
    among: int = ALONE


class Proof(NamedTuple):
    """How long a suspect runs before it makes room for the next one, in seconds.

    Args:
        group: in a group, e.g. one heartbeat interval.
        alone: alone, e.g. one lease.
    """

    group: float
    alone: float

    def of(self, width: int) -> float:
        """The proof time of a suspect."""
        return self.alone if width == ALONE else self.group

    def unproven(self, suspects: Iterable[Suspect]) -> list[Suspect]:
        """The suspects that keep their place."""
        return [suspect for suspect in suspects if suspect.ran < self.of(suspect.width)]


def first(unproven: Iterable[Suspect], room: int, among: int = ALONE) -> Ask:
    """The next suspect to claim: the oldest one, if it may run beside the unproven ones; otherwise none.

    Args:
        among: only suspects of at least this width are considered.

    Returns:
        A limit of 0 when no suspect has room.
    """
    widths = [suspect.width for suspect in unproven]
    free = min([WIDTHS[0], *widths]) - len(widths)
    return Ask(min(1, room, max(0, free)), len(widths) + 1, among)


def more(unproven: Iterable[Suspect], width: int, room: int) -> Ask:
    """The suspects to claim beside one that was claimed just now.

    Args:
        width: of that one.
    """
    widths = [suspect.width for suspect in unproven]
    return Ask(max(0, min(room, min([width, *widths]) - len(widths))), width, width)
