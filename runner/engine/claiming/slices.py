"""Slices: the share of the buckets that a runner claims from."""

import logging

from runner.db.database import Database
from runner.engine.claiming.claims import Claims
from runner.engine.events import BucketsGained, Events
from runner.engine.lease.lease import MARGIN, Lease, elapsed
from runner.errors import InvalidSettings, StoreError
from runner.policy.selection import ALL, EvenSlices, LiveSlices, StaticSlice
from runner.store.claim.slices import (
    SlicePeer,
    is_double,
    join_slices,
    leave_slices,
    overlapping,
    slice_peers,
    take_buckets,
)
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun

log = logging.getLogger("runner.slices")


class Slices:
    """The buckets that this runner claims from.

    Args:
        lease: the lease of the runner.
        seconds: length of the lease.
        slices: its static slice, or how it divides all buckets with the live runners.
        claims: take tasks of these buckets only.
        events: receives that there are more.
    """

    def __init__(
        self,
        database: Database,
        lease: Lease,
        seconds: float,
        slices: StaticSlice | LiveSlices,
        claims: Claims,
        events: Events,
    ) -> None:
        self._database = database
        self._lease = lease
        self._seconds = seconds
        self._slices = slices
        self._claims = claims
        self._events = events
        self._member = ""
        self._runner_id = 0
        self._buckets: frozenset[int] = frozenset()
        self._confirmed, self._until = -seconds, 0.0
        self._shared: tuple[frozenset[str], frozenset[int]] = frozenset(), frozenset()
        """The members, and the share of this runner among them."""
        self._members: dict[str, float] = {}
        """The last heartbeat of each member that counts, on the clock of the lease."""
        claims.scope.set_buckets(self._buckets, self._until)

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
        buckets = self._slices.buckets if isinstance(self._slices, StaticSlice) else None
        other = overlapping(peers, identity.slice or "", buckets)
        if other is not None:
            runner = f"{runner_name(other.id, other.host)} with the same handlers and queues"
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
            await self._claims.done.wait()
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
        self._claims.scope.set_buckets(buckets, self._until)
        if grows:
            self._events.publish(BucketsGained())

    def _target(self, peers: list[SlicePeer], now: float) -> frozenset[int]:
        if isinstance(self._slices, StaticSlice):
            return self._slices.buckets
        self._count_members(peers, now)
        members = frozenset(self._members)
        is_even = type(self._slices) is EvenSlices
        if self._shared[0] != members or not is_even:  # an own class may divide by more than the members
            is_alone = is_even and len(members) == 1
            self._shared = members, (ALL if is_alone else frozenset(self._slices.share(self._member, members)))
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
