"""Claims: the claimant, the lanes and the room that the claims of one runner share."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf

from runner.db.database import Database
from runner.db.types import EARLIEST
from runner.engine.claiming.limited_claims import LimitedClaims, Turn
from runner.engine.claiming.scan_state import Gate
from runner.engine.claiming.scans import ScanScope
from runner.engine.claiming.stuck_claims import StuckClaims
from runner.engine.events import Events, TaskClaimedTwice, TasksClaimed
from runner.engine.in_flight import InFlight
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.handlers.registry import Handler
from runner.model.task import Claimed
from runner.policy.claim_order import parse_order
from runner.policy.lanes import Lane, Lanes
from runner.policy.positions import LanePosition
from runner.policy.retry import load_retry
from runner.policy.selection import listed
from runner.settings import Settings
from runner.store.claim.plain import Claimant, HandlerDefaults, claim


class Claims:
    """The claimant, its lanes and its room, for the claims of one runner, which never overlap.

    It puts the claimed tasks into the slots.

    Args:
        handlers: handlers of the runner by name.
        claimable: the handlers whose tasks it can execute now.
        scope: tasks that scans may take.
        in_flight: claimed tasks of this runner, and its slots.
        stuck: receives the tasks that no claim can take.
        events: receives the claimed tasks.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        handlers: Mapping[str, Handler],
        claimable: Mapping[str, Handler],
        scope: ScanScope,
        in_flight: InFlight,
        stuck: StuckRows,
        events: Events,
    ) -> None:
        self._database, self._handlers = database, claimable
        self.defaults = {name: handler_defaults(handler, settings) for name, handler in handlers.items()}
        self.scope, self.in_flight, self.batch = scope, in_flight, settings.claim_batch_size
        self._events = events
        self.stuck = StuckClaims(stuck)
        start = LanePosition(database.dialect.position(EARLIEST), 0)
        order = parse_order(settings.claim_order)
        self.lanes = Lanes(lambda lane: scope.accepts(lane) and self.stuck.accepts(lane), start, order)
        rooms = self.room_of, self._chunk_room_of
        self.limited = LimitedClaims(database, self.lanes, self.defaults, self.slots_of, *rooms, in_flight.probes)
        self.gate = Gate.UNOPENED
        self.done = asyncio.Event()
        """Set while no claim is in progress: its tasks are in flight."""
        self.done.set()
        self.claimant = Claimant(0, "")

    def register(self, runner_id: int, host: str, payload_limit: int) -> None:
        """Claim as this runner from now on."""
        self.scope.runner_id, self.scope.host = runner_id, host
        self.claimant = Claimant(runner_id, host, payload_limit, self.lanes.order)

    @property
    def may_claim(self) -> bool:
        """True while the gate is open and a scan may take tasks."""
        return self.gate is Gate.OPEN and self.scope.is_open

    @property
    def current_claimant(self) -> Claimant:
        """This runner, with the tasks that it takes now."""
        return self.scope.claimant(self.claimant, self.stuck.without)

    def slots_of(self, lane: Lane) -> Slots:
        """Return the pool of a lane's tasks."""
        return self.in_flight.slots_of(self._handlers[lane.handler])

    def kind(self, lane: Lane) -> tuple[Slots, bool]:
        """Return the pool of a lane and whether it has limits: lanes with the same kind share a claim."""
        return self.slots_of(lane), self.lanes.limited.has_limits(lane)

    def has_handler(self, lane: Lane) -> bool:
        """True if this runner can execute the tasks of a lane now."""
        return lane.handler in self._handlers

    def room_of(self, handler: str) -> int | None:
        """Return the number of tasks that a handler's limit per runner still allows; None without one."""
        most = self._handlers[handler].defaults.limit_per_runner
        return None if most is None else max(0, most - self.in_flight.capped[handler])

    def _chunk_room_of(self, handler: str) -> int | None:
        spec = self._handlers[handler]
        return None if spec.defaults.chunk is None else self.in_flight.slots_of(spec).chunks().room(spec)

    def room_for(self, turn: Turn, slots: Slots) -> int:
        """Return the maximum number of tasks that a claim may take for a turn."""
        handler = turn.lanes[0].handler
        room = self.room_of(handler)  # an earlier turn may have taken tasks of the handler
        most = turn.most if room is None else min(turn.most, room)
        if turn.chunks:
            most = min(most, self._chunk_room_of(handler) or 0)
        return min(most if turn.chunks else slots.room(), self.batch, most, self.scope.room)

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Mark that the database may have claimed tasks that are not in flight yet."""
        self.done.clear()
        try:
            yield
        finally:
            self.done.set()

    def take(self, claimed: Sequence[Claimed], slots: Slots, prefetched: bool = False, **how: bool) -> None:
        """Put claimed tasks into a pool; for `how` see `InFlight.add`."""
        self.scope.room -= len(claimed)
        for task in claimed:
            if self.in_flight.add(task, self._handlers[task.handler], prefetched, slots, **how) is None:
                self._events.publish(TaskClaimedTwice(task))
        self._events.publish(TasksClaimed(slots, claimed, self.gate is Gate.OPEN))

    async def claim_only(self, ids: tuple[int, ...], lanes: list[Lane], *, limited: bool) -> set[int] | None:
        """Claim only these tasks.

        Args:
            lanes: their lanes, of one kind.
            limited: True if these have limits.

        Returns:
            The ids of the claimed tasks; None if their lanes have no room.
        """
        who, slots = self.only(ids), self.slots_of(lanes[0])
        starts, claimed = len(ids) <= slots.free_count, None
        with self.pending():
            if limited:
                claimed = await self.limited.claim_part(who, lanes, len(ids), starts)
            else:
                positions = dict.fromkeys(lanes, self.lanes.start)
                claimed = await self._database.write(claim, who, positions, self.defaults, len(ids), starts)
            self.take(claimed or [], slots, prefetched=not starts, limited=limited)
        return None if claimed is None else {task.id for task in claimed}

    def only(self, ids: Iterable[int]) -> Claimant:
        """Return this runner, taking only these tasks."""
        return self.claimant._replace(selection=self.scope.selection._replace(only=listed(ids)))


def handler_defaults(handler: Handler, settings: Settings) -> HandlerDefaults:
    """Return max_attempts and timeout for the tasks of a handler.

    Raises:
        InvalidRetryPlan: the retry plan in force is invalid. The check runs here, not at the first failure.
    """
    options = handler.defaults
    default = settings.timeout.total_seconds() if settings.timeout else None
    timeout = default if options.timeout is None else options.timeout
    load_retry(options.retry or settings.retry)
    return HandlerDefaults(options.max_attempts or settings.max_attempts, None if timeout == inf else timeout)
