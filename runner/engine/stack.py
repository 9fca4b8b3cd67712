"""Stacks: where a running handler is, and a watchdog thread that logs the handler that blocks the event loop."""

import asyncio
import contextlib
import inspect
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from runner.db.database import Database
from runner.db.errors import translate
from runner.engine.attempt_outcome import PACKAGE
from runner.engine.heartbeat import BlockingRenewal, Lease
from runner.engine.metrics import resident_memory
from runner.engine.slots import Running
from runner.settings import Settings
from runner.store.heartbeat import MOST_SUSPECTS, LoopBlock
from runner.text.formatting import size

if TYPE_CHECKING:
    from runner.engine.keeper_process import KeeperProcess

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


log = logging.getLogger("runner.watchdog")

EVERY = 1.0
"""Seconds between two pings to the event loop; a ping without a response by the next one means blocked."""

LONGEST_BLOCK = 300.0
"""Seconds for which the watchdog renews the lease of a blocked runner; then other runners may rescue its tasks."""

STALL = 3.0
"""Seconds beyond EVERY after which the thread reports that it did not run."""

JOIN_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of the thread."""


class Watchdog:
    """Watches one event loop from a thread.

    The thread connects only while the loop is blocked, so that a healthy runner needs no extra connection.

    Args:
        settings: the database URL and the heartbeat interval.
        database: the database, for its tables.
        lease: the lease to renew.
        in_flight: returns the tasks in flight.
    """

    def __init__(
        self, settings: Settings, database: Database, lease: Lease, in_flight: Callable[[], Iterable[Running]]
    ) -> None:
        self._settings, self._database, self._lease, self._in_flight = settings, database, lease, in_flight
        self._stopping, self._pinging = threading.Event(), threading.Lock()
        self._ponged = time.monotonic()
        self._renewal = BlockingRenewal(settings, database)
        self.keeper: KeeperProcess | None = None
        """The lease keeper; a process that is only a runner has one."""
        self._cpu: dict[int, float] = {}
        self._reported: Any = None
        self._expiry_logged = False
        self._last_renewal = 0.0

    def start(self) -> None:
        """Start the thread. Call it on the running event loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._ponged = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="runner-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pinged = time.monotonic()
                self.ping_keeper()
                self._cpu = _cpu_seconds()
                try:
                    self._loop.call_soon_threadsafe(self._pong)
                except RuntimeError:  # the loop is closed
                    return
                self._stopping.wait(EVERY)
                if (stalled := time.monotonic() - pinged - EVERY) > STALL:
                    log.warning("%s", self._stall(stalled))
                blocked = time.monotonic() - self._ponged
                if self._ponged < pinged and not self._stopping.is_set():
                    self._renew_for_loop(blocked)
                else:
                    self._reported, self._expiry_logged = None, False
        finally:
            self._renewal.close()
            with self._pinging:
                if self.keeper is not None:
                    self.keeper.stop()

    def ping_keeper(self) -> None:
        """Send the id of the runner to the keeper; after a registration, call it before the runner claims a task."""
        with self._pinging:
            if self.keeper is not None and not self._stopping.is_set():
                blocked = time.monotonic() - self._ponged
                self.keeper.ping(self._lease.id, blocked if blocked > 2 * EVERY else 0.0)

    def _pong(self) -> None:
        self._ponged = time.monotonic()

    def _renew_for_loop(self, blocked: float) -> None:
        try:
            job = asyncio.current_task(self._loop)
            if job is not None and job is not self._reported:
                self._reported = job
                log.warning("%s", self._culprit(blocked, job))
            if blocked > LONGEST_BLOCK:
                self._log_expiry(blocked)
            elif time.monotonic() - self._last_renewal >= min(EVERY, self._settings.heartbeat_interval.total_seconds()):
                self._last_renewal = time.monotonic()
                self._renew(self._block(blocked, job))
        except Exception as error:  # without the thread the next block would cost the lease
            error_text = translate(error, self._database.url)
            log.warning("could not renew the lease while the event loop is blocked: %s", error_text or repr(error))

    def _log_expiry(self, blocked: float) -> None:
        if not self._expiry_logged:
            self._expiry_logged = True
            log.error("event loop blocked for %.0f s: the lease expires, other runners rescue its tasks", blocked)

    def _renew(self, block: LoopBlock) -> None:
        runner_id, started = self._lease.id, time.monotonic()
        if not runner_id:
            return
        answer = self._renewal.renew(runner_id, block)
        self._lease.note_renewal(runner_id, started, answer.alive, answer.late)

    def _stall(self, seconds: float) -> str:
        """Describe the code that kept this thread from running: that of the thread that used the processor most."""
        used = {ident: cpu - self._cpu.get(ident, 0.0) for ident, cpu in _cpu_seconds().items()}
        ident = max(used, key=used.__getitem__, default=self._loop_thread)
        if used.get(ident, 0.0) < seconds / 4:  # the code waited, or the whole process was stopped
            ident = self._loop_thread
        # By now the event loop may have gone on, so its current task is not certain.
        job = asyncio.current_task(self._loop) if ident == self._loop_thread else None
        in_flight = sorted((each for each in tuple(self._in_flight()) if each.started), key=lambda each: each.started)
        text = f"no Python code ran for {seconds:.0f} s: the process was stopped, or C code held the interpreter lock"
        exact = [each for each in in_flight if each.thread == ident or (job and each.job is job)]
        names = [f"task {each.task.id} ({each.task.handler})" for each in (exact or in_flight)[-MOST_SUSPECTS:]]
        return f"{text}; running then: {', '.join(reversed(names))}" if names else text

    def _block(self, seconds: float, job: Any) -> LoopBlock:
        """Name the task that blocks the loop and the line of its handler, without any values."""
        running = next((each for each in tuple(self._in_flight()) if each.job is job), None)
        line = _line(sys._current_frames().get(self._loop_thread), running)  # noqa: SLF001 - the only access to another thread's frames
        if running is not None:
            return LoopBlock(seconds, [(running.task.id, running.task.handler)], line)
        return LoopBlock(seconds, place=line if job is None else f"{_coroutine(job)} at {line}")

    def _culprit(self, blocked: float, job: Any) -> str:
        """Describe the task that blocks the loop."""
        block = self._block(blocked, job)
        names = [f"task {id} ({handler}) at " for id, handler in block.tasks]
        advice = "make it a plain function, or use asyncio.to_thread"
        return f"event loop blocked for {blocked:.1f} s by {''.join(names)}{block.place}: {advice}"


def _cpu_seconds() -> dict[int, float]:
    """Return the processor time that each thread has used, by its ident; empty on systems without /proc."""
    seconds = {}
    for thread in threading.enumerate():
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="ascii")
            seconds[thread.ident or 0] = int(text.split()[0]) / 1e9
    return seconds


def _coroutine(job: Any) -> str:
    return f"coroutine {getattr(job.get_coro(), '__qualname__', 'unknown')}"


def _line(frame: FrameType | None, running: Running | None) -> str:
    """Return the innermost line in the handler's own file; without a handler, the innermost line."""
    path = _file(running) if running is not None else None
    inner = frame
    while frame is not None and path is not None:
        if frame.f_code.co_filename == path:
            inner = frame
            break
        frame = frame.f_back
    return "unknown" if inner is None else f"{inner.f_code.co_filename}:{inner.f_lineno}"


def _file(running: Running) -> str | None:
    code = getattr(inspect.unwrap(running.handler.function), "__code__", None)
    return None if code is None else str(code.co_filename)
