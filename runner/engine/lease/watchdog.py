"""Watchdog: renews the lease of a runner that cannot, and logs the handler that prevents it.

A thread renews while a handler blocks the event loop. While C code holds the interpreter lock, no thread runs: then a
process of its own renews, the lease keeper.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from runner.db.database import Database
from runner.db.errors import translate
from runner.engine.hosting.event_loop import LoopDescriptors
from runner.engine.lease import lease_keeper
from runner.engine.lease.lease import BlockingRenewal, Lease
from runner.engine.running import Running
from runner.resource_limits import reached_limit
from runner.settings import Settings
from runner.store.heartbeat import MOST_SUSPECTS, LoopBlock
from runner.text.sanitize import one_line

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
        self.on_response: Callable[[], None] = lambda: None
        """Called on the event loop, about once in EVERY seconds; the process of a runner sets it."""
        self.on_broken: Callable[[str], object] = partial(log.error, "%s: the runner cannot go on")
        """Called with the fact that the event loop has lost a descriptor; a process that is only a runner ends."""
        self.keeper: KeeperProcess | None = None
        """The lease keeper; a process that is only a runner has one."""
        self._cpu: dict[int, float] = {}
        self._reported: Any = None
        self._expiry_logged = False
        self._last_renewal = 0.0

    def start(self) -> None:
        """Start the thread. Call it on the running event loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._descriptors = LoopDescriptors(self._loop)
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
                if closed := self._descriptors.closed():  # later files would have it, and receive what wakes the loop
                    self.on_broken(f"the {closed}, of the event loop was closed")
                    return
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
                self.keeper.ping(self._lease.id, self.blocked_for)

    @property
    def blocked_for(self) -> float:
        """Seconds for which the event loop has not responded; 0 while it responds."""
        blocked = time.monotonic() - self._ponged
        return blocked if blocked > 2 * EVERY else 0.0

    def describe_block(self, seconds: float) -> str:
        """Describe the task that blocks the event loop."""
        return self._culprit(seconds, asyncio.current_task(self._loop))

    def _pong(self) -> None:
        self._ponged = time.monotonic()
        self.on_response()

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
            self._lease.note_failure(error_text)

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
        cpu = used.get(ident, 0.0)
        text = f"no Python code ran for {seconds:.0f} s, in which a thread used {cpu:.1f} s of a processor: probably "
        text += "C code held the interpreter lock"
        if cpu < seconds / 4:
            text += ", or the process was stopped"
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


SILENCE = 3.0
"""Longest time in seconds without a ping before the keeper renews."""

RESTART = 60.0
"""Seconds before a keeper that failed is started again."""

END_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of the process."""

MESSAGES = {
    lease_keeper.RENEWED: "the lease keeper renewed the lease while this process did not respond",
    lease_keeper.FAILED: "the lease keeper could not renew the lease while this process did not respond",
    lease_keeper.EXPIRED: "the lease keeper renewed the lease while this process did not respond, up to the limit",
}


class KeeperProcess:
    """The lease keeper of a runner process; see runner.engine.lease.lease_keeper.

    Args:
        settings: the database, the lease and the heartbeat interval.
        every: seconds between two pings.
        longest: longest time in seconds for which the keeper renews.
    """

    def __init__(self, settings: Settings, every: float, longest: float) -> None:
        lease = settings.lease_timeout.total_seconds()
        silence = max(1.5 * every, min(SILENCE, lease / 3))
        interval = settings.heartbeat_interval.total_seconds()
        self._limits = [str(value) for value in (silence, longest, min(interval, lease / 5))]
        # The package's folder too, because an editable install may find it through an import hook.
        path = [*sys.path, str(Path(__file__).parents[3])]
        self._header = f"{os.fsencode(chr(0).join(path)).hex()}\n{pickle.dumps(settings).hex()}\n".encode()
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0

    @property
    def pid(self) -> int | None:
        """The process id; None while no keeper is running."""
        return self._process.pid if self._process is not None else None

    def ping(self, runner_id: int, blocked: float) -> None:
        """Report that this process executes Python code; start the keeper if none is running.

        Args:
            runner_id: the id of the runner; 0 while it has none.
            blocked: seconds for which the event loop has been blocked.
        """
        if self._process is not None and (code := self._process.poll()) is not None:
            self._reap(code)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start()
        self._send(b"%d %f\n" % (runner_id, blocked))

    def _start(self) -> None:
        command = [sys.executable, "-I", "-S", lease_keeper.__file__, str(os.getpid()), *self._limits]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, bufsize=0)  # noqa: S603
        except OSError as error:
            self._start_at = time.monotonic() + RESTART
            reason = reached_limit(error) or f"{sys.executable}: {error.strerror} (errno {error.errno})"
            log.warning("%s: could not start the lease keeper, trying again in %.0f s", reason, RESTART)
            return
        self._send(self._header)
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)  # a keeper that is stopped must not block the watchdog

    def _send(self, data: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                self._process.stdin.write(data)

    def _reap(self, code: int) -> None:
        failure = self._failure()
        self.stop()
        if message := MESSAGES.get(code):
            log.warning("%s%s", message, failure)
        else:
            self._start_at = time.monotonic() + RESTART
            log.warning("the lease keeper ended with code %d%s: starting it again in %.0f s", code, failure, RESTART)

    def _failure(self) -> str:
        """Return the last failure that an ended keeper wrote, as the end of a message."""
        if self._process is None or self._process.stderr is None:
            return ""
        text = self._process.stderr.read().decode(errors="replace").strip()
        return f": {one_line(text[-lease_keeper.LONGEST_ERROR :])}" if text else ""

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                process.stdin.write(b"0 0\n")  # the lease is no longer the keeper's
            process.stdin.close()
        if process.stderr is not None:
            process.stderr.close()
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
