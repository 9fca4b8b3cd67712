"""Hostile handlers: each does something to its process that no handler should do, and their neighbours beside them.

A runner process of the test imports this module. Nothing here runs in the process of the tests.
"""

import asyncio
import contextlib
import ctypes
import gc
import locale
import logging
import logging.config
import os
import signal
import socket
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner import handler

ACTS: dict[str, Callable[[], Any]] = {}
"""The acts by name: plain functions, which coroutines, threads and processes execute."""


LOOP: list[asyncio.AbstractEventLoop] = []
"""The event loop of the runner, for acts in threads."""


def act(function: Callable[[], Any]) -> Callable[[], Any]:
    ACTS[function.__name__] = function
    return function


def _mark(folder: Path, name: str) -> None:
    with (folder / name).open("a") as file:
        file.write("x")


@handler("hostile.async", max_attempts=1, timeout="20s")
async def on_loop(act: str, folder: Path) -> str:
    _mark(folder, "hostile")
    result = ACTS[act]()
    if asyncio.iscoroutine(result):
        result = await result
    await asyncio.sleep(0.05)
    return "ended"


@handler("hostile.thread", max_attempts=1, timeout="20s")
def in_thread(act: str, folder: Path) -> str:
    _mark(folder, "hostile")
    ACTS[act]()
    return "ended"


@handler("hostile.process", max_attempts=1, timeout="20s", executor="process")
def in_process(act: str, folder: Path) -> Any:
    _mark(folder, "hostile")
    return ACTS[act]() or "ended"


@handler("hostile.process_async", max_attempts=1, timeout="20s", executor="process")
async def in_process_async(act: str, folder: Path) -> Any:
    _mark(folder, "hostile")
    result = ACTS[act]()
    if asyncio.iscoroutine(result):
        result = await result
    await asyncio.sleep(0.05)
    return "ended"


@handler("neighbour.async", max_attempts=1, timeout="60s")
async def neighbour(folder: Path, name: str) -> None:
    """Wait for the end of the hostile handler, in an asyncio task of its own as well."""
    LOOP[:] = [asyncio.get_running_loop()]
    _mark(folder, name)
    await asyncio.gather(asyncio.wait_for(_released(folder), 60), _released(folder))


async def _released(folder: Path) -> None:
    while not (folder / "go").exists():
        await asyncio.sleep(0.02)


@handler("neighbour.thread", max_attempts=1, timeout="60s")
def neighbour_in_thread(folder: Path, name: str) -> None:
    _mark(folder, name)
    while not (folder / "go").exists():
        time.sleep(0.02)


@handler("neighbour.process", max_attempts=1, timeout="60s", executor="process")
def neighbour_in_process(folder: Path, name: str) -> None:
    _mark(folder, name)
    while not (folder / "go").exists():
        time.sleep(0.02)


# Cancellations


@act
async def cancel_self() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(10)


@act
async def cancel_self_later() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(0.02, task.cancel)
    await asyncio.sleep(10)


@act
async def cancel_self_and_swallow() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await cancel_self()
    with contextlib.suppress(asyncio.CancelledError):
        await cancel_self()


@act
async def cancel_self_and_raise() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    raise ValueError("after its own cancellation")


@act
async def await_cancelled() -> None:
    child = asyncio.ensure_future(asyncio.sleep(10))
    asyncio.get_running_loop().call_soon(child.cancel)
    await child


@act
async def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(10)


@act
async def cancel_all_others() -> None:
    """As `asyncio.run` ends; it waits for none that goes on for long, the neighbours."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=0.2)


@act
def cancel_all_from_thread() -> None:
    loop = _loop_of_runner()
    for task in asyncio.all_tasks(loop):
        loop.call_soon_threadsafe(task.cancel)
    time.sleep(0.1)


# The event loop


def _loop_of_runner() -> asyncio.AbstractEventLoop:
    return LOOP[0]


@act
async def stop_loop() -> None:
    asyncio.get_running_loop().stop()


@act
async def stop_loop_soon() -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.stop)


@act
def stop_loop_from_own_thread() -> None:
    loop = _loop_of_runner()
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(loop.stop,))
    thread.start()
    thread.join()


@act
async def close_loop() -> None:
    asyncio.get_running_loop().close()


@act
async def run_loop() -> None:
    work = asyncio.sleep(0)
    try:
        asyncio.get_running_loop().run_until_complete(work)
    finally:
        work.close()


@act
async def run_asyncio() -> None:
    work = asyncio.sleep(0)
    try:
        asyncio.run(work)
    finally:
        work.close()


@act
async def fail_loop() -> None:
    """As nest_asyncio does, whose nested turn takes the callbacks of the outer one."""
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once

    def fail() -> None:
        loop._run_once = run_once
        raise IndexError("pop from an empty deque")

    loop._run_once = fail


@act
async def replace_exception_handler() -> None:
    def fail(*_: Any) -> None:
        raise SystemExit(7)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(fail)
    loop.call_soon(lambda: 1 / 0)


# Descriptors


@act
def close_all_descriptors() -> None:
    os.closerange(3, 400)


@act
def close_all_descriptors_and_hold_interpreter() -> None:
    os.closerange(3, 400)
    ctypes.PyDLL(None).sleep(60)


@act
async def close_selector() -> None:
    loop: Any = asyncio.get_running_loop()
    os.close(loop._selector.fileno())


@act
def close_self_pipe() -> None:
    loop: Any = _loop_of_runner()
    os.close(loop._csock.fileno())


@act
def close_sockets() -> None:
    """Close the connections to the database server, and no others."""
    for descriptor in range(3, 400):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                is_server = copy.family in (socket.AF_INET, socket.AF_INET6)
            if is_server:
                os.close(descriptor)


# Signals and timers

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


@act
def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@act
def default_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@act
def handle_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)


@act
async def add_signal_handler() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)


@act
def block_signals() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@act
def set_alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.01)


@act
def set_all_timers() -> None:
    for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):
        with contextlib.suppress(ValueError):  # in a thread
            signal.signal(number, signal.SIG_DFL)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 1.0)


# Exceptions


class TextRaises(Exception):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__


class BaseTextRaises(BaseException):
    def __str__(self) -> str:
        raise SystemExit(9)

    __repr__ = __str__


class TextRaisesLater(Exception):
    """Its text can be read a few times."""

    reads = 0

    def __str__(self) -> str:
        self.reads += 1
        if self.reads > 3:
            raise SystemExit(9)
        return "fine so far"


class TextIsNone(Exception):
    __str__: Any = lambda self: None


class Unloadable(Exception):
    """An exception whose loading executes code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit(9)",)


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.lock = threading.Lock()


class ReduceExits(Exception):
    def __reduce__(self) -> Any:
        raise SystemExit(9)


RAISED: dict[str, Callable[[], BaseException]] = {
    "text_raises": lambda: TextRaises(RuntimeError("no text")),
    "text_exits": lambda: TextRaises(SystemExit(9)),
    "text_interrupts": lambda: TextRaises(KeyboardInterrupt()),
    "base_text_exits": BaseTextRaises,
    "text_raises_later": TextRaisesLater,
    "text_is_none": TextIsNone,
    "group_exits": lambda: ExceptionGroup("several", [ValueError("one"), TextRaises(SystemExit(9))]),
    "unloadable": lambda: Unloadable("x"),
    "unpicklable": lambda: Unpicklable("two", "arguments"),
    "reduce_exits": lambda: ReduceExits("x"),
    "interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "stop_iteration": StopIteration,
}
"""The exceptions of the acts that raise one."""


def _raising(make: Callable[[], BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise make()

    return fail


ACTS |= {name: _raising(make) for name, make in RAISED.items()}


@act
def cause_exits() -> None:
    raise ValueError("outer") from TextRaises(SystemExit(9))


@act
def exit_process() -> None:
    sys.exit(3)


@act
def exit_at_once() -> None:
    os._exit(3)


@act
def recursion() -> None:
    recursion()


@act
async def exit_in_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)


@act
async def exit_in_child() -> None:
    async def child() -> None:
        sys.exit(3)

    asyncio.ensure_future(child()).add_done_callback(lambda task: task.exception())


@act
def return_function() -> Any:
    return lambda: 1


@act
def return_hostile() -> Any:
    class Result:
        def __reduce__(self) -> Any:
            raise SystemExit(9)

        def __repr__(self) -> str:
            raise SystemExit(9)

    return Result()


# The state of the process


@act
def print_much() -> str:
    print("p" * 20_000_000)
    return "printed"


@act
def close_streams() -> None:
    sys.stdout.close()
    sys.stderr.close()


@act
def lose_streams() -> None:
    sys.stdout = sys.stderr = None  # as in a program without a console


@act
def break_streams() -> None:
    class Broken:
        def write(self, _: str) -> None:
            raise SystemExit(9)

        flush = isatty = fileno = write

    sys.stdout = sys.stderr = Broken()  # the mistake under test


@act
def change_directory() -> None:
    os.chdir("/")


@act
def clear_environment() -> None:
    os.environ.clear()


@act
def change_locale() -> None:
    locale.setlocale(locale.LC_ALL, "C")


@act
def change_umask() -> None:
    os.umask(0o777)


@act
def lower_recursion_limit() -> None:
    sys.setrecursionlimit(80)


@act
def replace_excepthooks() -> None:
    def fail(*_: Any) -> None:
        raise SystemExit(9)

    threading.excepthook = sys.excepthook = sys.unraisablehook = fail


@act
def warnings_as_errors() -> None:
    warnings.simplefilter("error")


@act
def disable_collector() -> None:
    gc.disable()
    gc.set_threshold(1)
    sys.setswitchinterval(60)


@act
def disable_logging() -> None:
    logging.disable(logging.CRITICAL)


@act
def shut_down_logging() -> None:
    logging.shutdown()


@act
def configure_logging() -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True, "root": {"level": "CRITICAL"}})
