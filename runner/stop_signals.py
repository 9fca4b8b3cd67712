"""Stop signals: the signals that drain a runner."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType


def in_main_thread() -> bool:
    """True in the main thread, the only one that may set the handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return SIGTERM and SIGINT, and SIGHUP unless the process was started with `nohup`, which ignores it."""
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGTERM, signal.SIGINT, *hangup)


def end_on_stop_signals() -> None:
    """End this process with exit code 0 at SIGTERM or SIGHUP: it has no tasks that it must drain.

    Call it before the imports of a runner, which replaces these handlers when it starts. Ctrl-c remains as it is.
    """
    for number in stop_signals():
        if number != signal.SIGINT:
            signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))  # the program blocks them at its start


def _end(number: int, _: FrameType | None) -> None:
    with suppress(OSError):
        os.write(2, f"runner: {signal.Signals(number).name} before the start: no task was claimed\n".encode())
    os._exit(0)
