"""Init: process 1 of a container, which runs the command as its child.

The system gives process 1 the orphans of its namespace, which stay zombies until it waits for them, and no default
actions of signals. A command that waited for all children would take the exit codes of its own ones from
multiprocessing, subprocess and asyncio. So process 1 only waits and forwards signals. Without an init of the container
(`docker run --init`), the programs of this package start this one.

It is a script without imports of the package, so that it needs 8 MB.
"""

import os
import signal
import sys

UNFORWARDED = tuple(getattr(signal, name, 0) for name in ("SIGCHLD", "SIGTSTP", "SIGTTIN", "SIGTTOU"))  # not on Windows
"""Signals about process 1 itself."""


def run_as_child() -> None:
    """Return in a child of process 1, which becomes its init; return at once in any other process.

    Call it before threads start. Without permission for another process, process 1 continues.
    """
    if os.getpid() != 1 or sys.platform != "linux":
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they wait for `serve`
    try:
        child = os.fork()
    except OSError:
        child = None
    if child:
        try:
            os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(child)])  # noqa: S606 - our own script
        except OSError:
            os._exit(serve(child))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(command: int) -> int:
    """Forward signals to the command and wait for orphans until the command ends.

    Args:
        command: process id of the command. All signals are blocked.

    Returns:
        Its exit code, as shells show it.
    """
    while True:
        received = signal.sigwaitinfo(signal.valid_signals())
        if received.si_signo == signal.SIGCHLD:
            if (code := _reap(command)) is not None:
                return code
        elif received.si_signo not in UNFORWARDED and received.si_code <= 0:  # the terminal sends to the whole group
            try:
                os.kill(command, received.si_signo)
            except ProcessLookupError:
                continue


def _reap(command: int) -> int | None:
    """Wait for all children that have ended; return the exit code of the command if it is one of them."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None


if __name__ == "__main__":
    os._exit(serve(int(sys.argv[1])))
