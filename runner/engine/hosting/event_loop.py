"""Event loop of a runner process: its handlers cannot stop it, end it, or cancel what belongs to the runner."""

import asyncio
import logging
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from runner.engine.executing.jobs import AttemptJob, Child
from runner.errors import ConfigurationError
from runner.model.task import CURRENT_TASK
from runner.text.sanitize import first_names

log = logging.getLogger("runner")

T = TypeVar("T")

ASYNCIO = Path(asyncio.__file__).parent

MOST_NAMED = 5
"""Tasks that a message names."""


class EventLoopBroken(Exception):
    """The event loop cannot go on, because code of this process closed its descriptors."""


class LoopStopRefused(RuntimeError):
    """A handler tried to stop the event loop of its runner, which runs the other tasks too."""


def run_contained(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop, which handlers cannot end.

    A handler's own task (`asyncio.create_task`) may call `sys.exit`. asyncio would then end the loop, and with it the
    runner and all its other tasks. The exception remains in the task: a handler that awaits it fails. A handler that
    stops the loop fails. One that cancels all asyncio tasks does not find those of the runner.

    Args:
        main: the coroutine; its own exceptions are raised.

    Returns:
        The result of the coroutine.

    Raises:
        EventLoopBroken: the descriptors of the event loop were closed.
    """
    loop_runner = asyncio.Runner()
    loop = loop_runner.get_loop()
    hidden = HiddenTasks()
    loop.set_task_factory(hidden)  # type: ignore[arg-type] # its options depend on the version of Python
    stop = _refuse_stop(loop)
    task = loop.create_task(main)
    task.add_done_callback(lambda _: stop())
    failures = _LoopFailures(loop)
    while not task.done():
        _run(loop, task, failures)  # a broken loop cannot even be closed
    hidden.reveal()
    loop_runner.close()
    return task.result()


def _run(loop: asyncio.AbstractEventLoop, task: "asyncio.Task[Any]", failures: "_LoopFailures") -> None:
    """Run the loop until something stops it."""
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt) as error:
        if task.done():  # it has the exception
            return
        log.error("%s: the runner continues; end a task with return or an exception", _exit_of(error))
    except Exception as error:  # of the loop itself: it catches those of its callbacks
        failures.record(error)
    else:
        if not task.done():
            log.error("code outside of a handler stopped the event loop: running it again%s", _running(loop))


MOST_FAILURES = 100
"""Failures of the event loop without a second of work in between, after which it counts as broken."""


class _LoopFailures:
    """The failures of the event loop itself, such as those of a library that runs it inside a handler."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptors = LoopDescriptors(loop)
        self._count, self._last = 0, 0.0

    def record(self, error: Exception) -> None:
        """Log a failure.

        Raises:
            EventLoopBroken: the loop has lost a descriptor, or fails all the time.
        """
        now, running = time.monotonic(), _running(self._loop)
        self._count = self._count + 1 if now < self._last + 1.0 else 1
        self._last = now
        text = f"{type(error).__name__}: {error}"
        if (closed := self._descriptors.closed()) is not None:
            raise EventLoopBroken(f"the event loop cannot go on: {error}; its {closed}, was closed{running}") from error
        if self._count >= MOST_FAILURES:
            raise EventLoopBroken(f"the event loop fails all the time: {text}{running}") from error
        if self._count == 1:
            log.error("the event loop failed, probably because a handler has run or patched it: %s%s", text, running)


def _refuse_stop(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Let handlers fail that stop the loop, and return the function that stops it."""
    stop = loop.stop

    def guarded() -> None:
        if (by := CURRENT_TASK.get()) is not None:
            raise LoopStopRefused(
                f"task {by.id} ({by.handler}) may not stop the event loop, which runs the other tasks of its runner too"
            )
        stop()

    loop.stop = guarded  # type: ignore[method-assign] # of this loop only
    return stop


def _running(loop: asyncio.AbstractEventLoop) -> str:
    """Name the tasks whose coroutines have not ended, as the end of a message: one of them may be the cause."""
    owners = [job.owner for job in asyncio.all_tasks(loop) if isinstance(job, AttemptJob) and job.owner is not None]
    names = first_names([f"task {owner.id} ({owner.handler})" for owner in owners], MOST_NAMED)
    return f"; running then, possibly the cause: {names}" if names else ""


def _exit_of(error: BaseException) -> str:
    """Describe an exit, the coroutine and the line that it came from, without any values."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame for frame in frames if Path(frame.f_code.co_filename).parent not in (ASYNCIO, Path(__file__).parent)]
    if not own:
        return f"{type(error).__name__} in a callback"
    line = traceback.extract_tb(error.__traceback__, limit=-1)[0]
    return f"{type(error).__name__} in coroutine {own[0].f_code.co_qualname} at {line.filename}:{line.lineno}"


class HiddenTasks:
    """The task factory of the loop: `asyncio.all_tasks` does not return the asyncio tasks of the runner.

    Handlers, and functions of libraries, cancel all asyncio tasks or wait for them. Those of the runner never end.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def __call__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        """Make an asyncio task; it belongs to the runner if no task runs in its context."""
        context = options.get("context")
        owner = CURRENT_TASK.get() if context is None else context.get(CURRENT_TASK)
        if owner is not None:
            return Child(work, loop=loop, **options).of(owner)
        task = asyncio.Task(work, loop=loop, **options)
        asyncio._unregister_task(task)  # noqa: SLF001 - for those who extend asyncio, by its documentation
        self._tasks.add(task)
        return task

    def reveal(self) -> None:
        """Let `asyncio.all_tasks` return them again, so that the end of the loop cancels them."""
        for task in self._tasks:
            if not task.done():
                asyncio._register_task(task)  # noqa: SLF001 - as above


PATCHES = {"gevent": ("gevent.monkey", "saved"), "eventlet": ("eventlet.patcher", "already_patched")}
"""The libraries that replace modules of the standard library, and where each keeps the names of those."""


REPLACED = {"threading", "thread", "socket", "select", "selectors"}
"""The modules without which a runner cannot work."""


def require_unpatched() -> None:
    """Refuse to start where a library has replaced the threads and sockets of the standard library.

    Its coroutines share one thread. An event loop and the threads of a runner would wait for each other.

    Raises:
        ConfigurationError: gevent or eventlet has patched the standard library.
    """
    for library, (module, names) in PATCHES.items():
        patched = REPLACED & {*getattr(sys.modules.get(module), names, ())}
        if patched:
            modules = ", ".join(sorted(patched))
            raise ConfigurationError(
                why=f"{library} has patched modules of the standard library ({modules}), probably from the module of a "
                "handler: a runner cannot work then. Remove the patch, or let the handler start a program of its own "
                "that has it"
            )


class LoopDescriptors:
    """The descriptors that an event loop needs, with which a handler that closes all descriptors breaks it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        parts = {"selector": "_selector", "self-pipe": "_ssock", "writing end of the self-pipe": "_csock"}
        objects: dict[str, Any] = {name: getattr(loop, attribute, None) for name, attribute in parts.items()}
        self._descriptors = {name: part.fileno() for name, part in objects.items() if hasattr(part, "fileno")}
        self._identities = {name: _identity(descriptor) for name, descriptor in self._descriptors.items()}

    def closed(self) -> str | None:
        """Name a descriptor that was closed, or that another file has now; None if the loop has all of them."""
        for name, descriptor in self._descriptors.items():
            if _identity(descriptor) != self._identities[name]:
                return f"{name}, descriptor {descriptor}"
        return None


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
