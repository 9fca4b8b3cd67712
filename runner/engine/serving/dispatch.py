"""Dispatch: the queues of claimed tasks by handler, and the HTTP executors that pull them."""

import asyncio
import heapq
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from math import inf

from runner.engine.events import AttemptsEnded
from runner.engine.external.executor import End, Receive
from runner.engine.processes.messages import ProcessEnd
from runner.engine.serving.ending import end_call
from runner.engine.serving.protocol import (
    AttemptKey,
    CheckpointRequest,
    Ending,
    EndingReply,
    LeaseReply,
    LeaseRequest,
    LogRequest,
    NoteReply,
    ProgressRequest,
    PulledTask,
    PullReply,
    PullRequest,
    SettleReply,
    SettleRequest,
    StopRequest,
)
from runner.engine.serving.pulled_call import Key, PulledCall
from runner.model.outcome import Release
from runner.settings.serve_tokens import ServeToken

log = logging.getLogger("runner")

MAX_QUEUE_WAIT = 2.0
"""Seconds that a claimed task waits for an executor before other runners can take it."""

SWEEP_EVERY = 0.5
"""Seconds between two looks at the leases."""

WRITE_LIMIT = 30.0
"""Seconds for which a settle waits for the database."""

MOST_REMEMBERED = 100_000
"""Written endings that are remembered, for executors that lost the reply and send one again."""

LOST = "its lease ran out, or another claim has the task: the outcome changed nothing"


class HttpSession:
    """One HTTP executor, known by its token and its name."""

    def __init__(self, token: str, name: str) -> None:
        self.token, self.name = token, name
        self.handlers: frozenset[str] = frozenset()
        self.free = 0
        """The number of tasks that it can start now."""
        self.pulls = False
        """True until its last pull asks for no tasks, or loses its connection: then an end frees no slot."""
        self.last_pull: PullRequest | None = None
        self.seen_at = time.monotonic()
        self.held: dict[Key, PulledCall] = {}


class PulledExecutor:
    """The executors that pull the tasks of one handler, as the external executor of the engine."""

    def __init__(self, dispatch: "Dispatch", handler: str) -> None:
        self._dispatch, self._handler = dispatch, handler
        self.resize: Callable[[int], object] = lambda _: None
        self.size = 0

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:  # noqa: ARG002 - it stays
        """Receive the number of slots from now on."""
        self.resize = resize
        resize(self.size)

    def start(self, number: int, data: bytes, receive: Receive, end: End) -> PulledCall:  # noqa: ARG002 - in the data
        """Queue a call for the executors."""
        call = PulledCall(self._dispatch.forget, data, receive, end, time.monotonic())
        self._dispatch.queue(call)
        return call

    def close(self) -> None:
        """Change no slots any more."""
        self.resize = lambda _: None


class Dispatch:
    """Gives claimed tasks to the executors that pull, and their outcomes to the engine.

    Args:
        handlers: the names of the handlers.
        lease: seconds without a heartbeat after which an executor has lost a task.
        result_limit: maximum size of a result in bytes.
    """

    def __init__(self, handlers: Iterable[str], lease: float, result_limit: int) -> None:
        self.lease, self._result_limit = lease, result_limit
        self.executors = {name: PulledExecutor(self, name) for name in handlers}
        self._waiting: dict[str, list[tuple[tuple[int, int], PulledCall]]] = {name: [] for name in self.executors}
        self._sessions: dict[tuple[str, str], HttpSession] = {}
        self._pulls: OrderedDict[asyncio.Future[None], HttpSession] = OrderedDict()
        self._writes: dict[Key, asyncio.Future[str]] = {}
        self._written: OrderedDict[Key, str] = OrderedDict()
        self._holders: dict[Key, HttpSession] = {}
        self._held: Counter[str] = Counter()
        """The number of tasks that executors have, by handler."""
        self._changed: set[str] = set()
        """The handlers whose slots change in this turn of the event loop."""
        self.is_draining = False

    def queue(self, call: PulledCall) -> None:
        """Queue a call until an executor pulls it."""
        heapq.heappush(self._waiting[call.task.handler], (call.rank, call))
        self._wake(call.task.handler)

    def forget(self, call: PulledCall) -> None:
        """Forget a call: a settle of it is refused from now on."""
        call.close()
        if not call.is_pulled:
            waiting = self._waiting[call.task.handler]
            waiting[:] = [entry for entry in waiting if entry[1] is not call]
            heapq.heapify(waiting)
        elif (session := self._holders.pop(call.key, None)) is not None:
            del session.held[call.key]
            self._held[call.task.handler] -= 1
            self._resize(session.handlers | {call.task.handler})

    async def pull(self, token: ServeToken, request: PullRequest) -> PullReply:
        """Return tasks for an executor, or wait for the first one. A later pull ends the wait of an earlier one."""
        session = self._session(token, request.executor)
        changed = session.handlers | frozenset(request.handlers)
        session.handlers, session.free = frozenset(request.handlers), request.free
        session.pulls, session.last_pull = request.free > 0, request
        for earlier in [each for each, puller in self._pulls.items() if puller is session]:
            _set(earlier)
        self._resize(changed)
        end, tasks = time.monotonic() + request.wait, self._take(session)
        while not tasks and self._may_wait(session, request) and (left := end - time.monotonic()) > 0:
            wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._pulls[wake] = session
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await wake
            except asyncio.CancelledError:  # the executor has closed the connection
                del self._pulls[wake]
                self._lose_pull(session)
                raise
            finally:
                self._pulls.pop(wake, None)
            session.seen_at = time.monotonic()
            tasks = self._take(session) if session.last_pull is request else []
        return PullReply.model_construct(
            tasks=tasks, lease=self.lease, heartbeat=self.lease / 5, draining=self.is_draining
        )

    def _may_wait(self, session: HttpSession, request: PullRequest) -> bool:
        return request.free > 0 and session.last_pull is request and not self.is_draining

    def take_back(self, token: ServeToken, request: PullRequest, reply: PullReply) -> None:
        """Return the tasks of a reply that its executor has not received; their attempts do not count."""
        session = self._session(token, request.executor)
        for task in reply.tasks:
            if (call := session.held.get((task.id, task.fence))) is not None:
                self.forget(call)
                call.finish(Release("its executor closed the connection before it received the task"))
        self._lose_pull(session)

    async def settle(self, token: ServeToken, request: SettleRequest) -> SettleReply:
        """Write the ends of attempts, and return the answer to each."""
        session = self._session(token, request.executor)
        replies = [self._end(session, ending) for ending in request.endings]
        if writes := [reply for reply in replies if isinstance(reply, asyncio.Future)]:
            await asyncio.wait(writes, timeout=WRITE_LIMIT)
        pairs = zip(request.endings, replies, strict=True)
        return SettleReply.model_construct(endings=[_reply(ending, reply) for ending, reply in pairs])

    def heartbeat(self, token: ServeToken, request: LeaseRequest) -> LeaseReply:
        """Renew the leases of the tasks that an executor runs."""
        session, end = self._session(token, request.executor), time.monotonic() + self.lease
        stop, lost = [], []
        for attempt in request.tasks:
            call = session.held.get((attempt.id, attempt.fence))
            if call is None:
                lost.append(AttemptKey(id=attempt.id, fence=attempt.fence))
                continue
            call.lease_end = end
            if call.is_stopped:
                stop.append(StopRequest(id=attempt.id, fence=attempt.fence, terminated=call.is_terminated))
        return LeaseReply(stop=stop, lost=lost)

    def note_progress(self, token: ServeToken, request: ProgressRequest) -> NoteReply:
        """Store the progress of attempts."""
        session, lost = self._session(token, request.executor), []
        for each in request.progress:
            if (call := session.held.get((each.id, each.fence))) is None:
                lost.append(AttemptKey(id=each.id, fence=each.fence))
            else:
                call.message("progress", each.done, each.total, each.unit)
        return NoteReply(lost=lost)

    def note_lines(self, token: ServeToken, request: LogRequest) -> NoteReply:
        """Add lines to the logs of attempts."""
        session, lost = self._session(token, request.executor), []
        for each in request.lines:
            if (call := session.held.get((each.id, each.fence))) is None:
                lost.append(AttemptKey(id=each.id, fence=each.fence))
            else:
                call.message("line", each.level, each.text)
        return NoteReply(lost=lost)

    async def checkpoint(self, token: ServeToken, request: CheckpointRequest) -> NoteReply:
        """Store a checkpoint; an error of the runner is raised."""
        key = request.id, request.fence
        if (call := self._session(token, request.executor).held.get(key)) is not None:
            with suppress(asyncio.CancelledError):  # the attempt has ended
                await call.ask("save", json.dumps(request.state))
                return NoteReply(lost=[])
        return NoteReply(lost=[AttemptKey(id=request.id, fence=request.fence)])

    def drain(self) -> None:
        """Give no more tasks to executors, and return the waiting ones."""
        self.is_draining = True
        self._hand_back(inf, "its server stopped before the task started")
        for wake in list(self._pulls):
            _set(wake)

    async def sweep(self) -> None:
        """Look at the leases until this is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            self.sweep_once(time.monotonic())

    def sweep_once(self, now: float) -> None:
        """End the calls and the executors whose leases have run out, and return the calls that wait too long.

        Args:
            now: the time in monotonic seconds.
        """
        self._hand_back(now - MAX_QUEUE_WAIT, "no executor had a free slot")
        for key, session in list(self._sessions.items()):
            for call in [call for call in session.held.values() if call.lease_end < now]:
                self.forget(call)
                call.lose(f"executor {session.name} sent no heartbeat for it in {self.lease:g} s")
            if not session.held and session.seen_at + self.lease < now and not self._is_pulling(session):
                del self._sessions[key]
                log.info("executor %s of token %s is gone", session.name, session.token)
                self._resize(session.handlers)

    def note_writes(self, event: AttemptsEnded) -> None:
        """Answer the settles whose outcomes are written."""
        for running, _ in event.attempts:
            key = running.task.id, running.task.fence
            if (write := self._writes.pop(key, None)) is None:
                continue
            self._written[key] = move = event.verb or ""
            if len(self._written) > MOST_REMEMBERED:
                self._written.popitem(last=False)
            if not write.done():
                write.set_result(move)

    def _end(self, session: HttpSession, ending: Ending) -> "asyncio.Future[str] | str":
        """End a call; return its write, or why it is refused."""
        key = ending.id, ending.fence
        if (write := self._writes.get(key)) is not None:
            return write
        written, call = self._written.get(key), session.held.get(key)
        write = asyncio.get_running_loop().create_future()
        if written is not None:
            write.set_result(written)
            return write
        if call is None:
            return LOST
        end = end_call(call, ending, self._result_limit)
        if not isinstance(end, ProcessEnd):
            return end
        self._writes[key] = write
        self.forget(call)
        session.free += session.pulls
        self._resize(session.handlers)
        call.finish(end.outcome, end.error)
        return write

    def _session(self, token: ServeToken, name: str) -> HttpSession:
        key = token.name, name
        if (session := self._sessions.get(key)) is None:
            session = self._sessions[key] = HttpSession(*key)
            log.info("executor %s of token %s connected", name, token.name)
        session.seen_at = time.monotonic()
        return session

    def _is_pulling(self, session: HttpSession) -> bool:
        return session in self._pulls.values()

    def _take(self, session: HttpSession) -> list[PulledTask]:
        """Give waiting calls to an executor, by priority."""
        tasks: list[PulledTask] = []
        queues = [self._waiting[name] for name in session.handlers]
        lease_end = time.monotonic() + self.lease
        while session.free and (first := min((queue for queue in queues if queue), key=_first, default=None)):
            _, call = heapq.heappop(first)
            session.free -= 1
            session.held[call.key], self._holders[call.key] = call, session
            self._held[call.task.handler] += 1
            tasks.append(call.begin(lease_end))
        self._wake_all(session.handlers)
        if tasks:
            self._resize(session.handlers)
        return tasks

    def _lose_pull(self, session: HttpSession) -> None:
        """Note that an executor has closed the connection of a pull: it has no free slots, unless it pulls again."""
        if not self._is_pulling(session):
            session.free, session.pulls = 0, False
            self._resize(session.handlers)
        self._wake_all(session.handlers)

    def _wake_all(self, handlers: Iterable[str]) -> None:
        """Wake a pull for each handler that has waiting calls."""
        for name in handlers:
            if self._waiting[name]:
                self._wake(name)

    def _wake(self, handler: str) -> None:
        """Wake the pull that has waited longest for a handler."""
        for wake, session in self._pulls.items():
            if handler in session.handlers and not wake.done():
                _set(wake)
                return

    def _resize(self, handlers: Iterable[str]) -> None:
        """Set the slots of handlers in the next turn of the event loop, together for all that has changed by then."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._set_slots)
        self._changed.update(handlers)

    def _set_slots(self) -> None:
        """Set the slots of handlers: the tasks that executors have, and those that they can start."""
        changed, self._changed = self._changed, set()
        for name in changed:
            free = sum(session.free for session in self._sessions.values() if name in session.handlers)
            size, executor = self._held[name] + free, self.executors[name]
            if size != executor.size:
                executor.size = size
                executor.resize(size)

    def _hand_back(self, before: float, why: str) -> None:
        for waiting in self._waiting.values():
            old = [call for _, call in waiting if call.received_at < before]
            waiting[:] = [entry for entry in waiting if entry[1].received_at >= before]
            heapq.heapify(waiting)
            for call in old:
                call.close()
                call.finish(Release(why))


def _first(queue: Sequence[tuple[tuple[int, int], PulledCall]]) -> tuple[int, int]:
    return queue[0][0]


def _set(wake: "asyncio.Future[None]") -> None:
    if not wake.done():
        wake.set_result(None)


def _reply(ending: Ending, reply: "asyncio.Future[str] | str") -> EndingReply:
    status, move, why = "refused", "", LOST
    if isinstance(reply, str):
        why = reply
    elif not reply.done():
        status, why = "pending", f"the database has not confirmed it in {WRITE_LIMIT:g} s: send it again"
    elif move := reply.result():
        status, why = "settled", ""
    return EndingReply.model_construct(id=ending.id, fence=ending.fence, status=status, move=move, why=why)
