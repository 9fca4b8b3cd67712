"""StuckClaims: the due tasks that a claim cannot take, and their claims apart from all others.

A claim is one statement: a row that the database refuses to change makes the claim of all others fail. The runner then
reads the first tasks that the claim would have taken, leaves them out of its claims, and claims them in parts. A part
that fails is divided in two, so that one refused row costs about twice log2(n) statements. A task whose claim fails
alone is a stuck row. Where refused rows follow each other, each failed claim leaves out twice as many tasks as the one
before, so that the runner soon reaches the tasks behind them.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from runner.engine.stuck_rows import StuckRows
from runner.model.stuck_row import LOCKED, BlockingSession, RowFault, StuckCause
from runner.policy.lanes import Lane
from runner.policy.selection import listed
from runner.store.claim.plain import DueTask

MOST_RESTING = 10_000
"""Maximum number of tasks that are left out of the claims. Beyond it, the lane of the next refused ones rests."""

LARGEST = 2_000
"""Maximum number of tasks that one failed claim leaves out."""

REST = 60.0
"""Seconds for which a lane rests."""

BURST = 100
"""Claims that may fail one after the other before they are spread over time."""

SHORTEST, LONGEST = 0.02, 2.0
"""The shortest and the longest pause between two failed claims in seconds."""

PATIENCE = 250
"""Failed claims without a success in between after which the pause doubles."""


class FailureBudget:
    """The number of claims that may fail now: a burst, then one for each pause, which grows while none succeeds."""

    def __init__(self) -> None:
        self._tokens, self._at = float(BURST), time.monotonic()
        self._failures = 0

    @property
    def pause(self) -> float:
        """Seconds until the next claim may fail, after a burst."""
        return min(LONGEST, SHORTEST * 2.0 ** min(20, self._failures // PATIENCE))

    @property
    def wait(self) -> float:
        """Seconds until a claim may fail; 0 if it may now."""
        now = time.monotonic()
        self._tokens, self._at = min(float(BURST), self._tokens + (now - self._at) / self.pause), now
        return max(0.0, (1.0 - self._tokens) * self.pause)

    def spend(self) -> None:
        """Record a failed claim."""
        self._tokens -= 1.0
        self._failures += 1

    def reset(self) -> None:
        """Record a claim that succeeded."""
        self._failures = 0


class StuckClaims:
    """The due tasks that claims leave out, and the parts in which they are claimed."""

    def __init__(self, stuck: StuckRows) -> None:
        self._stuck = stuck
        self._lanes: dict[int, Lane] = {}
        self._parts: deque[tuple[int, ...]] = deque()
        self._suspects: set[int] = set()
        self._locked: set[int] = set()
        self._resting: dict[Lane, float] = {}
        self._without: str | None = None
        self._failed_in_a_row = 0
        self._from_end = False
        self._piece: tuple[int, ...] = ()
        self._budget = FailureBudget()
        self.has_no_room = False
        """True if the last parts found no free slot, or may not be claimed by the scans of the moment."""

    @property
    def without(self) -> str | None:
        """The ids that all other claims leave out, as the text of a selection; None without one."""
        if self._suspects and (due := self._suspects - self._stuck.resting("claim")):
            self._forget(due)  # the next claim of suspects tries them again
        return self._without

    def accepts(self, lane: Lane) -> bool:
        """True unless a lane rests, because too many of its tasks are refused."""
        if not self._resting:
            return True
        if (until := self._resting.get(lane)) is not None and until <= time.monotonic():
            del self._resting[lane]
        return lane not in self._resting

    def size_after(self, limit: int) -> int:
        """The number of tasks to leave out after a failed claim of at most `limit` tasks."""
        size = min(LARGEST, limit << min(16, self._failed_in_a_row))
        self._failed_in_a_row += 1
        return max(limit, size)

    def succeeded(self) -> None:
        """Record that a claim which leaves out these tasks succeeded."""
        self._failed_in_a_row = 0

    def leave_out(self, tasks: Sequence[DueTask], *, tried: bool) -> Collection[Lane]:
        """Leave tasks out of all other claims, and claim them in parts.

        Args:
            tasks: the first due tasks of a claim that failed, or that took none of them.
            tried: True if a claim of these tasks failed, so that they are divided at once.

        Returns:
            The lanes that rest from now on, because too many tasks are left out.
        """
        if len(self._lanes) + len(tasks) > MOST_RESTING:
            lanes = {task.lane for task in tasks}
            self._resting |= dict.fromkeys(lanes, time.monotonic() + REST)
            return lanes
        new = [task for task in tasks if task.id not in self._lanes]
        self._lanes |= {task.id: task.lane for task in new}
        self._changed()
        if not new:
            return ()
        ids = tuple(task.id for task in new)
        self._parts.extendleft(reversed(_halves(ids)) if tried and len(ids) > 1 else [ids])
        return ()

    def collect(self) -> None:
        """Queue the tasks that are due for another try."""
        if self._lanes and not self._parts:
            resting = self._stuck.resting("claim") | self._suspects | self._locked
            if due := tuple(id for id in self._lanes if id not in resting):
                self._parts.append(due)

    def due_locks(self) -> list[int]:
        """The locked tasks that are due for another look at their locks."""
        return sorted(self._locked - self._stuck.resting("claim")) if self._locked else []

    def next(self, alike: Callable[[Lane], object]) -> tuple[tuple[int, ...], list[Lane]] | None:
        """Take the next part to claim; None if there is none, or if a failure would come too soon.

        Args:
            alike: returns the same value for lanes from which one claim may take tasks.

        Returns:
            The ids of the tasks, and their lanes.
        """
        if not self._parts or self._budget.wait > 0:
            return None
        ids = self._parts.popleft()
        kind = alike(self._lanes[ids[0]])
        part = tuple(id for id in ids if alike(self._lanes[id]) == kind)
        if len(part) < len(ids):
            self._parts.appendleft(tuple(id for id in ids if alike(self._lanes[id]) != kind))
        return part, list(dict.fromkeys(self._lanes[id] for id in part))

    def cut(self, ids: tuple[int, ...], limit: int) -> tuple[int, ...]:
        """Return at most `limit` tasks of a part, and put the others back.

        They come from the end where the last claim succeeded: refused rows mostly follow each other.
        """
        if len(ids) <= limit:
            return ids
        self.put_back(ids[:-limit] if self._from_end else ids[limit:])
        self._piece = ids[-limit:] if self._from_end else ids[:limit]
        return self._piece

    def put_back(self, ids: tuple[int, ...]) -> None:
        """Queue tasks again, as the first part."""
        self._parts.appendleft(ids)

    def failed(self, ids: tuple[int, ...], fault: RowFault) -> None:
        """Record that the claim of a part failed: divide it, or record its only task as stuck."""
        self._budget.spend()
        self._from_end ^= ids == self._piece
        if len(ids) > 1:
            self._parts.extendleft(reversed(_halves(ids)))
        else:
            self.refuse(ids[0], fault)

    def refuse(self, id: int, fault: RowFault) -> None:
        """Record a task that no claim can take."""
        self._stuck.set_apart("claim", id, self._lanes[id].handler, fault)

    def lock(self, locks: Mapping[DueTask, BlockingSession | None]) -> None:
        """Leave out tasks that other transactions lock, as far as there is room for them.

        Args:
            locks: the session that locks each task; None if it is unknown.
        """
        for task, blocker in locks.items():
            self._set_apart(task, self._locked, LOCKED, blocker)
        self._changed()

    def look_at_lock(self, id: int, *, still: bool, blocker: BlockingSession | None) -> None:
        """Record whether a task is still locked; if it is not, other claims see it again."""
        if still:
            self._stuck.set_apart("claim", id, self._lanes[id].handler, LOCKED, blocker)
        else:
            self.claimed([id])

    def refuse_suspect(self, task: DueTask, fault: RowFault) -> None:
        """Leave out a suspect that no claim can take, if there is room for it."""
        self._set_apart(task, self._suspects, fault)
        self._changed()

    def claimed(self, ids: Iterable[int]) -> None:
        """Record tasks that were claimed, or are gone: other claims see them again."""
        ids = list(ids)
        self._budget.reset()
        self._stuck.free("claim", ids)
        self._forget(ids)

    def suspects_claimed(self, ids: Iterable[int]) -> None:
        """Record suspects that were claimed."""
        self._stuck.free("claim", ids)

    @property
    def refused(self) -> str | None:
        """The ids of the tasks that no claim can take before a person changes something."""
        return listed(row.task for row in self._stuck.rows("claim") if row.cause is StuckCause.REFUSED)

    def wait(self) -> float | None:
        """Seconds until the next part may be claimed; None without any, and while parts have no room."""
        if not self._lanes or self.has_no_room:
            return None
        if self._parts:
            return self._budget.wait
        until = self._stuck.until_due("claim")
        return None if until is None else max(until, self._budget.wait)

    def _set_apart(
        self, task: DueTask, kind: set[int], fault: RowFault, blocker: BlockingSession | None = None
    ) -> None:
        if len(self._lanes) >= MOST_RESTING and task.id not in self._lanes:
            return
        self._stuck.set_apart("claim", task.id, task.lane.handler, fault, blocker)
        if self._stuck.tries("claim", task.id):  # it remembers so many rows of all verbs
            self._lanes[task.id] = task.lane
            kind.add(task.id)

    def _forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._lanes.pop(id, None)
            self._suspects.discard(id)
            self._locked.discard(id)
        self._changed()

    def _changed(self) -> None:
        self._without = listed(self._lanes)


def _halves(ids: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(ids) // 2
    return [ids[:middle], ids[middle:]]
