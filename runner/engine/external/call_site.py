"""CallSite: executes calls in a worker of an external executor, with the Executor of a runner.

A worker may run several calls at the same time, each in a thread of its engine. All of them share one event loop, the
threads of plain functions, and the resources. Checkpoints, progress, log lines and results of parents go to the runner
through the engine: a worker needs no access to the database.
"""

import asyncio
import contextlib
import importlib
import pickle
import threading
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from runner.engine.executing.attempt_outcome import AttemptLimits, failure_of
from runner.engine.executing.executor import Executor
from runner.engine.executing.jobs import AttemptJob
from runner.engine.external.call import ExternalCall
from runner.engine.hosting.hooks import Middleware
from runner.engine.hosting.resources import OpenResources
from runner.engine.processes.messages import ProcessEnd, plain_outcome, read_message, remote_error
from runner.engine.processes.remote import RemoteNotes, RemoteParentResults, Requests
from runner.engine.running import Running
from runner.engine.slots import Slots
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.outcome_rules import OutcomeRule, OutcomeRules
from runner.handlers.registry import REGISTRY, Handler
from runner.model.outcome import ON_ERROR, ON_NONE, Outcome

MOST_CALLS = 1_000
"""Maximum number of plain functions at the same time; the engine bounds its calls before."""

Send = Callable[[bytes], object]
"""Sends a message of a call to the runner."""


class RunnerChannel:
    """The way from one call to its runner."""

    def __init__(self, send: Send) -> None:
        self._send, self._sending = send, threading.Lock()
        self.sent = 0
        """The number of messages that were sent. The end of the call may overtake them, and names this number."""

    def send(self, *message: Any) -> None:
        """Send one message; any thread may do so."""
        with self._sending:
            self._send(pickle.dumps(message))
            self.sent += 1


class OpenCall(NamedTuple):
    """A call that this worker executes."""

    running: Running
    requests: Requests
    notes: RemoteNotes


class CallSite:
    """The calls of one worker process. Make it in a thread: it has an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="runner-calls", daemon=True).start()
        self._calls: dict[int, OpenCall] = {}
        self._by_attempt: dict[Running, OpenCall] = {}
        self._executors: dict[Any, Executor] = {}
        self._resources = OpenResources(())
        self._opening = asyncio.Lock()
        self._prepared: set[str] = set()

    def run(self, data: bytes, send: Send, quiet: float = 0.0) -> bytes:
        """Execute a call, and return its end as a message.

        Args:
            quiet: seconds for which a handler runs before the runner hears of its start: less work for short ones.
        """
        channel = RunnerChannel(send)
        try:
            call = ExternalCall.loads(data)
            handler = self._load(call)
        except BaseException as error:  # an import may raise anything, even SystemExit
            why = f"its worker could not load the handler: {failure_of(error).reason}"
            return _not_started(why)
        return asyncio.run_coroutine_threadsafe(self._execute(call, handler, channel, quiet), self._loop).result()

    def deliver(self, number: int, data: bytes) -> None:
        """Take a message of the runner for a call: a reply, or the request to stop."""
        call = self._calls.get(number)
        if call is None:
            return
        kind, *values = pickle.loads(data)  # noqa: S301 - from the runner of this worker
        if kind == "reply":
            call.requests.reply(*values)
        elif kind == "stop":
            self._loop.call_soon_threadsafe(_stop, call.running, *values)

    def _load(self, call: ExternalCall) -> Handler:
        if call.prepare is not None and call.prepare not in self._prepared:
            module, _, function = call.prepare.partition(":")
            getattr(importlib.import_module(module), function)()
            self._prepared.add(call.prepare)
        importlib.import_module(call.call.module)
        handler = REGISTRY.find(call.call.task.handler)
        handler.require()
        return handler

    async def _execute(self, external: ExternalCall, handler: Handler, channel: RunnerChannel, quiet: float) -> bytes:
        call = external.call
        timeout = inf if call.timeout is None else call.timeout
        running = Running(call.task._replace(timeout=timeout), handler, Slots("external", 1))
        requests = Requests(channel, self._loop, lambda _: None)
        notes = RemoteNotes(requests, call, external.limits.checkpoint)
        try:
            async with self._opening:
                await self._resources.require(handler.resources.values())
            executor = self._executor_of(external)
        except BaseException as fault:  # the code of a resource may raise anything
            return _not_started(f"its worker could not open its resources: {failure_of(fault).reason}")
        began = self._loop.time()

        def announce() -> None:
            with contextlib.suppress(ConnectionError):  # its handler may not need its runner
                channel.send("started", self._loop.time() - began)

        announcement = self._loop.call_later(quiet, announce) if quiet else None
        if announcement is None:
            announce()
        self._calls[call.number] = self._by_attempt[running] = OpenCall(running, requests, notes)
        outcomes: list[Outcome] = []
        try:
            running.job = job = AttemptJob(_settle(executor, running, outcomes), loop=self._loop)
            job.owner = running.task
            await asyncio.wait([job])  # the handler may leave it cancelled
        finally:
            if announcement is not None:
                announcement.cancel()
            del self._calls[call.number], self._by_attempt[running]
        with contextlib.suppress(ConnectionError):
            notes.send_progress()
        error = None if running.error is None else remote_error(running.error)
        end = ProcessEnd(plain_outcome(outcomes[0]), error, True)
        return pickle.dumps(("end", end, channel.sent, self._loop.time() - began))

    def _executor_of(self, external: ExternalCall) -> Executor:
        """Return the Executor for the limits of a runner; calls of one runner share it."""
        key = external.limits, external.call.interruptions
        if key not in self._executors:
            limits, rule = external.limits, OutcomeRule.of_setting
            rules = OutcomeRules(rule(ON_ERROR, limits.on_error), rule(ON_NONE, limits.on_none))
            self._executors[key] = Executor(
                MOST_CALLS,
                AttemptLimits(None, limits.result, external.call.interruptions, rules),
                None,
                lambda running: RemoteParentResults(self._by_attempt[running].requests),
                self._resources.values,
                Middleware(),
                notes=lambda running: self._by_attempt[running].notes,
            )
        executor = self._executors[key]
        executor.middleware.callbacks = LIFE_CYCLE.of("around_process")  # a module may have registered more
        return executor


async def _settle(executor: Executor, running: Running, outcomes: list[Outcome]) -> None:
    outcomes.append(await executor.execute(running, lambda _: None))


def _stop(running: Running, terminated: bool) -> None:
    """Set `ctx.stop`, and cancel a coroutine."""
    running.cancel_requested = terminated
    if running.stop is not None:
        running.stop.set()
    if running.handler.is_async:
        running.interrupt()


REFUSAL = "fail"
"""The kind of the only message of a call whose handler this worker cannot load."""


def _not_started(why: str) -> bytes:
    return pickle.dumps((REFUSAL, why))


def is_refusal(data: bytes) -> bool:
    """True for the end of a call whose handler its worker could not load."""
    with contextlib.suppress(Exception):  # another message, which its attempt names
        return bool(read_message(data)[0] == REFUSAL)
    return False


_site: CallSite | None = None
_making = threading.Lock()


def call_site() -> CallSite:
    """Return the call site of this process."""
    global _site  # noqa: PLW0603 - one per process
    with _making:
        if _site is None:
            _site = CallSite()
        return _site
