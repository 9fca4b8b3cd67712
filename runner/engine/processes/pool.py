"""Process pool: the worker processes of a runner, their start, their messages and their end.

Each worker executes one task at a time and stays for the next, which it may receive before the current one ends. It is
the leader of a process group, so that a kill reaches the processes that a handler has started. See
runner.engine.processes.worker for the worker's end.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from runner.engine.processes import reaper as process_reaper
from runner.engine.processes.messages import (
    CHANNEL_CLOSED,
    LENGTH,
    STACK_SIGNAL,
    ProcessCrashed,
    ProcessNotStarted,
    RemoteAttempt,
    StartTokens,
    WorkerSetup,
    end_text,
    forward,
    frame,
    read_message,
)
from runner.handlers.registry import REGISTRY
from runner.resource_limits import SPARE_THREADS, require_threads
from runner.settings import Settings

log = logging.getLogger("runner.task")

WORKER = str(Path(__file__).with_name("worker.py"))
"""The script of a worker process."""

END_TIMEOUT = 2.0
"""Seconds for the end of idle processes, of killed ones, and of those that have lost their socket."""

THREADS = 5
"""Threads and processes that the start of a worker needs: the reaper, the worker with two threads, and its watcher."""

LONGEST_STACK = 8_000
"""Maximum number of characters of the stack at a crash."""


class WorkerProcess(asyncio.Protocol):
    """The runner's end of a worker process.

    Args:
        start_tokens: file descriptors of the pipe with the start tokens: the reading end and the writing end.
        crash_file: receives its stack at a crash.
        most: number of tasks after which it ends.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, start_tokens: tuple[int, int], crash_file: IO[bytes], most: int
    ) -> None:
        self.pid = process.pid
        self.tasks = 0
        """Number of tasks that it has executed."""
        self.current: RemoteAttempt | None = None
        """The attempt that it executes."""
        self.offered: RemoteAttempt | None = None
        """The attempt that it has received before the end of the current one, and that it may have started."""
        self.retires = False
        """True if it executed its last task."""
        self.broken = False
        """True if it has to be killed: a function does not return, memory ran out, or a handler failed to load."""
        self.end: asyncio.Task[None] | None = None
        """Waits for its end."""
        self._process, self._crash_file, self._most = process, crash_file, most
        self._reading, self._writing = start_tokens
        self._start_tokens = StartTokens(self._reading)
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._lost = False
        self._refusal = ""
        """The reason why it can execute no task, if it could not start."""
        self._stack: asyncio.Future[list[str]] | None = None
        self._crash: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """True if it can take a task."""
        return self._transport is not None and not (self._lost or self.retires or self._refusal)

    @property
    def idle(self) -> bool:
        """True if it has no task."""
        return self.current is None and self.offered is None

    @property
    def on_last_task(self) -> bool:
        """True if it ends after the current task."""
        return self.tasks + 1 >= self._most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a socket
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Execute the messages that have arrived."""
        buffer = self._input
        buffer += data
        start, end = 0, len(buffer)
        while end - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, start)
            last = start + LENGTH.size + length
            if last > end:
                break
            message = bytes(buffer[start + LENGTH.size : last])
            start = last
            try:
                kind, *values = read_message(message)
            except Exception as error:
                log.warning("process %d sent a message that cannot be read, and is killed: %s", self.pid, error)
                self.kill()
                break
            self._receive(kind, values)
        del buffer[:start]

    def connection_lost(self, _error: Exception | None) -> None:
        """End the attempts of a process that has ended."""
        self._lost = True
        if not self.idle:
            self._fail()

    def start(self, attempt: RemoteAttempt) -> None:
        """Start a task in this process, which is idle. A process that has ended loses it."""
        self.current = attempt
        self.send("call", attempt.call)
        if self._refusal:
            self._refuse(self._refusal)
        elif self._lost:
            self._fail()

    def offer(self, attempt: RemoteAttempt) -> None:
        """Send a task that starts when the current one has ended, unless it is withdrawn before."""
        self.offered = attempt
        os.write(self._writing, StartTokens.SIZE.pack(attempt.call.number))
        self.send("call", attempt.call)

    def withdraw(self) -> bool:
        """Take back the offered task; False if it has started, or starts now: then the task before it has ended."""
        attempt = self.offered
        if attempt is None or not self._start_tokens.take(attempt.call.number):
            return False
        self.offered = None
        attempt.withdrawn()
        return True

    def send(self, *message: Any) -> None:
        """Send a message; a process that has ended loses it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message))

    def _receive(self, kind: str, values: list[Any]) -> None:
        match kind:
            case "started":
                self._began()
            case "end" if self.current is not None:
                self._finish(values[0].reusable).receive(kind, values)
            case "failed":
                self._refuse(values[0])
            case "late" if self.offered is not None and self.offered.call.number == values[0]:
                self.withdraw()
            case "log":
                forward(*values)
            case "stack" if self._stack is not None and not self._stack.done():
                self._stack.set_result(values[0])
            case _ if self.current is not None:
                self.current.receive(kind, values)

    def _began(self) -> None:
        """Record the start of a handler: that of the offered task, if the task before it has ended."""
        if self.current is None:
            self.current, self.offered = self.offered, None
        assert self.current is not None  # noqa: S101 - it starts only one of them
        self.current.began(self)

    def _refuse(self, reason: str) -> None:
        """End the attempt that could not start; without one yet, the first that arrives."""
        if self.idle:
            self._refusal = reason
            return
        if self.current is None:
            self.current, self.offered = self.offered, None
        self._finish(reusable=False).fail(ProcessNotStarted(reason))

    def _finish(self, reusable: bool) -> RemoteAttempt:
        """Record the end of the current task, and return its attempt."""
        attempt, self.current = self.current, None
        assert attempt is not None  # noqa: S101 - it has one
        self.tasks += 1
        self.broken = self.broken or not reusable
        self.retires = self.broken or self.tasks >= self._most
        if self.retires:
            self.withdraw()
        return attempt

    def _fail(self) -> None:
        if self._crash is None:
            self._crash = asyncio.ensure_future(self._crashed())

    async def _crashed(self) -> None:
        """End the attempts of this process, which has ended or lost its socket."""
        code = await self._exit_code()
        self.kill()  # its children may live
        await self._process.wait()
        error = ProcessCrashed(end_text(code), self._crash_text())
        current, self.current = self.current, None
        self.withdraw()
        started, self.offered = self.offered, None
        for attempt in (current, started):
            if attempt is not None:
                attempt.fail(error)

    async def stack(self, timeout: float) -> list[str]:
        """Ask for the stack of the running handler.

        Args:
            timeout: seconds after which C code must be in the way.

        Returns:
            The stack, outermost frame first, or the stacks of all threads as the signal handler writes them.
        """
        self._stack = asyncio.get_running_loop().create_future()
        self.send("stack")
        try:
            async with asyncio.timeout(timeout):
                return await self._stack
        except TimeoutError:
            self._crash_file.seek(0)
            self._crash_file.truncate()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(STACK_SIGNAL)
            await asyncio.sleep(timeout)
            fact = f"no Python code ran within {timeout:.0f} s: probably C code holds the interpreter lock"
            return [fact, *self._crash_text().splitlines()]

    def kill(self) -> None:
        """Kill the process and its children."""
        self.retires = self.broken = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self, timeout: float) -> None:
        """Wait for the end of the process and release its files.

        Args:
            timeout: seconds after which it is killed.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            self.kill()
            if not self.idle:
                self._fail()
            if self._crash is not None:
                await self._crash
            if self._transport is not None:
                self._transport.close()
            for descriptor in (self._reading, self._writing):
                os.close(descriptor)
            self._crash_file.close()

    async def _exit_code(self) -> int:
        """Wait for the end; a process that does not end has lost its socket alone."""
        try:
            async with asyncio.timeout(END_TIMEOUT):
                return await self._process.wait()
        except TimeoutError:
            return CHANNEL_CLOSED

    def _crash_text(self) -> str:
        """The stack that the process wrote when it crashed; empty without one."""
        self._crash_file.seek(0)
        return self._crash_file.read().decode(errors="replace")[:LONGEST_STACK]


class ProcessPool:
    """The worker processes of a runner. Its slots limit their number."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._all: set[WorkerProcess] = set()
        self._reaper = process_reaper.Reaper()
        self.numbers = itertools.count(1)
        """The numbers of calls."""

    @property
    def process_ids(self) -> list[int]:
        """The ids of the workers, idle ones included."""
        return [worker.pid for worker in self._all]

    @property
    def busy(self) -> list[WorkerProcess]:
        """The workers with a task."""
        return [worker for worker in self._all if worker.current is not None]

    def idle(self) -> WorkerProcess | None:
        """Return an idle worker; None without one."""
        for worker in tuple(self._all):
            if worker.idle and worker.alive:
                return worker
            if worker.idle:
                self.retire(worker)
        return None

    def end_idle(self) -> None:
        """End the idle workers."""
        for worker in tuple(self._all):
            if worker.idle:
                worker.retires = True
                self.retire(worker)

    def retire(self, worker: WorkerProcess) -> "asyncio.Task[None]":
        """End a worker, and return the task that waits for its end."""
        if worker.end is None:
            worker.end = asyncio.ensure_future(self._end(worker))
        return worker.end

    async def _end(self, worker: WorkerProcess) -> None:
        if worker.broken or not worker.idle:
            worker.kill()
        else:
            worker.send("close")
        try:
            await worker.wait(END_TIMEOUT)
        finally:
            self._all.discard(worker)
            self._reaper.write("-", worker.pid)

    async def close(self) -> None:
        """End all workers; those with a task are killed."""
        await asyncio.gather(*(self.retire(worker) for worker in tuple(self._all)))
        self._reaper.end()

    async def start(self) -> WorkerProcess:
        """Start a worker.

        Raises:
            OSError, RuntimeError: the system allows no further process, thread or descriptor.
        """
        require_threads(SPARE_THREADS + THREADS)
        self._reaper.start(self.process_ids)
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as afterwards:
            ours, theirs = socket.socketpair()
            on_failure.enter_context(ours)
            afterwards.enter_context(theirs)
            start_tokens = os.pipe()
            for descriptor in start_tokens:
                on_failure.callback(os.close, descriptor)
            os.set_blocking(start_tokens[0], False)
            crash_file = on_failure.enter_context(tempfile.TemporaryFile())
            descriptors = (theirs.fileno(), crash_file.fileno(), start_tokens[0])
            # A new session is a new process group; ctrl-c does not reach it.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", WORKER, *map(str, descriptors)),
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
            on_failure.pop_all()  # they belong to the worker now
        self._reaper.write("+", process.pid)
        worker = WorkerProcess(process, start_tokens, crash_file, self._settings.tasks_per_process)
        self._all.add(worker)
        # The package's folder too, because an editable install may find it through an import hook.
        path = [*sys.path, str(Path(__file__).parents[3])]
        ours.sendall(json.dumps(path).encode() + b"\n")
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
        worker.send(WorkerSetup(REGISTRY.prepare, self._settings, logging.root.level))
        return worker
