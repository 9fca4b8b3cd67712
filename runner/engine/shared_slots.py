"""Shared slots: the pools of one set of slots that the runners of several shards use in turn."""

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from runner.engine.in_flight import InFlight
from runner.engine.running import Running
from runner.engine.slots import ProcessSlots, Slots
from runner.policy.polling import LookAhead
from runner.policy.slot_shares import SlotUse, slot_share

S = TypeVar("S", bound=Slots)

PATIENCE = 1.0
"""Seconds for which a free slot waits for the claim of a shard; then the others take it until that shard answers."""

FEW = 10
"""Slots per shard below which none is kept in reserve."""


class SharedPool:
    """A pool of slots that several shards share.

    Args:
        size: maximum number of tasks of all shards that run at the same time.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._members: dict[str, ShardSlots] = {}
        self._turn = 0
        self._offers = False
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, shard: str, member: "ShardSlots") -> None:
        """Add the slots of a shard, in place of those of an earlier runner of it."""
        self._members[shard] = member

    def share(self, shard: str, member: "ShardSlots") -> int:
        """Return the number of slots that a shard may use now."""
        uses = {name: each.use for name, each in self._members.items()}
        reserve = 1 if self.size >= FEW * len(uses) else 0
        return slot_share(self.size, shard, uses | {shard: member.use}, reserve)

    def is_full(self, member: "ShardSlots") -> bool:
        """True if a shard may take no slot now. Most answers need no shares of all shards."""
        in_use = claiming = 0
        for each in self._members.values():
            in_use += each.in_use
            claiming += each.claiming
        if in_use >= self.size:
            return True
        is_below = member.in_use < self.size // len(self._members)
        return not (is_below and in_use + claiming < self.size) and member.in_use >= member.size

    def next_turn(self) -> int:
        """Return a number that is higher than all before."""
        self._turn += 1
        return self._turn

    def offer(self) -> None:
        """Let the shards take slots that one has left free, in the next turn of the event loop."""
        if not self._offers and len(self._members) > 1:
            self._offers = True
            asyncio.get_running_loop().call_soon(self._offer)

    def _offer(self) -> None:
        self._offers = False
        if sum([member.in_use for member in self._members.values()]) >= self.size:
            return
        for member in self._members.values():
            if (member.wanted or member.waiting) and not member.is_full:
                member.receive()
                if self._timer is None:  # the others take the slot if no claim comes
                    self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._offer_again)

    def _offer_again(self) -> None:
        self._timer = None
        for member in self._members.values():
            if member.wanted or member.waiting:
                member.on_room()


class ShardSlots(Slots):
    """The slots of a shard for async handlers or for plain functions. Their number depends on the other shards."""

    def __init__(self, shard: str, name: str, pool: SharedPool, ahead: int) -> None:
        self._shard, self._pool = shard, pool
        self._offered_at = inf
        self.wanted, self._claiming, self._served = False, 0, 0
        self.may_claim: Callable[[], bool] = lambda: False
        self.may_start: Callable[[], bool] = lambda: False
        self.on_room: Callable[[], object] = lambda: None
        super().__init__(name, pool.size, look_ahead=LookAhead(most=ahead))
        pool.enter(shard, self)

    if not TYPE_CHECKING:  # attributes of the base

        @property
        def size(self) -> int:
            """The slots that the shard may use now."""
            return self._pool.share(self._shard, self)

        @size.setter
        def size(self, size: int) -> None:
            self._pool.size = size

        @property
        def claiming(self) -> int:
            """The slots for which a claim is in progress."""
            return self._claiming

        @claiming.setter
        def claiming(self, tasks: int) -> None:
            self._claiming = tasks
            self._offered_at = time.monotonic() if tasks else inf

    def ask(self, wants: Callable[[], bool]) -> None:
        """Record whether a due task has no slot; each call shows that the shard answers."""
        before, self.wanted = self.wanted, wants()
        self._offered_at = inf
        if before and not self.wanted:
            self._pool.offer()

    @property
    def limit(self) -> int:
        """The slots of all shards together."""
        return self._pool.size

    @property
    def use(self) -> SlotUse:
        """The use of the pool by this shard."""
        answers = time.monotonic() - self._offered_at < PATIENCE
        claiming = self._claiming if answers else 0
        claims = bool(self.wanted or claiming) and answers and self.may_claim()
        return SlotUse(self.in_use + claiming, claims or bool(self.waiting and self.may_start()), self._served)

    def receive(self) -> None:
        """Receive the offer of a free slot."""
        if self._offered_at == inf and not self.waiting:
            self._offered_at = time.monotonic()
        self.on_room()

    @property
    def is_full(self) -> bool:
        """True if no task may start."""
        return self._pool.is_full(self)

    def next(self) -> Running | None:
        """Return the next task and occupy a slot for it; None without a slot or a task."""
        running = super().next()
        if running is not None:
            self._served = self._pool.next_turn()
        elif self.waiting:
            self._pool.offer()
        return running

    def put_back(self, running: Running) -> None:
        """Return a task that did not start to its position among the waiting tasks, and release its slot."""
        super().put_back(running)
        self._pool.offer()

    def release(self) -> None:
        """Release the slot of a task that has ended."""
        super().release()
        self._pool.offer()


class ShardProcessSlots(ShardSlots, ProcessSlots):
    """The slots of a shard for process handlers."""


class SharedSlots:
    """The slots of a process for all shards, by the name of each pool."""

    def __init__(self) -> None:
        self._pools: dict[str, SharedPool] = {}

    def make(self, shard: str, kind: type[S], name: str, size: int, ahead: int) -> S:
        """Make the pool of a shard.

        Args:
            size: number of slots for all shards together.
            ahead: maximum number of prefetched tasks of the shard.
        """
        pool = self._pools.setdefault(name, SharedPool(size))
        shared: Any = ShardProcessSlots if issubclass(kind, ProcessSlots) else ShardSlots
        made: S = shared(shard, name, pool, ahead)
        return made


def take_part(
    in_flight: InFlight, may_claim: Callable[[], bool], may_start: Callable[[], bool], on_room: Callable[[], object]
) -> None:
    """Let the slots of a shard have their share.

    Args:
        may_claim: returns True while the shard can claim tasks.
        may_start: returns True while it can start them.
        on_room: called when a slot is free that the shard may take.
    """
    for slots in in_flight.pools:
        if isinstance(slots, ShardSlots):
            slots.may_claim, slots.may_start, slots.on_room = may_claim, may_start, on_room
