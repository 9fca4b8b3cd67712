"""Exit codes, errors as one line on standard error instead of a traceback, and signals: the second one ends it."""

import errno
import logging
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from types import TracebackType
from typing import Self, TextIO

from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

from runner.cli.capture import CAPTURE
from runner.errors import RunnerError
from runner.filter.fields import FIELDS
from runner.resource_limits import reached_limit
from runner.stop_signals import stop_signals
from runner.text.redact import mask
from runner.text.sanitize import clean

PROGRAM = "tasktui" if sys.argv[0].endswith("tasktui") else "runner"
"""The name under which the user started this program."""


class Exit(IntEnum):
    """The exit codes of a command. The errors in runner.errors carry theirs."""

    OK = 0
    ERROR = 1
    BAD_INPUT = 2
    CONFIGURATION = 3
    DATABASE = 4
    NOT_FOUND = 5
    CONFLICT = 6
    PARTIAL = 7
    FAILED = 8
    UNFINISHED = 9
    DEAD = 10
    FAILING = 11
    LATE = 12
    LOCKED = 13
    REFUSED = 14
    FIRING = 15
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS = {
    Exit.OK: "success; also if no task matches the filter",
    Exit.ERROR: "unexpected error, or a check found a problem",
    Exit.BAD_INPUT: "invalid input, or not confirmed; nothing was changed",
    Exit.CONFIGURATION: "invalid settings, handlers or connection arguments",
    Exit.DATABASE: "database unreachable, request rejected, or tables of another release",
    Exit.NOT_FOUND: "no such task, queue, handler or runner",
    Exit.CONFLICT: "conflict: the task has changed, or its state does not allow this",
    Exit.PARTIAL: "partly done; standard error lists the rest",
    Exit.FAILED: "the awaited task failed for good or was terminated",
    Exit.UNFINISHED: "the awaited task did not finish in time; it continues",
    Exit.DEAD: "a check found dead tasks, more than --max-dead",
    Exit.FAILING: "a check found a handler whose attempts fail, more than --max-failing",
    Exit.LATE: "a check found a queue whose tasks wait, longer than --max-late",
    Exit.LOCKED: "another transaction locks a row; in a check, for longer than --max-locked",
    Exit.REFUSED: "a check found rows that the database refuses to change, more than --max-refused",
    Exit.FIRING: "an alert fires that is not silenced",
    Exit.INTERRUPTED: "interrupted",
    Exit.BROKEN_PIPE: "the reader of the output has gone away",
}
"""The meaning of each exit code, for the help and the documentation."""

_LONGEST_MESSAGE = 2_000

PATIENCE = 1.0
"""Seconds that the end of a command waits for a reader that reads nothing."""


def prepare_streams() -> None:
    """Make sure that the standard streams exist and accept any character.

    A closed stream is opened on the null device before anything else. Its descriptor would otherwise go to the next
    file that is opened, which may be the database.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open until exit
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open until exit
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")
    # psycopg warns of each pipeline that ends by an error, which the command prints.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())


def raise_interrupts() -> None:
    """Let ctrl-c raise KeyboardInterrupt, after the imports, during which it ends the process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write; without a file name, probably to standard output."""


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command and turn any error into an exit code.

    Args:
        command: returns its exit code, or raises.

    Returns:
        The exit code; errors are printed on standard error.
    """
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Rich has already redirected its stream
            return Exit.BROKEN_PIPE
        raise
    except BaseException as error:  # a handler may cancel the main task of a runner
        return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    """Print an error, or each error of a group; return the exit code of the first that has one of its own."""
    if isinstance(error, BaseExceptionGroup):
        codes = [_exit_code(each) for each in error.exceptions]
        return next((code for code in codes if code != Exit.ERROR), Exit.ERROR)
    return _code_of_single(error)


def _code_of_single(error: BaseException) -> int:
    if not isinstance(error, RunnerError) and (limit := reached_limit(error)):
        return _print_error(f"{limit}.", Exit.ERROR)
    match error:
        case BrokenPipeError():
            _discard(sys.stdout)
            return Exit.BROKEN_PIPE
        case RunnerError():
            return _print_error(str(error), error.exit_code)
        case CycloptsError():
            command = " ".join([PROGRAM, *(error.command_chain or ())])
            text = _unused(error) or f"{error} {_option_hint(error)}"
            return _print_error(f"{text}See {command} --help.", Exit.BAD_INPUT)
        case OSError():
            _discard(sys.stdout)
            return _print_error(_output_message(error), Exit.ERROR)
    return _print_unexpected(error)


def _unused(error: CycloptsError) -> str:
    """Name the first argument that a command has no use for; empty for another error."""
    if not isinstance(error, UnusedCliTokensError) or not error.unused_tokens:
        return ""
    is_payload = "--payload" in (error.root_input_tokens or ())
    hint = "Write the payload without --payload. " if is_payload else ""
    if "work" in (error.command_chain or ()):
        hint = f"The module of the handlers follows -H: runner work -H {error.unused_tokens[0]}. "
    return f"Unexpected argument {error.unused_tokens[0]!r}. {hint}"


def _option_hint(error: CycloptsError) -> str:
    """The way to type an option of Celery, or a negated term of a filter, that the command does not know."""
    if not isinstance(error, UnknownOptionError):
        return ""
    if "-A" in (error.token.keyword, error.token.value):
        return "The module of the handlers follows -H: runner work -H shop.tasks. "
    matches = (re.fullmatch(r"-((\w+)[.\w]*[:=<>~!].*)", token) for token in error.root_input_tokens or ())
    terms = [match[1] for match in matches if match and match[2] in FIELDS]
    return f"To negate a term of a filter, type '!{terms[0]}'. " if terms else ""


def print_stderr(text: str) -> None:
    """Print to standard error, sanitized and redacted, unless the stream is gone or its reader reads nothing."""
    if (capture := CAPTURE.get()) is not None:
        capture.messages.append(clean(mask(text), _LONGEST_MESSAGE, newlines=True))
        return
    try:
        if accepts(sys.stderr):
            print(clean(mask(text), _LONGEST_MESSAGE, newlines=True), file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def accepts(stream: TextIO) -> bool:
    """True unless the file of a stream accepts nothing for PATIENCE: its reader reads nothing."""
    try:
        return bool(select.select([], [stream], [], PATIENCE)[1])
    except (OSError, ValueError):  # a stream without a file
        return True


def release_stdout() -> str:
    """Write the rest of standard output, or discard it if its file does not accept it.

    Returns:
        The reason why the rest was discarded; empty if it was not.
    """
    if not accepts(sys.stdout):
        why = f"its reader accepted nothing for {PATIENCE:.0f} s"
    else:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            why = "its reader has gone away"
        except OSError as error:
            why = _os_message(error)
        else:
            return ""
    _discard(sys.stdout)
    return why


def _print_error(text: str, code: int) -> int:
    print_stderr(f"{PROGRAM}: {text}")
    return code


def _os_message(error: OSError) -> str:
    if not error.filename:
        return error.strerror or str(error)
    # The path is not before a colon: "/etc/passwd: File exists" reads like a secret, and would be masked.
    return f"{error.strerror} (errno {error.errno}): {error.filename}; name another file"


def _output_message(error: OSError) -> str:
    if error.filename is not None or error.errno not in OUTPUT_ERRORS:
        return _os_message(error)
    rest = "The output is incomplete, and the command may have been executed."
    return f"standard output: {error.strerror} (errno {error.errno}). {rest}"


def _print_unexpected(error: BaseException) -> int:
    # No user action should lead here. Python's developer mode shows the traceback.
    if sys.flags.dev_mode:
        print_stderr("".join(traceback.format_exception(error)))
    text = ": ".join(filter(None, (type(error).__name__, str(error).removesuffix("."))))
    return _print_error(f"unexpected {text}. Set PYTHONDEVMODE=1 for the traceback.", Exit.ERROR)


def _discard(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, or Python would report it at exit."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # a test's stream, without a file
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class Interruption:
    """Handles the stop signals within its block.

    Args:
        callback: called once, at the first signal.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._signals = stop_signals()
        self._signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        from asyncio import get_running_loop  # not needed for help

        loop = get_running_loop()
        for signal_number in self._signals:
            loop.add_signal_handler(signal_number, self._handle, signal_number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove_handlers()

    @property
    def exit_code(self) -> int:
        """The exit code that shells expect: 0 without a signal, 130 after ctrl-c."""
        return 128 + self._signal if self._signal else 0

    def _handle(self, signal_number: signal.Signals) -> None:
        self._signal = signal_number
        self._remove_handlers()  # the next signal has its default effect
        self._callback()

    def _remove_handlers(self) -> None:
        from asyncio import get_running_loop

        for signal_number in self._signals:
            get_running_loop().remove_signal_handler(signal_number)
