"""Process state: what handlers change for the whole process, such as signal handlers, and its restoration."""

import contextlib
import gc
import io
import logging
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple, TextIO

from runner.engine.running import Running
from runner.stop_signals import in_main_thread
from runner.text.sanitize import first_names

log = logging.getLogger("runner")

TIMERS = {
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}
"""The timers of the process by their signal, which ends a process that does not handle it."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, *TIMERS)
"""The signals that a runner needs: to drain, to wait for its processes, and to survive a closed connection."""

handler_of: Callable[[int], Any] = getattr(signal, "_signal", signal).getsignal
"""Returns the handler of a signal, in a thirtieth of the time that its conversion to an enumeration takes."""

STREAMS = ("stdout", "stderr")

MOST_NAMED = 5
"""Tasks that a message names."""


class ProcessState:
    """The state of the process when its runner starts. Create it, and call its methods, in one thread.

    Only the main thread can restore the handlers of signals.

    Restoring what a handler still uses would be wrong for some parts, so only those are restored that the runner and
    the other handlers need.
    """

    def __init__(self) -> None:
        self._stray: list[int] = []
        """The signals of timers that arrived since the last check."""
        is_main = in_main_thread()
        for number in TIMERS if is_main else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._receive)
        self._signals = [(number, handler_of(number)) for number in map(int, SIGNALS) if is_main]
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._interpreter = _Interpreter.read()
        self._logging = _Logging()
        self._streams = {name: getattr(sys, name) for name in STREAMS}

    def _receive(self, number: int, _: FrameType | None) -> None:
        self._stray.append(number)

    def restore_signals(self) -> list[str]:
        """Restore signal handlers and the recursion limit; return a description of each change.

        It takes about a microsecond.
        """
        changes = []
        for number, before in self._signals:
            if handler_of(number) is not before:
                changes.append(f"{signal.Signals(number).name} ({_describe(signal.getsignal(number))})")
                _restore(number, before)
        if self._stray:
            names = sorted({signal.Signals(number).name for number in self._stray})
            self._stray.clear()
            changes.append(f"a timer that sent {', '.join(names)}")
        if sys.getrecursionlimit() != self._interpreter.recursion_limit:
            changes.append(f"the recursion limit ({sys.getrecursionlimit()})")
            sys.setrecursionlimit(self._interpreter.recursion_limit)
        return changes

    def restore(self, *, alone: bool) -> list[str]:
        """Restore everything; return a description of each change.

        Args:
            alone: True if no handler runs, which may have replaced a stream for as long as it runs.
        """
        changes = self.restore_signals()
        for number, timer in TIMERS.items():
            if signal.getitimer(timer)[0] and signal.getsignal(number) == self._receive:
                changes.append(f"a timer that sends {number.name}")
                signal.setitimer(timer, 0)
        if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()) - self._mask:
            changes.append(f"the mask of signals ({', '.join(sorted(signal.Signals(each).name for each in blocked))})")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        changes += self._interpreter.restore()
        for name in STREAMS:
            if _is_closed(now := getattr(sys, name)) or (alone and now is not self._streams[name]):
                changes.append(f"sys.{name} ({'closed' if _is_closed(now) else 'replaced'})")
                setattr(sys, name, self._opened(name))
        return changes + self._logging.restore()

    def _opened(self, name: str) -> Any:
        """Return the stream of the start, or one like it if that is closed. Its descriptor is still open."""
        before = self._streams[name]
        if _is_closed(before):
            descriptor = STREAMS.index(name) + 1
            stream = io.open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115, UP020 - stays open; a handler may have replaced the builtin
            self._logging.replace(before, stream)
            self._streams[name] = stream
        return self._streams[name]


class StateGuard:
    """Restores the process state of a runner, and logs the tasks that have probably changed it.

    Args:
        started: returns the tasks whose body is running.
    """

    def __init__(self, state: ProcessState, started: Callable[[], list[Running]]) -> None:
        self._state, self._started = state, started

    def after(self, batch: Iterable[tuple[Running, Any]]) -> None:
        """Restore after attempts that have just ended."""
        if changes := self._state.restore_signals():
            _report(changes, [running for running, _ in batch], "ended just before")

    def check(self) -> None:
        """Restore what handlers that still run, or threads of theirs, have changed."""
        attempts = [running for running in self._started() if not running.handler.in_process]
        if changes := self._state.restore(alone=not attempts):
            _report(changes, attempts, "running now")


def _report(changes: list[str], attempts: list[Running], when: str) -> None:
    here = [running.task for running in attempts if not running.handler.in_process]
    names = first_names([f"task {task.id} ({task.handler})" for task in here], MOST_NAMED)
    guess = f"; {when}, probably the cause: {names}" if names else ""
    log.warning("a handler has changed the process of its runner, restored: %s%s", ", ".join(changes), guess)


def _describe(handler: Any) -> str:
    return handler.name if isinstance(handler, signal.Handlers) else "another handler"


def _restore(number: int, before: Any) -> None:
    with contextlib.suppress(RuntimeError, ValueError):
        import asyncio

        asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(number, signal.SIG_DFL if before is None else before)


def _is_closed(stream: Any) -> bool:
    return stream is None or bool(getattr(stream, "closed", False))


class _Interpreter(NamedTuple):
    recursion_limit: int
    switch_interval: float
    collects: bool
    threshold: tuple[int, int, int]

    @classmethod
    def read(cls) -> "_Interpreter":
        return cls(sys.getrecursionlimit(), sys.getswitchinterval(), gc.isenabled(), gc.get_threshold())

    def restore(self) -> list[str]:
        changes, now = [], self.read()
        if abs(now.switch_interval - self.switch_interval) > self.switch_interval / 2:
            changes.append(f"the switch interval of threads ({now.switch_interval} s)")
            sys.setswitchinterval(self.switch_interval)
        if self.collects and not now.collects:
            changes.append("the garbage collector (disabled)")
            gc.enable()
        if now.threshold != self.threshold:
            changes.append(f"the thresholds of the garbage collector {now.threshold}")
            gc.set_threshold(*self.threshold)
        return changes


class _Logging:
    """The logging of the runner: it continues, whatever the logging of the application becomes."""

    def __init__(self) -> None:
        self._disabled = logging.root.manager.disable
        self._level = log.getEffectiveLevel()
        self._handlers = [(logger, handler) for logger in (logging.root, log) for handler in logger.handlers]

    def restore(self) -> list[str]:
        changes = []
        if logging.root.manager.disable > self._disabled:
            changes.append(f"logging (disabled up to level {logging.root.manager.disable})")
            logging.disable(self._disabled)
        mute = [logger for logger in _own_loggers() if logger.disabled]
        missing = [(logger, handler) for logger, handler in self._handlers if handler not in logger.handlers]
        if mute or missing or log.getEffectiveLevel() != self._level:
            changes.append("the logging of the runner (reconfigured)")
            for logger in mute:
                logger.disabled = False
            for logger, handler in missing:
                logger.addHandler(handler)
            log.setLevel(self._level)
        return changes

    def replace(self, closed: TextIO, stream: TextIO) -> None:
        """Let the handlers that write to a closed stream write to another one."""
        for _, handler in self._handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is closed:
                handler.stream = stream  # not setStream, which flushes the closed one


def _own_loggers() -> list[logging.Logger]:
    loggers = logging.root.manager.loggerDict
    named = [logger for name, logger in tuple(loggers.items()) if name.partition(".")[0] == "runner"]
    return [logger for logger in named if isinstance(logger, logging.Logger)]
