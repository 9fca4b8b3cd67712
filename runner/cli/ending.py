"""How a command ends: its exit code, and one line on standard error instead of a traceback."""

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import TextIO

from cyclopts import CycloptsError

from runner.errors import RunnerError
from runner.people.redaction import masked
from runner.people.terminal import clean


class Exit(IntEnum):
    """What a command ends with. The errors in runner.errors know theirs."""

    OK = 0
    ERROR = 1
    BAD_INPUT = 2
    CONFIGURATION = 3
    DATABASE = 4
    NOT_FOUND = 5
    MOVED_ON = 6
    PARTLY = 7
    FAILED = 8
    UNFINISHED = 9
    INTERRUPTED = 130
    UNHEARD = 141


MEANINGS = {
    Exit.OK: "done",
    Exit.ERROR: "something failed, or nobody foresaw it",
    Exit.BAD_INPUT: "the input is not valid; nothing was done",
    Exit.CONFIGURATION: "the settings, handlers or arguments for the set-up are not valid",
    Exit.DATABASE: "the database cannot be reached, refuses, or has other tables than needed",
    Exit.NOT_FOUND: "there is no such task, queue or handler",
    Exit.MOVED_ON: "refused, because a task is not as you saw it any more, or does not allow it",
    Exit.PARTLY: "partly done; what was not is listed on standard error",
    Exit.FAILED: "the task that was waited for failed for good, or was terminated",
    Exit.UNFINISHED: "the task that was waited for has not ended in time; it goes on",
    Exit.INTERRUPTED: "interrupted",
    Exit.UNHEARD: "nobody reads the output any more",
}
"""Every exit code in words, for the help and the documentation."""

_LONGEST_MESSAGE = 2_000


def prepare_streams() -> None:
    """Make sure that standard streams exist and can take any character.

    A closed one is opened on the null device first of all: its number would else go to the next file that is opened,
    which may be the database.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a number, and for good
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a number, and for good
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def ended(command: Callable[[], int]) -> int:
    """Run a command and turn however it ends into an exit code.

    Args:
        command: returns its exit code, or raises.

    Returns:
        The exit code; whatever went wrong has been said on standard error.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Rich has turned its stream away already
            return Exit.UNHEARD
        raise
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    match error:
        case BrokenPipeError():
            _turn_away(sys.stdout)
            return Exit.UNHEARD
        case RunnerError():
            return _said(str(error), error.exit_code)
        case CycloptsError():
            return _said(f"{error} See runner --help.", Exit.BAD_INPUT)
        case OSError():
            _turn_away(sys.stdout)
            return _said(_reason(error), Exit.ERROR)
    return _unforeseen(error)


def complain(text: str) -> None:
    """Say something on standard error, safe to print and without secrets; when nobody listens, nothing can be done."""
    try:
        print(clean(masked(text), _LONGEST_MESSAGE, newlines=True), file=sys.stderr, flush=True)
    except OSError:
        _turn_away(sys.stderr)


def _said(text: str, code: int) -> int:
    complain(f"runner: {text}")
    return code


def _reason(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


def _unforeseen(error: Exception) -> int:
    # Nothing that a user does should lead here. Python's own switch for developers shows where it happened.
    if sys.flags.dev_mode:
        complain("".join(traceback.format_exception(error)))
    kind = type(error).__name__
    return _said(f"unforeseen {kind}: {error}. Set PYTHONDEVMODE=1 to see where it comes from.", Exit.ERROR)


def _turn_away(stream: TextIO) -> None:
    """Point a stream that nobody reads at the null device, or Python would complain about it when it ends."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # it is no file but something of a test's
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
