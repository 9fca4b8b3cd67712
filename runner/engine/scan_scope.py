"""Scan scope: what the current scan of a runner may take, by its queues, its poll mode and its selection."""

from collections.abc import Callable, Mapping

from runner.handlers.registry import Handler
from runner.policy.lanes import Lane, runner_queue, serves
from runner.policy.poll_mode import OwnScan, PollMode
from runner.policy.selection import ANY, TaskSelection, mask, parse_buckets
from runner.settings import Settings
from runner.store.lanes import SurveyScope

NO_BOUND = 2**62
"""More tasks than any scan claims."""


class ScanScope:
    """The lanes and the tasks that scans may take at the moment.

    Handlers with scans of their own take part from the start of such a scan until no task of theirs is due. With a
    throttle, the scans of one period take one batch together. With tiers, the tasks that failed take part from a scan
    of their tier until no task is due.

    Args:
        settings: the settings of the runner.
        handlers: the handlers that can execute tasks now, by name.
        mode: the poll mode.
        scans: the handlers of each own scan.
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
        self._scans = scans
        self._may_claim = may_claim
        self._batch = settings.claim_batch_size if mode.is_throttled else None
        self._own = frozenset(name for names in scans.values() for name in names)
        self._turns = self._own
        """The handlers with own scans that take part now; at the start all do."""
        self._number = 0
        self._selection: TaskSelection = ANY
        self.room = NO_BOUND if self._batch is None else self._batch
        """Number of tasks that may still be claimed in this period."""
        self.is_new = False
        """True if the scope has grown since the last survey."""
        self.runner_id = 0
        self._is_standby = False
        """True if other runners have all buckets: only tasks for this runner alone are left."""
        self.set_failures(mode.most_failures(0))
        if settings.buckets is not None:
            self.set_buckets(parse_buckets(settings.buckets))

    @property
    def is_open(self) -> bool:
        """True while a scan may take any task."""
        return self.room > 0 and self._may_claim()

    @property
    def selection(self) -> TaskSelection:
        """The tasks that claims take from the lanes."""
        return self._selection

    def accepts(self, lane: Lane) -> bool:
        """True if the current scan may claim from a lane."""
        queues = (self._own_queue,) if self._is_standby else self._queues
        return self._takes_part(lane.handler) and serves(lane.queue, queues, self._own_queue)

    def survey(self, limit: int, skip: int, dense: int) -> SurveyScope:
        """Return the scope of a survey; for the arguments see SurveyScope."""
        self.is_new = False
        queues = sorted({*self._queues, self._own_queue}) if self._queues else ()
        queues = [self._own_queue] if self._is_standby else queues
        return SurveyScope([name for name in self._handlers if self._takes_part(name)], queues, limit, skip, dense)

    def begin(self) -> None:
        """Begin a periodic scan."""
        self._number += 1
        if self._batch is not None:
            self.room = self._batch
        most = self._mode.most_failures(self._number)
        if _is_above(most, self._selection.failures):
            self.set_failures(most)

    def begin_own(self, scan: OwnScan) -> None:
        """Begin an own scan of some handlers."""
        self.is_new |= not self._scans[scan] <= self._turns
        self._turns |= self._scans[scan]

    def end(self) -> None:
        """Return to the scope of a scan after a submit, because no task is due any more."""
        self._turns = frozenset()
        self._selection = self._selection._replace(failures=self._mode.most_failures(1))

    def record(self, tasks: int) -> None:
        """Record claimed tasks."""
        self.room -= tasks

    def set_buckets(self, buckets: frozenset[int] | None) -> None:
        """Take only the tasks of these buckets; None for all."""
        self._selection = self._selection._replace(buckets=None if buckets is None else mask(buckets))
        self._is_standby = buckets is not None and not buckets
        self.is_new = True

    def set_failures(self, most: int | None) -> None:
        """Take only tasks with at most so many failures; None for all."""
        self._selection = self._selection._replace(failures=most)
        self.is_new = True

    @property
    def _own_queue(self) -> str:
        """The queue of this runner alone, which holds its part of broadcasts."""
        return runner_queue(self.runner_id)

    def _takes_part(self, handler: str) -> bool:
        return handler in self._handlers and (handler not in self._own or handler in self._turns)


def _is_above(most: int | None, other: int | None) -> bool:
    """True if a bound of failures is above another one; None is no bound."""
    return other is not None and (most is None or most > other)
