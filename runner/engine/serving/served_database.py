"""ServedDatabase: the claimed tasks of one database that wait for HTTP executors, and the writes of their outcomes."""

import asyncio
import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator

from runner.engine.events import AttemptsEnded, Events
from runner.engine.external.call import ExternalCall
from runner.engine.external.executor import End, Receive
from runner.engine.in_flight import InFlight
from runner.engine.serving.free_slots import FreeSlots
from runner.engine.serving.pulled_call import Key, PulledCall
from runner.engine.slots import ExternalSlots
from runner.policy.slot_shares import SlotUse

MOST_REMEMBERED = 100_000
"""Written endings that are remembered, for executors that lost the reply and send one again."""

PATIENCE = 2.0
"""Seconds for which a database has a share of the slots after its last look at due tasks: the next one may hang."""

Waiting = list[tuple[tuple[int, int], PulledCall]]
"""A heap of calls by rank."""


class PulledExecutor:
    """The executors that pull the tasks of one handler, as the external executor of the engine.

    Args:
        begin: queues a call for them.
        room: returns the number of tasks to claim now; True if they are short.
    """

    calls_on_loop = True
    span = 0.0

    def __init__(
        self,
        begin: Callable[[ExternalCall, Receive, End], PulledCall],
        room: Callable[[bool], int],
        held: Callable[[], int],
    ) -> None:
        self._begin, self._room, self._held = begin, room, held
        self._resize: Callable[[int], object] = lambda _: None
        self._size = 0
        self._slots: ExternalSlots | None = None

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:  # noqa: ARG002 - it stays
        """Receive the number of slots from now on."""
        self._resize = resize
        resize(self._size)

    def start(self, call: ExternalCall, receive: Receive, end: End) -> PulledCall:
        """Queue a call for the executors."""
        return self._begin(call, receive, end)

    def close(self) -> None:
        """Change no slots any more."""
        self._resize = lambda _: None

    def use(self, slots: ExternalSlots) -> None:
        """Bound the claims for these slots: other handlers and databases share them."""
        self._slots = slots
        slots.bound = lambda: self._room(slots.ahead > 0)

    def set_size(self, size: int) -> None:
        """Set the number of slots."""
        if size != self._size:
            self._size = size
            self._resize(size)

    @property
    def pending(self) -> int:
        """The number of claimed tasks that no executor has."""
        slots = self._slots
        return 0 if slots is None else max(0, slots.in_use + len(slots.waiting) - self._held())

    def wants(self, now: float) -> bool:
        """True if due tasks have no slot, as far as known; the time is in monotonic seconds."""
        return self._slots is not None and now - self._slots.wanted_at < PATIENCE


class ServedDatabase:
    """One database of a server.

    Args:
        shard: its name; empty if there is only one.
        result_limit: maximum size of a result in bytes.
        slots: the free slots of the executors.
        on_waiting: receives each new call that waits for an executor.
        forget: takes a call from the queue or from its executor.
    """

    def __init__(
        self,
        shard: str,
        handlers: Iterable[str],
        result_limit: int,
        slots: FreeSlots,
        on_waiting: Callable[[PulledCall], object],
        forget: Callable[[PulledCall], object],
    ) -> None:
        self.shard, self.result_limit = shard, result_limit
        self._slots, self._on_waiting, self._forget = slots, on_waiting, forget
        self.held: Counter[str] = Counter()
        """The number of tasks that executors have, by handler."""
        self.served = 0
        """A number that was higher at the later start of a task."""
        self.executors = {handler: self._executor(handler) for handler in handlers}
        self.waiting: dict[str, Waiting] = {handler: [] for handler in self.executors}
        self._writes: dict[Key, asyncio.Future[str]] = {}
        self._written: OrderedDict[Key, str] = OrderedDict()

    def join(self, events: Events, in_flight: InFlight) -> None:
        """Serve the tasks of a runner from now on."""
        events.subscribe(AttemptsEnded, self._note_writes)
        for handler, executor in self.executors.items():
            executor.use(in_flight.external[handler])
        in_flight.sharing = frozenset(self.executors)
        in_flight.shared_size = lambda: self._slots.free + sum(self.held.values())

    def use(self, handlers: Iterable[str], now: float) -> SlotUse:
        """Return the use of slots for some handlers."""
        executors = [self.executors[handler] for handler in handlers]
        used = sum(executor.pending for executor in executors)
        return SlotUse(used, used > 0 or any(executor.wants(now) for executor in executors), self.served)

    def _executor(self, handler: str) -> PulledExecutor:
        def room(is_short: bool) -> int:
            return self._slots.room(self.shard, handler, is_short=is_short)

        return PulledExecutor(self._begin, room, lambda: self.held[handler])

    def _begin(self, call: ExternalCall, receive: Receive, end: End) -> PulledCall:
        pulled = PulledCall(self.shard, self._forget, call.call, receive, end, time.monotonic())
        heapq.heappush(self.waiting[pulled.task.handler], (pulled.rank, pulled))
        self._on_waiting(pulled)
        return pulled

    def take(self, handlers: Iterable[str]) -> PulledCall | None:
        """Remove and return the most urgent call of some handlers; None without one."""
        queues = [queue for name in handlers if (queue := self.waiting[name])]
        return heapq.heappop(min(queues, key=_first))[1] if queues else None

    def remove(self, call: PulledCall) -> None:
        """Remove a call that waits."""
        waiting = self.waiting[call.task.handler]
        waiting[:] = [entry for entry in waiting if entry[1] is not call]
        heapq.heapify(waiting)

    def received_before(self, before: float) -> Iterator[PulledCall]:
        """Remove and return the calls that have waited since before a time in monotonic seconds."""
        for waiting in self.waiting.values():
            old = [call for _, call in waiting if call.received_at < before]
            if old:
                waiting[:] = [entry for entry in waiting if entry[1].received_at >= before]
                heapq.heapify(waiting)
            yield from old

    def write_of(self, key: Key) -> "asyncio.Future[str] | None":
        """Return the write of an ending that an executor sends again; None for a new one."""
        if (write := self._writes.get(key)) is None and (written := self._written.get(key)) is not None:
            write = asyncio.get_running_loop().create_future()
            write.set_result(written)
        return write

    def expect_write(self, key: Key) -> "asyncio.Future[str]":
        """Return a future that receives the move of an attempt when it is written."""
        write = self._writes[key] = asyncio.get_running_loop().create_future()
        return write

    def _note_writes(self, event: AttemptsEnded) -> None:
        """Answer the settles whose outcomes are written."""
        for running, _ in event.attempts:
            key = self.shard, running.task.id, running.task.fence
            if (write := self._writes.pop(key, None)) is None:
                continue
            self._written[key] = move = event.verb or ""
            if len(self._written) > MOST_REMEMBERED:
                self._written.popitem(last=False)
            if not write.done():
                write.set_result(move)


def _first(queue: Waiting) -> tuple[int, int]:
    return queue[0][0]
