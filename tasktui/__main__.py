"""The programs `tasktui` and `runner`, which run the console or one command."""

import signal
import sys
from collections.abc import Callable

WAITING = "tasktui is starting ..."
"""Printed first: loading the console takes most of a second."""

ERASED = "\r\x1b[2K"

CONFIGURATION = 3
"""The exit code for a hidden or missing package, as in runner.cli.exit_codes."""


def main() -> int:
    """Run the console, or the command that the first argument names: `tasktui work` is `runner work`."""
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        return run_command_line()
    import gc
    import os
    from importlib.util import find_spec

    # The search for plugins of pydantic reads the metadata of every installed package; the console has no use for one.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Garbage collection during the imports would take a fifth of the start-up time; see `preload`.
    gc.disable()
    if _package_is_hidden("tasktui"):
        return CONFIGURATION
    if find_spec("textual") is None and "--version" not in sys.argv:
        print("tasktui: the package textual is not installed. Run: pip install 'tasktui[console]'", file=sys.stderr)
        return CONFIGURATION
    from tasktui.startup.arguments import parse

    arguments = parse(sys.argv[1:])
    ready = _announced() if sys.stdout is not None and sys.stdout.isatty() else bool
    try:
        from tasktui.startup.startup import main as run

        return run(arguments, ready)
    except KeyboardInterrupt:
        ready()
        return 130


def run_command_line() -> int:
    """Run the program `runner`, unless another file hides its package."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # During the imports ctrl-c ends the process: a KeyboardInterrupt there prints a traceback or is lost.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # These signals wait for their handlers; see runner.stop_signals. Windows has no masks, and no runners.
    if sys.argv[1:2] == ["work"] and hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    if _package_is_hidden("runner"):
        return CONFIGURATION
    from runner.cli import main as run

    return run()


def _package_is_hidden(program: str) -> bool:
    """Report a file of an application with the name of the package `runner`, which Python would import instead."""
    from tasktui.namesake import ADVICE, namesake

    if (file := namesake()) is None:
        return False
    print(f"{program}: {file} {ADVICE}.", file=sys.stderr)
    return True


def _announced() -> Callable[[], object]:
    """Announce the console, and hide typed keys, which are for its first screen; the returned function ends both."""
    echo = _without_echo()
    print(WAITING, end="", flush=True)

    def ready() -> None:
        echo()
        print(ERASED, end="", flush=True)

    return ready


def _without_echo() -> Callable[[], object]:
    """Stop the echo of typed keys; the returned function restores it."""
    try:
        import termios
    except ImportError:  # Windows
        return bool
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError, TypeError):  # a file, or closed
        return bool
    hidden = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSANOW, hidden)
    return lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


if __name__ == "__main__":
    sys.exit(main())
