"""Slices: a runner's share of the buckets, static or divided among the live runners of its group.

A change of the group moves only the buckets of the runner that came or went. It counts after one lease: a runner that
comes back within that time gets its buckets back, and one that comes and goes moves nothing.
"""

import logging
from collections.abc import Awaitable, Callable

from runner.db.database import Database
from runner.engine.heartbeat import MARGIN, Lease, elapsed
from runner.errors import InvalidSettings, StoreError
from runner.policy.selection import ALL, StaticSlice, share
from runner.store.slices import SlicePeer, join_slices, leave_slices, overlapping, slice_peers, take_buckets
from runner.text.sanitize import count_noun, one_line

log = logging.getLogger("runner.slices")


class Slices:
    """The buckets that this runner claims from.

    Args:
        database: the database.
        lease: the lease of the runner.
        seconds: length of the lease.
        static: its static slice; None to divide all buckets with the live runners.
        set_buckets: called with the buckets that claims may take from now on.
        claim_done: waits until the current claim has ended.
        scan_soon: starts a scan.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        seconds: float,
        static: StaticSlice | None,
        set_buckets: Callable[[frozenset[int]], None],
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
        self._confirmed = -seconds
        self._shared: tuple[frozenset[str], frozenset[int]] = frozenset(), frozenset()
        self._members: dict[str, float] = {}
        """The last heartbeat of each member that counts, on the clock of the lease."""
        set_buckets(self._buckets)

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
        if self._runner_id != own:  # registered for the first time, or again after it was lost
            self._use(frozenset())
            self._member = await self._database.write(join_slices, identity, own)
            self._runner_id = own
        peers = await self._database.read(slice_peers, identity)
        others = [peer for peer in peers if peer.id != own]
        free = self._wanted(peers, started).difference(*(peer.buckets for peer in others))
        if free != self._buckets:
            self._use(free & self._buckets)
            await self._claim_done()
            free = await self._database.write(take_buckets, identity, own, free)
            if free != self._buckets:
                self._use(free)
                log.info("slice %s: claiming from %s", identity.slice, count_noun(len(free), "bucket"))
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
        self._set_buckets(buckets)
        if grows:
            self._scan_soon()

    def _wanted(self, peers: list[SlicePeer], now: float) -> frozenset[int]:
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
