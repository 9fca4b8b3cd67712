"""Scans: the tasks that the scans of a runner may take, and its share of the buckets."""

import logging
from collections.abc import Awaitable, Callable, Mapping

from runner.db.database import Database
from runner.engine.heartbeat import MARGIN, Lease, elapsed
from runner.errors import InvalidSettings, StoreError
from runner.handlers.registry import Handler
from runner.policy.lanes import Lane, runner_queue, serves
from runner.policy.polling import OwnScan, PollMode
from runner.policy.selection import ALL, ANY, StaticSlice, TaskSelection, mask, parse_buckets, share
from runner.settings import Settings
from runner.store.lanes import SurveyScope
from runner.store.slices import SlicePeer, is_double, join_slices, leave_slices, overlapping, slice_peers, take_buckets
from runner.text.operator import admits
from runner.text.sanitize import count_noun, one_line

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

    @property
    def selection(self) -> TaskSelection:
        """The tasks that claims take from the lanes."""
        return self._selection

    def accepts(self, lane: Lane) -> bool:
        """True if the current scan may claim from a lane."""
        queues = (self._own_queue,) if self._is_standby else self._queues
        accepted = self._takes_part(lane.handler) and serves(lane.queue, queues, self._own_queue)
        return accepted and admits(lane.hosts, self.host)

    def survey(self, limit: int, skip: int, dense: int) -> SurveyScope:
        """Return the scope of a survey; for the arguments see SurveyScope."""
        self.is_new = False
        queues = sorted({*self._queues, self._own_queue}) if self._queues else ()
        queues = [self._own_queue] if self._is_standby else queues
        handlers = [name for name in self._handlers if self._takes_part(name)]
        return SurveyScope(handlers, queues, limit, skip, dense, self.host)

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

    def set_buckets(self, buckets: frozenset[int], until: float | None = None) -> None:
        """Take only the tasks of these buckets, up to a time; see TaskSelection."""
        text = mask(buckets)
        self.is_new |= text != self._selection.buckets
        self._selection = self._selection._replace(buckets=text, until=until)
        self._is_standby = not buckets

    def set_failures(self, most: int | None) -> None:
        """Take only tasks with at most this number of failures; None for all."""
        self._selection = self._selection._replace(failures=most)
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


log = logging.getLogger("runner.slices")


class Slices:
    """The buckets that this runner claims from.

    Args:
        database: the database.
        lease: the lease of the runner.
        seconds: length of the lease.
        static: its static slice; None to divide all buckets with the live runners.
        set_buckets: called with the buckets that claims may take from now on, and up to when.
        claim_done: waits until the current claim has ended.
        scan_soon: starts a scan.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        seconds: float,
        static: StaticSlice | None,
        set_buckets: Callable[[frozenset[int], float], None],
        claim_done: Callable[[], Awaitable[None]],
        scan_soon: Callable[[], None],
    ) -> None:
        self._database = database
        self._lease = lease
        self._seconds = seconds
        self._static = static
        self._set_buckets = set_buckets
        self._claim_done = claim_done
        self._scan_soon = scan_soon
        self._member = ""
        self._runner_id = 0
        self._buckets: frozenset[int] = frozenset()
        self._confirmed, self._until = -seconds, 0.0
        self._shared: tuple[frozenset[str], frozenset[int]] = frozenset(), frozenset()
        self._members: dict[str, float] = {}
        """The last heartbeat of each member that counts, on the clock of the lease."""
        set_buckets(self._buckets, self._until)

    @property
    def is_valid(self) -> bool:
        """True while no other runner can have taken a bucket of this one."""
        return elapsed() - self._confirmed < self._seconds * MARGIN

    async def check(self) -> None:
        """Refuse a slice that overlaps that of a live runner in part.

        Raises:
            InvalidSettings: it does; the message names that runner.
        """
        identity = self._lease.identity
        peers = await self._database.read(slice_peers, identity)
        other = overlapping(peers, identity.slice or "", self._static.buckets if self._static else None)
        if other is not None:
            runner = f"runner {other.id} ({one_line(other.host)}) with the same handlers and queues"
            why = f"{identity.slice!r} overlaps {other.slice!r} of {runner}; use one number of slices, or live for all"
            raise InvalidSettings(where="slice", why=why)

    async def sync(self) -> None:
        """Compare the buckets of this runner with the rows of the others. Call it after each heartbeat."""
        try:
            await self._sync()
        except StoreError as error:
            log.warning("could not read the slices of the other runners: %s", error)

    async def _sync(self) -> None:
        started, own, identity = elapsed(), self._lease.id, self._lease.identity
        if not own or not self._lease.is_valid:
            return
        peers = await self._database.read(slice_peers, identity)
        if self._runner_id != own or is_double(peers, own):  # registered for the first time, or after it was lost
            self._use(frozenset())
            self._member, self._runner_id = await self._database.write(join_slices, identity, own), own
            peers = await self._database.read(slice_peers, identity)
        others = [peer for peer in peers if peer.id != own]
        self._until = next((peer.until for peer in peers if peer.id == own), 0.0)
        free = self._target(peers, started).difference(*(peer.buckets for peer in others))
        if free != self._buckets:
            self._use(free & self._buckets)
            await self._claim_done()
            free = await self._database.write(take_buckets, identity, own, free)
            if free != self._buckets:
                log.info("slice %s: claiming from %s", identity.slice, count_noun(len(free), "bucket"))
        self._use(free)
        self._confirmed = started

    async def leave(self) -> None:
        """Free the buckets, because this runner drains. No claim may run."""
        try:
            await self._database.write(leave_slices, self._lease.id)
        except StoreError as error:
            log.warning("could not free the buckets, the lease will expire: %s", error)

    def _use(self, buckets: frozenset[int]) -> None:
        """Claim from these buckets only."""
        grows = not buckets <= self._buckets
        self._buckets = buckets
        self._set_buckets(buckets, self._until)
        if grows:
            self._scan_soon()

    def _target(self, peers: list[SlicePeer], now: float) -> frozenset[int]:
        if self._static is not None:
            return self._static.buckets
        self._count_members(peers, now)
        members = frozenset(self._members)
        if self._shared[0] != members:
            self._shared = members, (share(self._member, members) if len(members) > 1 else ALL)
        return self._shared[1]

    def _count_members(self, peers: list[SlicePeer], now: float) -> None:
        """Update the members: a newcomer counts after one lease, and so does the end of a member."""
        mine = next((peer.age for peer in peers if peer.id == self._runner_id), 0.0)
        for peer in peers:
            counts = peer.member in self._members or peer.age >= self._seconds or mine < self._seconds
            if peer.member and counts:
                self._members[peer.member] = now - peer.silence
        self._members[self._member] = now
        self._members = {name: at for name, at in self._members.items() if now - at < self._seconds}
