"""Worker process: executes the tasks of process handlers, one at a time, with the Executor of a runner.

A runner starts this file as a script. Checkpoints, progress, log lines and results of parents go through the runner,
which alone writes to the tables of tasks. The process and its children form a group of their own, which ends with the
runner: a thread watches the socket. See runner.engine.processes.pool for the runner's end.
"""

import asyncio
import contextlib
import faulthandler
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from runner.engine.executing.executor import Executor
    from runner.engine.processes.messages import Channel, ProcessCall, StartTokens, WorkerSetup
    from runner.engine.running import Running
    from runner.errors import DatabaseUnavailable
    from runner.model.outcome import Outcome

log = logging.getLogger("runner.task")

MEMORY_SCORE = "500"
"""The out-of-memory killer of Linux prefers this process to its runner."""


class ProcessWorker:
    """The tasks of this process.

    Args:
        setup: the settings of the runner.
        start_tokens: the start tokens of the calls that arrive before the task before them has ended.
    """

    def __init__(self, channel: "Channel", setup: "WorkerSetup", start_tokens: "StartTokens") -> None:
        self._channel, self._setup, self._start_tokens = channel, setup, start_tokens
        self._loop = asyncio.get_running_loop()
        from runner.engine.hosting.process_state import ProcessState
        from runner.engine.hosting.resources import OpenResources
        from runner.engine.processes.remote import Requests  # after the search path is set

        self._requests = Requests(channel, self._loop, self._note_outage)
        self._calls: asyncio.Queue[ProcessCall | None] = asyncio.Queue()
        self._running: Running | None = None
        self._number = 0
        """The number of the running call."""
        self._resources = OpenResources(())
        self._executor: Executor | None = None
        self._state = ProcessState()

    def listen(self) -> None:
        """Receive messages, in a thread, until the runner ends; then end this process and its children."""
        try:
            while True:
                kind, *values = self._channel.receive()
                match kind:
                    case "call":
                        self._channel.calls.add(values[0].number)
                        self._loop.call_soon_threadsafe(self._calls.put_nowait, *values)
                    case "close":
                        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
                    case "reply":
                        self._requests.reply(*values)
                    case "stop":
                        self._stop(*values)
                    case "stop part":
                        self._stop_part(*values)
                    case "stack":
                        self._channel.send("stack", self._stack())
        except (EOFError, OSError):
            self._channel.require_open()
            os.killpg(0, signal.SIGKILL)

    def _stop(self, number: int, terminated: bool) -> None:
        """Set `ctx.stop`, and cancel a coroutine; do nothing if the call has ended."""
        running = self._running
        if running is None or self._number != number:
            return
        running.cancel_requested = terminated
        for part in (running, *running.parts()):
            if part.stop is not None:
                part.stop.set()
        if running.handler.is_async:
            self._loop.call_soon_threadsafe(running.interrupt)

    def _stop_part(self, number: int, position: int) -> None:
        """Set `ctx.stop` of one task of a chunk; do nothing if the call has ended."""
        if self._running is not None and self._number == number:
            part = self._running.parts()[position]
            part.cancel_requested = True
            if part.stop is not None:
                part.stop.set()

    def _stack(self) -> list[str]:
        from runner.engine.stack import stack_of

        return [] if self._running is None else stack_of(self._running)

    async def run(self) -> None:
        """Execute tasks until the runner closes this process."""
        while (call := await self._calls.get()) is not None:
            if not self._may_start(call):
                self._channel.calls.discard(call.number)
                continue
            try:
                running = self._prepared(call)
                await self._open(running)
            except BaseException as error:  # an import may raise anything, even SystemExit
                from runner.engine.executing.attempt_outcome import failure_of

                self._channel.send("failed", f"its process could not load the handler: {failure_of(error).reason}")
                return
            self._channel.send("started")
            self._number = call.number
            if not await self._execute(running, call):
                await self._loop.create_future()  # the runner kills this process; no other task may start here
        await self._resources.close()

    def _note_outage(self, error: "DatabaseUnavailable") -> None:
        from runner.engine.executing.outages import note_outage

        if self._running is not None:
            note_outage(self._running, error, error)

    def _may_start(self, call: "ProcessCall") -> bool:
        """Take the start token of a call that arrived early.

        A runner that was stopped since then may have lost the task.
        """
        if call.offered_until is None:
            return True
        if time.monotonic() > call.offered_until:
            self._channel.send("late", call.number)
            return False
        return self._start_tokens.take(call.number)

    def _prepared(self, call: "ProcessCall") -> "Running":
        from runner.engine.running import ChunkRunning, Running
        from runner.engine.slots import Slots
        from runner.handlers.registry import REGISTRY

        importlib.import_module(call.module)
        handler = REGISTRY.find(call.task.handler)
        handler.require()
        timeout = inf if call.timeout is None else call.timeout
        slots, option = Slots("process", 1), handler.defaults.chunk
        if not call.parts or option is None:
            return Running(call.task._replace(timeout=timeout), handler, slots)
        first, *others = (Running(task._replace(timeout=timeout), handler, slots) for task, _ in call.parts)
        chunk = ChunkRunning(first, option)
        for running in others:
            chunk.add(running)
        return chunk

    async def _open(self, running: "Running") -> None:
        """Open the resources of a handler; they stay open until this process ends."""
        if running.handler.resources:
            await self._resources.require(running.handler.resources.values())

    async def _execute(self, running: "Running", call: "ProcessCall") -> bool:
        """Execute a task, and return True if this process can execute another one."""
        from runner.engine.executing.attempt_outcome import AttemptLimits
        from runner.engine.executing.executor import Executor
        from runner.engine.executing.jobs import AttemptJob
        from runner.engine.hosting.hooks import Middleware
        from runner.engine.processes.messages import ProcessEnd, plain_outcome, remote_error
        from runner.engine.processes.remote import RemoteNotes, RemoteParentResults, RemoteSteps
        from runner.handlers.hooks import LIFE_CYCLE

        settings = self._setup.settings
        limit = int(settings.checkpoint_limit)
        calls = [call._replace(task=task, state=state) for task, state in call.parts]
        parts = self._parts = [self._requests.of_part(position) for position in range(len(calls))]
        notes = self._notes = [RemoteNotes(part, each, limit) for part, each in zip(parts, calls, strict=True)]
        if not parts:
            notes.append(RemoteNotes(self._requests, call, limit))
        executor = self._executor = self._executor or Executor(
            1,
            replace(AttemptLimits.of(settings), timeout=None, interruptions=call.interruptions),
            None,
            lambda running: RemoteParentResults(
                self._parts[self._position(running)] if self._parts else self._requests
            ),
            self._resources.values,
            Middleware(),
            lambda running: self._notes[self._position(running)],
            steps=lambda running: RemoteSteps(self._requests, running.task.id),
            on_outcome=self._send_outcome,
        )
        executor.middleware.callbacks = LIFE_CYCLE.of("around_process")  # another module may have registered more
        self._running = running
        outcomes: list[Outcome] = []
        with _limited_memory(call.memory_limit):
            running.job = job = AttemptJob(_settle(self._outcome(executor, running), outcomes), loop=self._loop)
            job.owner = running.task
            await asyncio.wait([running.job])  # the handler may leave it cancelled
        outcome = outcomes[0]
        if changes := self._state.restore(alone=True):
            name = running.task.id, running.handler.name
            log.warning("task %d (%s) has changed its process, restored: %s", *name, ", ".join(changes))
        self._running = None
        for each in notes:
            each.send_progress()
        error, out_of_memory = running.error, isinstance(running.error, MemoryError)
        if out_of_memory and call.memory_limit is not None:
            outcome = _over_limit(outcome, call.memory_limit)
        reusable = not executor.stuck and not out_of_memory
        remote = None if error is None else remote_error(error)
        self._channel.calls.discard(call.number)
        self._channel.send("end", ProcessEnd(plain_outcome(outcome), remote, reusable))
        return reusable

    @staticmethod
    def _position(running: "Running") -> int:
        """The position of a task in its chunk; 0 for a single task."""
        return 0 if running.chunk is None else running.chunk.members.index(running)

    async def _outcome(self, executor: "Executor", running: "Running") -> "Outcome":
        """Execute a task, or a chunk, whose tasks get their outcomes before its end."""
        from runner.engine.running import ChunkRunning

        if not isinstance(running, ChunkRunning):
            return await executor.execute(running, lambda _: None)
        outcomes = await executor.execute_chunk(running, lambda _: None)
        for member, outcome in outcomes:
            if member.decision is None:
                member.decision = outcome
                self._send_outcome(member)
        return outcomes[0][1]

    def _send_outcome(self, member: "Running") -> None:
        """Send the outcome of a task of a chunk when it is known, so that it counts after a crash too."""
        from runner.engine.processes.messages import plain_outcome, remote_error
        from runner.engine.processes.remote import PART

        if member.decision is not None:
            error = None if member.error is None else remote_error(member.error)
            position = self._position(member)
            self._channel.send(PART, position, "outcome", plain_outcome(member.decision), error)


async def _settle(execution: "Coroutine[Any, Any, Outcome]", outcomes: "list[Outcome]") -> None:
    outcomes.append(await execution)


@contextlib.contextmanager
def _limited_memory(limit: int | None) -> Any:
    """Limit the private memory of this process during the block, if the system enforces such a limit."""
    from runner.handlers.registry import LIMITS_MEMORY

    if limit is None or not LIMITS_MEMORY:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _over_limit(outcome: "Outcome", limit: int) -> "Outcome":
    """Name the memory limit as the reason of a failure."""
    from runner.model.outcome import Dead, Failure, Retry
    from runner.text.formatting import size

    if not isinstance(outcome, (Retry, Dead)):
        return outcome
    traceback = outcome.failure.traceback if outcome.failure else ""
    message = f"the attempt needed more memory than its memory_limit of {size(limit)}"
    return replace(outcome, failure=Failure("MemoryLimit", message, traceback))


def _set_up(setup: "WorkerSetup", channel: "Channel", crash_file: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the runner drains; children get the default action
        signal.signal(number, lambda *_: None)
    from runner.engine.processes.messages import STACK_SIGNAL
    from runner.engine.processes.remote import ForwardRecords

    faulthandler.enable(crash_file)
    faulthandler.register(STACK_SIGNAL, crash_file)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(MEMORY_SCORE, encoding="ascii")
    logging.root.addHandler(ForwardRecords(channel))
    logging.root.setLevel(setup.level)
    if setup.prepare is not None:
        module, _, function = setup.prepare.partition(":")
        getattr(importlib.import_module(module), function)()
    from runner.client.client import connect

    connect(setup.settings)  # handlers submit tasks to the database of the runner


async def _main(
    channel: "Channel", setup: "WorkerSetup", start_tokens: "StartTokens", is_started: threading.Event
) -> None:
    worker = ProcessWorker(channel, setup, start_tokens)
    threading.Thread(target=worker.listen, name="runner-process", daemon=True).start()
    is_started.set()
    await worker.run()


def main(connection: int, crash_file: int, start_tokens: int) -> None:
    """Run a worker process.

    Args:
        connection: file descriptor of the socket. The first line is the module search path of the runner as JSON.
        start_tokens: file descriptor of the reading end of the pipe with the start tokens.
    """
    receiver, line = socket.socket(fileno=connection), bytearray()
    while not line.endswith(b"\n"):
        line += receiver.recv(1) or sys.exit()
    sys.path[:] = json.loads(line)
    from runner.engine.processes.messages import Channel, StartTokens

    channel = Channel(receiver)
    (setup,) = channel.receive()
    is_started = threading.Event()
    try:
        _set_up(setup, channel, crash_file)
        from runner.engine.hosting.event_loop import run_contained

        run_contained(_main(channel, setup, StartTokens(start_tokens), is_started))
    except BaseException as error:  # a limit of the system, or `prepare`, which is code of an application
        from runner.engine.executing.attempt_outcome import failure_of
        from runner.engine.hosting.event_loop import EventLoopBroken
        from runner.engine.processes.messages import CHANNEL_CLOSED

        if isinstance(error, EventLoopBroken):  # a handler has closed descriptors
            os._exit(CHANNEL_CLOSED)
        if is_started.is_set():
            raise

        channel.send("failed", f"its process could not start: {failure_of(error).reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
    os._exit(0)  # threads that handlers left do not keep the process
