"""The command line, `runner COMMAND ...`. Each command's module is imported when the command runs."""

import gc
import os
import sys

INTERRUPTED = 130

CONFIGURATION = 3
"""The exit code for a missing package, as in runner.cli.exit_codes."""


ON_WINDOWS = "On Windows, run it in WSL or in a container; submitting, the console and other commands work."


def main() -> int:
    """Run the command line of this process.

    Returns:
        The exit code; see runner.cli.exit_codes.
    """
    from runner.cli.init import run_as_child

    run_as_child()
    if sys.argv[1:2] in (["work"], ["serve"]) and not hasattr(os, "fork"):
        print(f"runner: runner {sys.argv[1]} needs Linux or macOS. {ON_WINDOWS}", file=sys.stderr)
        return CONFIGURATION
    if sys.argv[1:2] == ["work"]:
        from runner.stop_signals import end_on_stop_signals

        end_on_stop_signals()
    try:
        # Garbage collection during the imports would take a seventh of the start-up time; see `app.run`.
        gc.disable()
        from runner.cli.app import run
        from runner.cli.exit_codes import exit_code_of, prepare_streams, raise_interrupts

        prepare_streams()
        return exit_code_of(lambda: run([as_utf8(word) for word in sys.argv[1:]], raise_interrupts))
    except KeyboardInterrupt:
        return INTERRUPTED  # ctrl-c during the imports
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("runner", "tasktui"):
            raise
        if sys.argv[1:] == ["--version"]:
            from importlib.metadata import version

            print(version("tasktui"))
            return 0
        print(f"runner: the package {package} is not installed. Run: pip install 'tasktui[runner]'", file=sys.stderr)
        return CONFIGURATION


def as_utf8(word: str) -> str:
    """Decode an argument as UTF-8 that the encoding of the locale could not decode, such as ASCII with LC_ALL=C.

    An argument in another encoding stays as it is: it may be the name of a file.
    """
    try:
        return os.fsencode(word).decode() if not word.isascii() else word
    except UnicodeError:
        return word
