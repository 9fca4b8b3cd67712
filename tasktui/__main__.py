"""`tasktui`: a line to look at, at once, and then the console, whose modules take most of a second to load."""

import gc
import sys

WAITING = "tasktui is starting ..."
ERASED = "\r\x1b[2K"

DIVIDED = (
    "sqlalchemy.ext.asyncio",  # its sessions bring the ORM along, which nobody here uses
    "textual.types",  # one name of it is asked for, and all of them bring trees, files and more widgets along
)


def main() -> int:
    """Run the console that this process was called for.

    Returns:
        The exit code.
    """
    # Looking for garbage among what is loaded, which stays, takes a fifth of the time; see `load_rest`.
    gc.disable()
    from runner.later import divide
    from tasktui.start.arguments import parse

    arguments = parse(sys.argv[1:])
    told = sys.stdout is not None and sys.stdout.isatty()
    if told:
        print(WAITING, end="", flush=True)
    try:
        for package in DIVIDED:
            divide(package)
        from tasktui.start.starting import main as run

        return run(arguments, _erase if told else bool)
    except KeyboardInterrupt:
        return 130


def _erase() -> None:
    print(ERASED, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
