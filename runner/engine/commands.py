"""Commands of operators to a runner: drain, resize, and stack, which describes where a running handler is."""

import linecache
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from runner.engine.attempt_outcome import PACKAGE
from runner.engine.metrics import resident_memory
from runner.engine.slots import InFlight, Running
from runner.errors import InvalidEdit, StoreError
from runner.policy.runner_command import RunnerCommand, parse_runner_command
from runner.text.formatting import size

if TYPE_CHECKING:  # a worker process describes stacks, and has no lease
    from runner.engine.heartbeat import Lease

log = logging.getLogger("runner.lease")


class CommandedWorker(Protocol):
    """The parts of a worker that runner commands reach."""

    in_flight: InFlight

    def resize(self, slots: int | None, threads: int | None, processes: int | None) -> None:
        """Change the number of slots; None keeps the current number."""

    async def write_stack(self, task_id: int) -> None:
        """Write the stack of a task in flight into its log."""


class CommandReceiver:
    """Executes the commands of operators.

    Args:
        lease: acknowledges each command.
        worker: the worker to resize.
        drain: called to drain the runner.
        scan: called when more slots are free.
    """

    def __init__(
        self, lease: "Lease", worker: CommandedWorker, drain: Callable[[], object], scan: Callable[[], object]
    ) -> None:
        self._lease = lease
        self._worker = worker
        self._drain = drain
        self._scan = scan
        self.pending: str | None = None
        """The command in the last heartbeat reply."""

    async def execute(self) -> None:
        """Execute the pending command; ignore an unknown one."""
        text, self.pending = self.pending, None
        if text is None:
            return
        try:
            command = parse_runner_command(text)
        except InvalidEdit:
            return
        rest = str(RunnerCommand(drain=command.drain))
        if text != rest:
            await self._change(command, text, rest or None)
        if command.drain:
            log.info("draining: requested by an operator")
            self._drain()
        elif command.resizes:
            self._scan()

    async def _change(self, command: RunnerCommand, text: str, rest: str | None) -> None:
        """Resize, write stacks and acknowledge both.

        Args:
            command: the command.
            text: the stored command.
            rest: the command that stays stored.
        """
        for task_id in command.stacks:
            await self._worker.write_stack(task_id)
        self._worker.resize(command.concurrency, command.threads, command.processes)
        in_flight = self._worker.in_flight
        sizes = in_flight.capacity, in_flight.in_threads.size, in_flight.in_processes.size
        try:
            await self._lease.acknowledge(text, rest, *sizes)
        except StoreError as error:  # the next heartbeat returns the command again
            log.warning("could not acknowledge a runner command: %s", error)
        else:
            if command.resizes:
                log.info("resized by an operator: %s, capacity %d", command, in_flight.capacity)


REPLY_TIMEOUT = 1.0
"""Seconds for a worker process to reply, before its signal handler writes the stack."""

BEFORE = "the handler has not started, or has just ended"

MOST_FRAMES = 40
"""Maximum number of frames: the innermost ones."""

ASYNCIO = str(Path(sys.modules["asyncio"].__file__ or "").parent)

Position = tuple[CodeType, int]
"""A function and a line in it."""


async def describe_stack(running: Running) -> list[str]:
    """Describe where a running handler is, wherever it runs.

    Args:
        running: the task.

    Returns:
        A line with its executor, and a line per frame, outermost first.
    """
    if running.process is not None:
        pid = running.process.pid
        return [f"process {pid}, {_memory(pid)}", *(await running.process.stack(REPLY_TIMEOUT) or [BEFORE])]
    thread = f"thread of process {os.getpid()}" if running.thread else f"event loop of process {os.getpid()}"
    return [f"{thread}, {_memory(os.getpid())}", *(stack_of(running) or [BEFORE])]


def _memory(pid: int) -> str:
    """The memory of a process in use; only Linux shows it."""
    memory = resident_memory(pid)
    return "memory unknown" if memory is None else f"{size(memory)} of memory"


def stack_of(running: Running) -> list[str]:
    """Return the stack of a handler that runs in this process, from any thread.

    Args:
        running: the task.

    Returns:
        A text per frame, outermost first, without the frames of the runner; empty if the handler has not started.
    """
    if running.thread:
        positions = list(_thread_positions(sys._current_frames().get(running.thread)))[::-1]  # noqa: SLF001 - the only access to the frames of a thread
    elif running.job is not None:
        positions = list(_await_positions(running.job.get_coro()))
    else:
        positions = []
    own = next((at for at, (code, _) in enumerate(positions) if not _is_ours(code.co_filename)), len(positions))
    return [_text(code, line) for code, line in positions[own:][-MOST_FRAMES:]]


def _thread_positions(frame: FrameType | None) -> Iterator[Position]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno
        frame = frame.f_back


def _await_positions(awaited: Any) -> Iterator[Position]:
    """The frames of a coroutine and of the coroutines that it awaits; of its thread while it executes code."""
    while awaited is not None:
        frame = _attribute(awaited, "_frame")
        if not isinstance(frame, FrameType):
            return
        if _attribute(awaited, "_running"):
            yield from _executing(frame)
            return
        yield frame.f_code, frame.f_lineno
        awaited = _attribute(awaited, "_await") or getattr(awaited, "gi_yieldfrom", None)


def _executing(outer: FrameType) -> list[Position]:
    """The frames from a coroutine on that a thread executes now."""
    for inner in sys._current_frames().values():  # noqa: SLF001 - the only access to the frames of a thread
        positions: list[Position] = []
        frame: FrameType | None = inner
        while frame is not None:
            positions.append((frame.f_code, frame.f_lineno))
            if frame is outer:
                return positions[::-1]
            frame = frame.f_back
    return [(outer.f_code, outer.f_lineno)]


def _attribute(awaited: Any, name: str) -> Any:
    """An attribute of a coroutine, a generator or an async generator."""
    return next((value for kind in ("cr", "gi", "ag") if (value := getattr(awaited, f"{kind}{name}", None))), None)


def _is_ours(file: str) -> bool:
    return file.startswith((PACKAGE, ASYNCIO)) or file == threading.__file__ or "/concurrent/futures/" in file


def _text(code: CodeType, line: int) -> str:
    source = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_qualname}{f': {source}' if source else ''}"
