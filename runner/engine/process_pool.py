"""Process pool: the worker processes of a runner, their start, their messages and their end.

Each worker executes one task at a time and stays for the next. It is the leader of a process group, so that a kill
reaches the processes that a handler has started. See runner.engine.process_worker for the worker's end.
"""

import asyncio
import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import runner
from runner.engine import process_reaper, process_worker
from runner.engine.process_messages import LENGTH, ProcessCall, ProcessEnd, WorkerSetup, frame, unframe
from runner.handlers.registry import REGISTRY
from runner.settings import Settings

log = logging.getLogger("runner")

START_TIMEOUT = 60.0
"""Seconds for the start of a process and the import of the handler's module."""

END_TIMEOUT = 2.0
"""Seconds for the end of idle processes and of killed ones."""

LONGEST_STACK = 8_000
"""Maximum number of characters of the stack at a crash."""


class ProcessNotStarted(Exception):
    """The process of a task could not start."""


class ProcessCrashed(Exception):
    """The process of a task ended before the task."""


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker process, as the cause of its copy in the runner."""


class WorkerProcess:
    """The runner's end of a worker process.

    Args:
        process: the process.
        reader: receives its messages.
        writer: sends messages to it.
        crash_file: receives its stack at a crash.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        crash_file: IO[bytes],
    ) -> None:
        self.pid = process.pid
        self.tasks = 0
        """Number of tasks that it has executed."""
        self._process, self._reader, self._writer, self._crash_file = process, reader, writer, crash_file
        self._stack: asyncio.Future[list[str]] | None = None

    @property
    def alive(self) -> bool:
        """True if it can take a task."""
        return self._process.returncode is None and not self._reader.at_eof()

    def send(self, *message: Any) -> None:
        """Send a message; a process that has ended loses it."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def receive(self) -> tuple[Any, ...]:
        """Wait for a message. The stacks that `stack` waits for do not count.

        Raises:
            ProcessCrashed: the process has ended.
        """
        while True:
            try:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                message = unframe(await self._reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError):
                self.kill()  # its children may live
                await self._process.wait()
                raise ProcessCrashed(self._end_text()) from None
            if message[0] != "stack":
                return message
            if self._stack is not None and not self._stack.done():
                self._stack.set_result(message[1])

    async def stack(self, timeout: float) -> list[str]:
        """Ask for the stack of the running handler, while another coroutine receives its messages.

        Args:
            timeout: seconds after which C code must be in the way.

        Returns:
            The stack, outermost frame first, or the stacks of all threads as the signal handler writes them.
        """
        self._stack = asyncio.get_running_loop().create_future()
        self.send("stack")
        try:
            return await asyncio.wait_for(self._stack, timeout)
        except TimeoutError:
            self._crash_file.seek(0)
            self._crash_file.truncate()
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(process_worker.STACK_SIGNAL)
            await asyncio.sleep(timeout)
            return ["no Python code runs: C code holds the interpreter lock", *self._crash_text().splitlines()]

    def kill(self) -> None:
        """Kill the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    async def wait(self, timeout: float) -> None:
        """Wait for the end of the process and release its files.

        Args:
            timeout: seconds after which it is killed.
        """
        try:
            await asyncio.wait_for(self._process.wait(), timeout)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        finally:
            self.kill()
            self._writer.close()
            self._crash_file.close()

    def _end_text(self) -> str:
        code = self._process.returncode or 0
        if code >= 0:
            return f"its process exited with code {code} before the task ended"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        hint = ", by an operator or because the machine ran out of memory" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}"

    @property
    def crash_stack(self) -> str:
        """The stack that the process wrote when it crashed; empty without one."""
        return self._crash_text()

    def _crash_text(self) -> str:
        self._crash_file.seek(0)
        return self._crash_file.read().decode(errors="replace")[:LONGEST_STACK]


class ProcessPool:
    """The worker processes of a runner. Its slots limit their number.

    Args:
        settings: the settings of the runner.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._reaper: subprocess.Popen[bytes] | None = None

    @property
    def process_ids(self) -> list[int]:
        """The ids of the workers, idle ones included."""
        return [worker.pid for worker in self._all]

    async def take(self) -> WorkerProcess:
        """Return an idle worker, or start one."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            await self.discard(worker)
        return await self._start()

    async def put_back(self, worker: WorkerProcess, reusable: bool) -> None:
        """Keep a worker for the next task, or end it after its last one."""
        worker.tasks += 1
        if reusable and worker.alive and worker.tasks < self._settings.tasks_per_process:
            self._idle.append(worker)
        elif reusable and worker.alive:
            worker.send("close")
            await self._end(worker, END_TIMEOUT)
        else:
            await self.discard(worker)

    async def discard(self, worker: WorkerProcess) -> None:
        """Kill a worker."""
        worker.kill()
        await self._end(worker, END_TIMEOUT)

    async def _end(self, worker: WorkerProcess, timeout: float) -> None:
        try:
            await worker.wait(timeout)
        finally:
            self._all.discard(worker)
            self._tell_reaper(b"-%d\n" % worker.pid)

    async def close(self) -> None:
        """End all workers; those with a task are killed."""
        for worker in self._all:
            if worker in self._idle:
                worker.send("close")
            else:
                worker.kill()
        self._idle.clear()
        await asyncio.gather(*(self._end(worker, END_TIMEOUT) for worker in tuple(self._all)))
        if self._reaper is not None and self._reaper.stdin is not None:
            self._reaper.stdin.close()
            self._reaper.kill()  # no worker is left; a forked process of the application may keep its input open
            self._reaper.wait()
            self._reaper = None

    async def _start(self) -> WorkerProcess:
        self._start_reaper()
        ours, theirs = socket.socketpair()
        crash_file = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
        descriptors = (theirs.fileno(), crash_file.fileno())
        try:
            # A new session is a new process group; ctrl-c does not reach it.
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", process_worker.__file__, *map(str, descriptors)),
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            crash_file.close()
            raise
        finally:
            theirs.close()
        self._tell_reaper(b"+%d\n" % process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        worker = WorkerProcess(process, reader, writer, crash_file)
        self._all.add(worker)
        # The package's folder too, because an editable install may find it through an import hook.
        path = [*sys.path, str(Path(runner.__file__).parent.parent)]
        writer.write(json.dumps(path).encode() + b"\n")
        worker.send(WorkerSetup(REGISTRY.prepare, self._settings, logging.root.level))
        return worker

    def _start_reaper(self) -> None:
        if self._reaper is None or self._reaper.poll() is not None:
            command = [sys.executable, "-I", "-S", process_reaper.__file__, str(os.getpid())]
            self._reaper = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)  # noqa: S603
            for worker in self._all:
                self._tell_reaper(b"+%d\n" % worker.pid)

    def _tell_reaper(self, line: bytes) -> None:
        if self._reaper is not None and self._reaper.stdin is not None:
            with contextlib.suppress(OSError):
                self._reaper.stdin.write(line)


def error_of(end: ProcessEnd) -> BaseException | None:
    """Return the exception that ended an attempt in a worker process, or a substitute with the name of its class."""
    if end.error_name is None:
        return None
    failure = getattr(end.outcome, "failure", None)
    error: Any = None
    if end.error is not None:
        with contextlib.suppress(Exception):  # its constructor may refuse the arguments
            error = pickle.loads(end.error)  # noqa: S301 - from a process of this runner
    if not isinstance(error, BaseException):
        module, name = end.error_name
        kind = type(name.rpartition(".")[2], (Exception,), {"__module__": module, "__qualname__": name})
        error = kind(failure.message if failure else "")
    error.__cause__ = RemoteTraceback(f"\n{failure.traceback}" if failure else "")
    return error  # type: ignore[no-any-return] # checked above


async def begin(worker: WorkerProcess, call: ProcessCall) -> None:
    """Send a task to a worker and wait until its handler is loaded.

    Raises:
        ProcessNotStarted: the module or a resource of the handler failed, or it took too long.
        ProcessCrashed: the process has ended.
    """
    worker.send("call", call)
    try:
        async with asyncio.timeout(START_TIMEOUT):
            kind, *values = await worker.receive()
            while kind == "log":
                forward(*values)
                kind, *values = await worker.receive()
    except TimeoutError:
        raise ProcessNotStarted(f"its process did not start within {START_TIMEOUT:.0f} s") from None
    if kind != "started":
        raise ProcessNotStarted(f"its process could not load the handler: {values[0]}")


def forward(values: dict[str, Any]) -> None:
    """Log a record of a worker process, as far as the loggers of this process want it."""
    record = logging.makeLogRecord(values)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
