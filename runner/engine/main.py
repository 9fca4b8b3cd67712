"""Runner process: one runner with signal handling, and a time limit for its draining."""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from runner.client.client import connect
from runner.engine.events import AttemptsEnded, InterruptIgnored
from runner.engine.forced_end import ForcedEnd, exit_now
from runner.engine.hosting.event_loop import EventLoopBroken, HiddenTasks, require_unpatched, run_contained
from runner.engine.hosting.process_state import ProcessState, StateGuard
from runner.engine.in_flight import InFlight
from runner.engine.lease.watchdog import EVERY, LONGEST_BLOCK, KeeperProcess
from runner.engine.periodic.garbage_collection import return_large_blocks
from runner.engine.runner import LAST_WRITES, Engine
from runner.engine.running import Running
from runner.engine.worker import INTERRUPT
from runner.handlers.registry import Handler
from runner.settings import Settings
from runner.stop_signals import in_main_thread, stop_signals
from runner.text.sanitize import count_noun, first_names

if TYPE_CHECKING:
    from runner.engine.serving.service import Service
    from runner.engine.shards import ShardEngines

log = logging.getLogger("runner")


SWITCH = 1e-4
"""Seconds that one thread may keep the interpreter while another waits for it."""

SAME_SIGNAL = 0.2
"""Seconds in which a repeated signal is the first one: `timeout` sends it to the process and to its group."""


MOST_NAMED = 20
"""Tasks that are named when a process ends with many."""

INTERRUPTED_TWICE = 130
"""The exit code after a second signal."""

UNWRITTEN = 1
"""The exit code if tasks did not end or outcomes were not written."""

SLACK = 2.0
"""Extra seconds for the exit of a drained process, beyond the limits of its parts."""


def run_process(main: Coroutine[Any, Any, int]) -> int:
    """Run the coroutine of a runner process; end the process if its event loop cannot go on."""
    try:
        return run_contained(main)
    except EventLoopBroken as error:
        end_broken(str(error))


def end_broken(what: str) -> NoReturn:
    """End a process whose event loop cannot go on; its supervisor starts it again."""
    log.critical(
        "%s; a handler has probably closed descriptors that it did not open: exiting with code %d, and other runners "
        "rescue its tasks",
        what,
        UNWRITTEN,
    )
    exit_now(UNWRITTEN)


async def work(
    settings: Settings,
    handlers: Mapping[str, Handler],
    *,
    until_idle: bool = False,
    leaves_retries: bool = False,
    max_tasks: int | None = None,
    service: "Service | None" = None,
) -> int:
    """Run a runner until a signal or, with `until_idle`, until no work is left.

    The first SIGTERM, SIGINT or SIGHUP drains. The second ends the process immediately; other runners rescue its tasks
    when the lease expires. After the drain timeout the process ends even if a handler is still running.

    Args:
        until_idle: stop when nothing is due or will be retried.
        leaves_retries: with `until_idle`, stop although tasks will be retried.
        max_tasks: drain after this number of attempts; None for no limit.
        service: hands the tasks to executors that pull over HTTP; None runs them here.

    Returns:
        The exit code: 0 or UNWRITTEN.
    """
    require_unpatched()
    connect(settings)  # handlers submit tasks to this database
    runner = _runner(settings, handlers, service)
    last = INTERRUPT + 2 * LAST_WRITES + runner.resources.close_limit + SLACK
    longest = settings.drain_timeout.total_seconds() + last
    forced = ForcedEnd(longest, lambda code: _report(runner, code), UNWRITTEN)
    try:
        with _observed(runner), _signals(runner, forced):
            tune_interpreter(settings)
            guard = StateGuard(ProcessState(), lambda: _started(runner))
            count = None if max_tasks is None else AttemptCount(max_tasks, runner.stop)
            prepare = partial(_prepare, guard, leaves_retries, count)
            for part in runner.parts:
                prepare(part)
            runner.on_new = prepare
            arming = asyncio.ensure_future(_arm_on_stop(runner, forced))
            async with nullcontext() if service is None else service.around(runner.stop_requested()):
                clean = await runner.run(until_idle=until_idle)
            guard.check()
            arming.cancel()
            _log_later(runner)
            forced.code = 0 if clean else UNWRITTEN
            if threads := sum(part.worker.executor.stuck + part.resources.stuck for part in runner.parts):
                stuck = count_noun(threads, "abandoned thread")
                log.warning("exiting although %s did not end", stuck)
                exit_now(forced.code)
            if not clean or not await _cancel_leftovers():
                exit_now(forced.code)  # a coroutine that ignores its cancellation would block the loop's shutdown
            return forced.code
    finally:
        forced.disarm()


def _runner(settings: Settings, handlers: Mapping[str, Handler], service: "Service | None") -> "Engine | ShardEngines":
    """Make the runner of one database, or those of all shards."""
    if not settings.shards:
        return Engine(settings, handlers, pulled=None if service is None else service.database())
    from runner.engine.shards import ShardEngines  # most runners have one database

    return ShardEngines(settings, handlers, None if service is None else service.database)


def _prepare(guard: StateGuard, leaves_retries: bool, count: "AttemptCount | None", runner: Engine) -> None:
    """Prepare a runner for its process."""
    runner.leaves_retries = leaves_retries
    if runner.settings.lease_timeout.total_seconds() < LONGEST_BLOCK:
        runner.watchdog.keeper = KeeperProcess(runner.settings, EVERY, LONGEST_BLOCK)
    runner.watchdog.on_broken = end_broken
    runner.worker.buffer.before_write, runner.watchdog.on_response = guard.after, guard.check
    if count is not None:
        runner.events.subscribe(AttemptsEnded, count.add)


class AttemptCount:
    """Drains a process after a number of attempts.

    Args:
        most: the number.
        stop: drains the process.
    """

    def __init__(self, most: int, stop: Callable[[], object]) -> None:
        self._left, self._stop = most, stop

    def add(self, event: AttemptsEnded) -> None:
        """Count attempts that have ended."""
        before, self._left = self._left, self._left - len(event.attempts)
        if before > 0 >= self._left:
            log.info("draining, because the attempts of --max-tasks have ended", extra={"event": "draining"})
            self._stop()


def _log_later(runner: "Engine | ShardEngines") -> None:
    """Log the number of tasks that an idle runner leaves for later."""
    if number := sum(part.completion.scheduled_count for part in runner.parts):
        kind = "task" if any(part.leaves_retries for part in runner.parts) else "scheduled task"
        log.info("idle: %s left for later", count_noun(number, kind))


def _started(runner: "Engine | ShardEngines") -> list[Running]:
    return [running for part in runner.parts for running in part.worker.in_flight.started()]


async def _arm_on_stop(runner: "Engine | ShardEngines", forced: ForcedEnd) -> None:
    """Start the countdown when the runner stops for any reason."""
    await runner.stop_requested()
    forced.arm()


async def _cancel_leftovers() -> bool:
    """Cancel the coroutines that handlers left behind; return False if some do not end."""
    factory: Any = asyncio.get_running_loop().get_task_factory()
    if isinstance(factory, HiddenTasks):
        factory.reveal()  # also those of resources
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    return not tasks or not (await asyncio.wait(tasks, timeout=INTERRUPT))[1]


def _report(runner: "Engine | ShardEngines", code: int) -> None:
    if code == INTERRUPTED_TWICE:
        log_immediate_exit([part.worker.in_flight for part in runner.parts])
        return
    for part in runner.parts:
        for running in part.worker.in_flight.started():
            part.events.publish(InterruptIgnored(running))
    log.error("drain timeout exceeded: exiting with unfinished tasks", extra={"event": "exiting"})


@contextmanager
def _observed(runner: "Engine | ShardEngines") -> Iterator[None]:
    """Serve the probes inside the block, if a setting or systemd asks for them."""
    settings = runner.settings
    if not (settings.exports_metrics or settings.health_file or "NOTIFY_SOCKET" in os.environ):
        yield
        return
    from runner.engine.hosting.probes import serve_probes  # most runners have none

    with serve_probes(runner):
        yield


@contextmanager
def _signals(runner: "Engine | ShardEngines", forced: ForcedEnd) -> Iterator[None]:
    """Stop on signals inside the block. Signal handlers also run while the event loop is blocked.

    In another thread than the main one, as in a test of an application, signals remain with the application.
    """
    if not in_main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    first: float | None = None

    def receive(number: int, _: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None and now < first + SAME_SIGNAL:
            return
        is_second = first is not None
        if is_second:
            forced.exit_soon(INTERRUPTED_TWICE)
        else:
            first = now
            forced.arm()
        with suppress(RuntimeError):  # the loop is closed
            if is_second:
                loop.call_soon_threadsafe(_exit, runner)
            else:
                loop.call_soon_threadsafe(_drain, runner, signal.Signals(number))

    before = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(runner: "Engine | ShardEngines") -> None:
    log_immediate_exit([part.worker.in_flight for part in runner.parts])
    exit_now(INTERRUPTED_TWICE)


def _drain(runner: "Engine | ShardEngines", number: signal.Signals) -> None:
    """Drain at the first signal, even if a command or another reason has begun to drain the runner."""
    again = "press ctrl-c again" if number == signal.SIGINT else "send a second signal"
    log.info("%s: draining; %s to exit immediately", number.name, again, extra={"event": "draining"})
    runner.stop()


def log_immediate_exit(in_flight: Sequence[InFlight]) -> None:
    """Log the tasks of a process that ends on a second signal; other runners rescue them."""
    started = [running.task for each in in_flight for running in each.started()]
    names = first_names([f"task {task.id} ({task.handler})" for task in started], MOST_NAMED)
    running = f"; running: {names}" if started else ""
    tasks = count_noun(sum(map(len, in_flight)), "task")
    log.warning("exiting immediately: %s will be rescued%s", tasks, running, extra={"event": "exiting"})


def tune_interpreter(settings: Settings) -> None:
    """Let the garbage collector run less often: a runner creates many objects and hardly any cycles.

    When memory grows, the heartbeat collects all garbage, see runner.engine.resource_meter. Large blocks
    return to the system when they are free.

    The modules are kept without a search for garbage in them, which takes longer than a tenth of the start.

    The statements of a database file run in threads, and each waits for the interpreter before and after a statement.
    At the usual 5 ms a busy event loop keeps them waiting for longer than they run.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    return_large_blocks()
    if settings.url.file is not None:
        sys.setswitchinterval(SWITCH)
