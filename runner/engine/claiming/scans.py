"""Scans: the tasks that the scans of a runner may take."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from runner.handlers.registry import Handler
from runner.model.task import Claimed
from runner.policy.lanes import Lane, lane_of, runner_queue, serves
from runner.policy.polling import OwnScan, PollMode
from runner.policy.selection import ANY, TaskSelection, mask, parse_buckets
from runner.settings import Settings
from runner.store.claim.plain import Claimant
from runner.store.claim.survey import MANY, SurveyScope
from runner.text.hosts import admits

NO_BOUND = 2**62
"""More tasks than any scan claims."""


class ScanScope:
    """The lanes and the tasks that scans may take at the moment.

    Handlers with scans of their own take part from the start of such a scan until the tasks that were due then are
    claimed. With a throttle, the scans of one period take one batch together. With tiers, the tasks that failed take
    part from a scan of their tier until the tasks that were due then are claimed.

    Under a backlog of other tasks no scan ends. The lane of a handler with its own scan is then done when a claim finds
    no more tasks in it, or reaches one that became due after the first claim of the scan. Tasks that failed must have
    been due at that claim.

    Args:
        handlers: the handlers that can execute tasks now, by name.
        may_claim: returns True while this runner may claim.
    """

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        mode: PollMode,
        scans: Mapping[OwnScan, frozenset[str]],
        may_claim: Callable[[], bool],
    ) -> None:
        self._handlers = handlers
        self._queues = frozenset(settings.queues)
        self._mode = mode
        self._fresh = mode.most_failures(1)
        """The failures above which only the scans of a tier take a task; None without tiers."""
        self._scans = scans
        self._may_claim = may_claim
        self._batch = settings.claim_batch_size if mode.is_throttled else None
        self._own = frozenset(name for names in scans.values() for name in names)
        self._turns = self._own
        """The handlers with own scans that take part now; at the start all do."""
        self._left: set[Lane] | None = None
        """The due lanes that the current own scan or tier has not done; None before its survey."""
        self._first_claim: Any = None
        """The time of the first claim of the current own scan or tier, as PositionTime."""
        self._number = 0
        self.selection: TaskSelection = ANY
        """The tasks that claims take from the lanes."""
        self.room = NO_BOUND if self._batch is None else self._batch
        """Number of tasks that may still be claimed in this period."""
        self.is_new = False
        """True if the scope has grown since the last survey."""
        self.runner_id = 0
        self.host = ""
        self._is_standby = False
        """True if other runners have all buckets: only tasks for this runner alone are left."""
        self.set_failures(mode.most_failures(0))
        if settings.buckets is not None:
            self.set_buckets(parse_buckets(settings.buckets))

    @property
    def is_open(self) -> bool:
        """True while a scan may take any task."""
        return self.room > 0 and self._may_claim()

    def accepts(self, lane: Lane) -> bool:
        """True if the current scan may claim from a lane."""
        queues = (self._own_queue,) if self._is_standby else self._queues
        accepted = self._takes_part(lane.handler) and serves(lane.queue, queues, self._own_queue)
        return accepted and admits(lane.hosts, self.host)

    def claimant(self, runner: Claimant, without: str | None) -> Claimant:
        """A runner, and the tasks that it takes now.

        Args:
            without: the ids of tasks to leave out; see runner.policy.selection.
        """
        selection = self.selection if without is None else self.selection._replace(without=without)
        return runner._replace(selection=selection)

    def survey(self, skip: int, dense: int) -> SurveyScope:
        """Return the scope of a survey; for the arguments see SurveyScope."""
        self.is_new = False
        queues = sorted({*self._queues, self._own_queue}) if self._queues else ()
        queues = [self._own_queue] if self._is_standby else queues
        handlers = [name for name in self._handlers if self._takes_part(name)]
        return SurveyScope(handlers, queues, MANY, skip, dense, self.host)

    def begin(self) -> None:
        """Begin a periodic scan."""
        self._number += 1
        if self._batch is not None:
            self.room = self._batch
        most = self._mode.most_failures(self._number)
        if _is_above(most, self._fresh):
            open_tier = self.selection.failures
            self._extend(self._turns, most if _is_above(most, open_tier) else open_tier)

    def begin_own(self, scan: OwnScan) -> None:
        """Begin an own scan of some handlers."""
        self._extend(self._turns | self._scans[scan], self.selection.failures)

    def _extend(self, turns: frozenset[str], failures: int | None) -> None:
        """Start over with more handlers or more failures, from a survey on."""
        self._turns, self._left, self._first_claim = turns, None, None
        self.set_failures(failures)

    def end(self) -> None:
        """Return to the scope of a scan after a submit, because no task is due any more."""
        if not self.is_new:  # otherwise an own scan or a tier has begun, and is still to come
            self._turns = frozenset()
            self.selection = self.selection._replace(failures=self._fresh, fresh=None, seen=None)

    @property
    def is_extended(self) -> bool:
        """True while handlers with own scans, or tasks that failed often, take part."""
        return bool(self._turns) or _is_above(self.selection.failures, self._fresh)

    def record_due(self, lanes: Collection[Lane]) -> None:
        """Record all due lanes of a survey."""
        if not self.is_new:
            self._left = set(lanes) if self._left is None else self._left.intersection(lanes)
            self._turns &= {lane.handler for lane in lanes}

    def record_claim(self, tasks: Sequence[Claimed], is_due: Callable[[Lane], bool]) -> None:
        """Record a claim after which other tasks are due, so that the scan goes on.

        Args:
            is_due: returns True if a lane may have more due tasks.
        """
        if self._left is None or self.is_new:
            return
        if self._first_claim is None and tasks:
            self._first_claim = tasks[0].claimed_at
            if self._fresh is not None:
                self.selection = self.selection._replace(fresh=self._fresh, seen=self._first_claim)
        later = {lane_of(task) for task in tasks if task.run_at > self._first_claim}
        self._left = {lane for lane in self._left - later if is_due(lane)}
        self._turns &= {lane.handler for lane in self._left}

    def set_buckets(self, buckets: frozenset[int], until: float | None = None) -> None:
        """Take only the tasks of these buckets, up to a time; see TaskSelection."""
        text = mask(buckets)
        self.is_new |= text != self.selection.buckets
        self.selection = self.selection._replace(buckets=text, until=until)
        self._is_standby = not buckets

    def set_failures(self, most: int | None) -> None:
        """Take only tasks with at most this number of failures; None for all."""
        self.selection = self.selection._replace(failures=most, fresh=None, seen=None)
        self.is_new = True

    @property
    def _own_queue(self) -> str:
        """The queue of this runner alone, which holds its part of broadcasts."""
        return runner_queue(self.runner_id)

    def _takes_part(self, handler: str) -> bool:
        return handler in self._handlers and (handler not in self._own or handler in self._turns)


def _is_above(most: int | None, other: int | None) -> bool:
    """True if a bound of failures is above another one; None means unbounded."""
    return other is not None and (most is None or most > other)
