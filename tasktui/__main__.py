"""`tasktui`: prints a line immediately, then loads the console, which takes most of a second."""

import gc
import sys

WAITING = "tasktui is starting ..."
ERASED = "\r\x1b[2K"


def main() -> int:
    """Run the console.

    Returns:
        The exit code.
    """
    # Garbage collection during the imports would take a fifth of the start-up time; see `preload`.

    gc.disable()
    from tasktui.startup.arguments import parse

    arguments = parse(sys.argv[1:])
    is_tty = sys.stdout is not None and sys.stdout.isatty()
    if is_tty:
        print(WAITING, end="", flush=True)
    try:
        from tasktui.startup.startup import main as run

        return run(arguments, _erase if is_tty else bool)
    except KeyboardInterrupt:
        return 130


def _erase() -> None:
    print(ERASED, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
