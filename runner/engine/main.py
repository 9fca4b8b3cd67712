"""Runner process: one runner with signal handling, and a time limit for its draining."""

import asyncio
import contextlib
import gc
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from runner.client.client import connect
from runner.engine.metrics import log_immediate_exit, log_unfinished
from runner.engine.runner import LAST_WRITES, Engine
from runner.engine.watchdog import EVERY, LONGEST_BLOCK, KeeperProcess
from runner.engine.worker import INTERRUPT
from runner.handlers.registry import Handler
from runner.settings import Settings
from runner.text.sanitize import count_noun

log = logging.getLogger("runner")

ARM, EXIT_SOON, DISARM = b"a", b"h", b"d"

GRACE = 1.0
"""Seconds for the event loop to end the process after a second signal, before the thread does."""

SWITCH = 1e-4
"""Seconds that one thread may keep the interpreter while another waits for it."""

SAME_SIGNAL = 0.2
"""Seconds in which a repeated signal is the first one: `timeout` sends it to the process and to its group."""


class ForcedEnd:
    """Ends the process from a thread, which a blocked event loop cannot stop.

    Args:
        seconds: time in seconds from `arm` to the end of the process.
        report: logs the unfinished tasks; its argument is the exit code.
        code: the exit code.
    """

    def __init__(self, seconds: float, report: Callable[[int], None], code: int) -> None:
        self.code = code
        self._seconds = seconds
        self._report = report
        self._reader, self._writer = os.pipe()
        # Signal handlers write to a pipe: they can interrupt any line, even one that has a lock.
        self._thread = threading.Thread(target=self._run, name="runner-forced-end", daemon=True)
        self._thread.start()

    def arm(self) -> None:
        """Start the countdown; further calls have no effect. Safe in signal handlers."""
        self._send(ARM)

    def exit_soon(self, code: int) -> None:
        """End the process within a second with another exit code. Safe in signal handlers."""
        self.code = code
        self._send(EXIT_SOON)

    def disarm(self) -> None:
        """Cancel the countdown and end the thread."""
        self._send(DISARM)
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _send(self, command: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self._writer, command)

    def _run(self) -> None:
        end: float | None = None
        while True:
            remaining = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._reader], [], [], remaining)[0]:
                return self._end()
            command = os.read(self._reader, 1)
            if command == DISARM:
                return None
            wait = self._seconds if command == ARM else GRACE
            end = min(end or time.monotonic() + wait, time.monotonic() + wait)

    def _end(self) -> None:
        try:
            self._report(self.code)
        finally:
            exit_now(self.code)


def exit_now(code: int) -> None:
    """End the process without waiting for threads and coroutines."""
    logging.shutdown()
    os._exit(code)


INTERRUPTED_TWICE = 130
"""The exit code after a second signal."""

UNWRITTEN = 1
"""The exit code if tasks did not end or outcomes were not written."""

T = TypeVar("T")

ASYNCIO = Path(asyncio.__file__).parent

SLACK = 2.0
"""Extra seconds for the exit of a drained process, beyond the limits of its parts."""


def run_contained(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop, which SystemExit and KeyboardInterrupt in other tasks do not end.

    A handler's own task (`asyncio.create_task`) may call `sys.exit`. asyncio would then end the loop, and with it the
    runner and all its other tasks. The exception remains in the task: a handler that awaits it fails.

    Args:
        main: the coroutine; its own exceptions are raised.

    Returns:
        The result of the coroutine.
    """
    with asyncio.Runner() as loop_runner:
        loop = loop_runner.get_loop()
        task = loop.create_task(main)
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done():
                    raise
                log.error("%s: the runner continues; end a task with return or an exception", _exit_of(error))


def _exit_of(error: BaseException) -> str:
    """Describe an exit, the coroutine and the line that it came from, without any values."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if Path(frame.f_code.co_filename).parent not in (ASYNCIO, Path(__file__).parent)]
    if not own:
        return f"{type(error).__name__} in a callback"
    line = traceback.extract_tb(error.__traceback__, limit=-1)[0]
    return f"{type(error).__name__} in coroutine {own[0].f_code.co_qualname} at {line.filename}:{line.lineno}"


async def work(settings: Settings, handlers: Mapping[str, Handler], *, until_idle: bool = False) -> int:
    """Run a runner until a signal or, with `until_idle`, until no work is left.

    The first SIGTERM or SIGINT drains. The second ends the process immediately; other runners rescue its tasks when the
    lease expires. After the drain timeout the process ends even if a handler is still running.

    Args:
        settings: the settings of the runner.
        handlers: the handlers, by name.
        until_idle: stop when nothing is due or will be retried.

    Returns:
        The exit code: 0 or UNWRITTEN.
    """
    connect(settings)  # handlers submit tasks to this database
    runner = Engine(settings, handlers)
    if settings.lease_timeout.total_seconds() < LONGEST_BLOCK:
        runner.watchdog.keeper = KeeperProcess(settings, EVERY, LONGEST_BLOCK)
    last = INTERRUPT + 2 * LAST_WRITES + runner.resources.close_limit + SLACK
    longest = settings.drain_timeout.total_seconds() + last
    forced = ForcedEnd(longest, lambda code: _report(runner, code), UNWRITTEN)
    try:
        with _signals(runner, forced):
            tune_interpreter(settings)
            arming = asyncio.ensure_future(_arm_on_stop(runner, forced))
            clean = await runner.run(until_idle=until_idle)
            arming.cancel()
            if runner.completion.scheduled_count:
                log.info("idle: %s left for later", count_noun(runner.completion.scheduled_count, "scheduled task"))
            forced.code = 0 if clean else UNWRITTEN
            if threads := runner.worker.executor.stuck + runner.resources.stuck:
                stuck = count_noun(threads, "abandoned thread")
                log.warning("exiting although %s did not end", stuck)
                exit_now(forced.code)
            if not clean or not await _cancel_leftovers():
                exit_now(forced.code)  # a coroutine that ignores its cancellation would block the loop's shutdown
            return forced.code
    finally:
        forced.disarm()


async def _arm_on_stop(runner: Engine, forced: ForcedEnd) -> None:
    """Start the countdown when the runner stops for any reason."""
    await runner.stop_requested()
    forced.arm()


async def _cancel_leftovers() -> bool:
    """Cancel the coroutines that handlers left behind; return False if some do not end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    return not tasks or not (await asyncio.wait(tasks, timeout=INTERRUPT))[1]


def _report(runner: Engine, code: int) -> None:
    in_flight = runner.worker.in_flight
    if code == INTERRUPTED_TWICE:
        log_immediate_exit(len(in_flight), in_flight.started())
        return
    for running in in_flight.started():
        log_unfinished(running)
    log.error("drain timeout exceeded: exiting with unfinished tasks")


@contextmanager
def _signals(runner: Engine, forced: ForcedEnd) -> Iterator[None]:
    """Stop on signals inside the block. Signal handlers also run while the event loop is blocked."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def receive(_: int, __: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            forced.arm()
        elif now < first + SAME_SIGNAL:
            return
        else:
            forced.exit_soon(INTERRUPTED_TWICE)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_stop, runner)

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(runner: Engine) -> None:
    if runner.stopping:
        in_flight = runner.worker.in_flight
        log_immediate_exit(len(in_flight), in_flight.started())
        exit_now(INTERRUPTED_TWICE)
    log.info("draining; press ctrl-c again to exit immediately")
    runner.stop()


def tune_interpreter(settings: Settings) -> None:
    """Let the garbage collector run less often: a runner creates many objects and hardly any cycles.

    The modules are kept without a search for garbage in them, which takes longer than a tenth of the start.

    The statements of a database file run in threads, and each waits for the interpreter before and after a statement.
    At the usual 5 ms a busy event loop keeps them waiting for longer than they run.

    Args:
        settings: the settings of the runner.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    if settings.url.file is not None:
        sys.setswitchinterval(SWITCH)
