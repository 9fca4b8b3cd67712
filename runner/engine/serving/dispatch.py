"""Dispatch: the HTTP executors of a server, and the claimed tasks of its databases that they pull."""

import asyncio
import json
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from math import inf
from typing import Any

from runner.engine.processes.messages import ProcessEnd
from runner.engine.serving.free_slots import FreeSlots, HttpSession
from runner.engine.serving.protocol import (
    AttemptKey,
    CheckpointRequest,
    Ending,
    LeaseReply,
    LeaseRequest,
    LogRequest,
    NoteReply,
    ProgressRequest,
    PullRequest,
    SettleRequest,
    StopRequest,
)
from runner.engine.serving.pulled_call import Key, PulledCall, end_call
from runner.engine.serving.served_database import ServedDatabase
from runner.model.outcome import Release
from runner.policy.slot_shares import SlotUse
from runner.settings.serve_tokens import ServeToken

log = logging.getLogger("runner")

MAX_QUEUE_WAIT = 2.0
"""Seconds that a claimed task waits for an executor before other runners can take it."""

SWEEP_EVERY = 0.5
"""Seconds between two looks at the leases."""

WRITE_LIMIT = 30.0
"""Seconds for which a settle waits for the database."""

LOST = "its lease ran out, or another claim has the task: the outcome changed nothing"


class Dispatch:
    """Gives claimed tasks to the executors that pull, and their outcomes to the engines.

    Args:
        handlers: the names of the handlers.
        lease: seconds without a heartbeat after which an executor has lost a task.
    """

    def __init__(self, handlers: Iterable[str], lease: float) -> None:
        self.lease, self._handlers = lease, tuple(handlers)
        self.databases: dict[str, ServedDatabase] = {}
        self.slots = FreeSlots(self._uses, self._held)
        self._sessions: dict[tuple[str, str], HttpSession] = {}
        self._pulls: OrderedDict[asyncio.Future[None], HttpSession] = OrderedDict()
        self._holders: dict[Key, HttpSession] = {}
        self._changed: set[str] = set()
        """The handlers whose slots change in this turn of the event loop."""
        self.is_draining = False
        self._serves = 0
        """The number of tasks that executors have received."""

    def serve(self, shard: str, result_limit: int) -> ServedDatabase:
        """Serve a database, and return it for its runner.

        Args:
            shard: its name; empty if there is only one.
            result_limit: maximum size of a result in bytes.
        """
        places = self.slots, lambda call: self._wake(call.task.handler), self.forget
        database = self.databases[shard] = ServedDatabase(shard, self._handlers, result_limit, *places)
        return database

    def forget(self, call: PulledCall) -> None:
        """Forget a call: a settle of it is refused from now on."""
        call.close()
        database, handler = self.databases[call.shard], call.task.handler
        if not call.is_pulled:
            database.remove(call)
        elif (session := self._holders.pop(call.key, None)) is not None:
            del session.held[call.key]
            database.held[handler] -= 1
            self._resize(session.handlers | {handler})

    async def pull(self, token: ServeToken, request: PullRequest) -> list[PulledCall]:
        """Return tasks for an executor, or wait for the first one. A later pull ends the wait of an earlier one."""
        session, handlers = self._session(token, request.executor), frozenset(request.handlers)
        changed = session.handlers | handlers
        self.slots.change(session, request.free, handlers)
        session.pulls, session.last_pull = request.free > 0, request
        for earlier in [each for each, puller in self._pulls.items() if puller is session]:
            _set(earlier)
        self._resize(changed)
        end, calls = time.monotonic() + request.wait, self._take(session)
        while not calls and self._may_wait(session, request) and (left := end - time.monotonic()) > 0:
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
            calls = self._take(session) if session.last_pull is request else []
        return calls

    def pull_reply(self, calls: Iterable[PulledCall]) -> str:
        """Return a PullReply as JSON."""
        duties = {"lease": self.lease, "heartbeat": self.lease / 5, "draining": self.is_draining}
        return f'{json.dumps(duties)[:-1]}, "tasks": [{", ".join(call.text for call in calls)}]}}'

    def _may_wait(self, session: HttpSession, request: PullRequest) -> bool:
        return request.free > 0 and session.last_pull is request and not self.is_draining

    def take_back(self, token: ServeToken, request: PullRequest, calls: Iterable[PulledCall]) -> None:
        """Return the tasks of a reply that its executor has not received; their attempts do not count."""
        session = self._session(token, request.executor)
        for call in calls:
            if session.held.get(call.key) is call:
                self.forget(call)
                call.finish(Release("its executor closed the connection before it received the task"))
        self._lose_pull(session)

    async def settle(self, token: ServeToken, request: SettleRequest) -> str:
        """Write the ends of attempts, and return a SettleReply as JSON, with the answer to each."""
        session = self._session(token, request.executor)
        replies = [self._end(session, ending) for ending in request.endings]
        if writes := [reply for reply in replies if isinstance(reply, asyncio.Future)]:
            await asyncio.wait(writes, timeout=WRITE_LIMIT)
        pairs = zip(request.endings, replies, strict=True)
        return json.dumps({"endings": [_reply(ending, reply) for ending, reply in pairs]})

    def heartbeat(self, token: ServeToken, request: LeaseRequest) -> LeaseReply:
        """Renew the leases of the tasks that an executor runs."""
        session, end = self._session(token, request.executor), time.monotonic() + self.lease
        stop, lost = [], []
        for attempt in request.tasks:
            call = session.held.get(attempt.claim)
            if call is None:
                lost.append(_key(attempt))
                continue
            call.lease_end = end
            if call.is_stopped:
                shard, id, fence = attempt.claim
                stop.append(StopRequest(shard=shard, id=id, fence=fence, terminated=call.is_terminated))
        return LeaseReply(stop=stop, lost=lost)

    def note_progress(self, token: ServeToken, request: ProgressRequest) -> NoteReply:
        """Store the progress of attempts."""
        session, lost = self._session(token, request.executor), []
        for each in request.progress:
            if (call := session.held.get(each.claim)) is None:
                lost.append(_key(each))
            else:
                call.message("progress", each.done, each.total, each.unit)
        return NoteReply(lost=lost)

    def note_lines(self, token: ServeToken, request: LogRequest) -> NoteReply:
        """Add lines to the logs of attempts."""
        session, lost = self._session(token, request.executor), []
        for each in request.lines:
            if (call := session.held.get(each.claim)) is None:
                lost.append(_key(each))
            else:
                call.message("line", each.level, each.text)
        return NoteReply(lost=lost)

    async def checkpoint(self, token: ServeToken, request: CheckpointRequest) -> NoteReply:
        """Store a checkpoint; an error of the runner is raised."""
        if (call := self._session(token, request.executor).held.get(request.claim)) is not None:
            with suppress(asyncio.CancelledError):  # the attempt has ended
                await call.ask("save", json.dumps(request.state))
                return NoteReply(lost=[])
        return NoteReply(lost=[_key(request)])

    def drain(self) -> None:
        """Give no more tasks to executors, and return the waiting ones."""
        self.is_draining = True
        for database in self.databases.values():
            self._hand_back(database, inf, "its server stopped before the task started")
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
        for database in self.databases.values():
            self._hand_back(database, now - MAX_QUEUE_WAIT, "no executor had a free slot")
        for key, session in list(self._sessions.items()):
            for call in [call for call in session.held.values() if call.lease_end < now]:
                self.forget(call)
                call.lose(f"executor {session.name} sent no heartbeat for it in {self.lease:g} s")
            if not session.held and session.seen_at + self.lease < now and not self._is_pulling(session):
                del self._sessions[key]
                log.info("executor %s of token %s is gone", session.name, session.token)
                self._resize(session.handlers)
                self.slots.remove(session)

    def _end(self, session: HttpSession, ending: Ending) -> "asyncio.Future[str] | str":
        """End a call; return its write, or why it is refused."""
        key = ending.claim
        if (database := self.databases.get(ending.shard)) is None:
            return LOST
        if (write := database.write_of(key)) is not None:
            return write
        if (call := session.held.get(key)) is None:
            return LOST
        end = end_call(call, ending, database.result_limit)
        if not isinstance(end, ProcessEnd):
            return end
        write = database.expect_write(key)
        self.forget(call)
        self.slots.change(session, session.free + session.pulls)
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

    def _take(self, session: HttpSession) -> list[PulledCall]:
        """Give waiting calls to an executor: of the databases in turns, and of each the most urgent ones."""
        calls: list[PulledCall] = []
        databases, free, lease_end = list(self.databases.values()), session.free, time.monotonic() + self.lease
        turn = random.randrange(len(databases)) if databases else 0  # noqa: S311 - spreads tasks, guards nothing
        while databases and len(calls) < free:
            turn %= len(databases)
            if (call := databases[turn].take(session.handlers)) is None:
                del databases[turn]
                continue
            session.held[call.key], self._holders[call.key] = call, session
            databases[turn].held[call.task.handler] += 1
            databases[turn].served = self._serves = self._serves + 1
            call.begin(lease_end)
            calls.append(call)
            turn += 1
        if calls:
            self.slots.change(session, free - len(calls))
            self._resize(session.handlers)
        self._wake_all(session.handlers)
        return calls

    def _lose_pull(self, session: HttpSession) -> None:
        """Note that an executor has closed the connection of a pull: it has no free slots, unless it pulls again."""
        if not self._is_pulling(session):
            self.slots.change(session, 0)
            session.pulls = False
            self._resize(session.handlers)
        self._wake_all(session.handlers)

    def _wake_all(self, handlers: Iterable[str]) -> None:
        """Wake a pull for each handler that has waiting calls."""
        for name in handlers:
            if any(database.waiting[name] for database in self.databases.values()):
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
            free = self.slots.free_for(name)
            for database in self.databases.values():
                database.executors[name].set_size(database.held[name] + free)

    def _hand_back(self, database: ServedDatabase, before: float, why: str) -> None:
        for call in list(database.received_before(before)):
            call.close()
            call.finish(Release(why))

    def _uses(self, handlers: frozenset[str]) -> dict[str, SlotUse]:
        now = time.monotonic()
        return {shard: database.use(handlers, now) for shard, database in self.databases.items()}

    def _held(self, handler: str) -> int:
        return sum(database.held[handler] for database in self.databases.values())


def _key(attempt: AttemptKey) -> AttemptKey:
    return AttemptKey(shard=attempt.shard, id=attempt.id, fence=attempt.fence)


def _set(wake: "asyncio.Future[None]") -> None:
    if not wake.done():
        wake.set_result(None)


def _reply(ending: Ending, reply: "asyncio.Future[str] | str") -> dict[str, Any]:
    """Return an EndingReply."""
    status, move, why = "refused", "", LOST
    if isinstance(reply, str):
        why = reply
    elif not reply.done():
        status, why = "pending", f"the database has not confirmed it in {WRITE_LIMIT:g} s: send it again"
    elif move := reply.result():
        status, why = "settled", ""
    shard, id, fence = ending.claim
    return {"shard": shard, "id": id, "fence": fence, "status": status, "move": move, "why": why}
