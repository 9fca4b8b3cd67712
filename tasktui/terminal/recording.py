"""Records the screen of a session as an asciicast, the format of asciinema, and plays such files.

A recording has only text, colours and positions: no keys, and no other escape sequence. So it is safe to play, also one
of another origin, and typed words that the screen does not show, such as those of an editor, are not in it.
"""

import json
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from runner.errors import InvalidInput
from runner.text.sanitize import clean

VERSION = 2
"""The version of the format."""

LONGEST_WAIT = 2.0
"""Seconds of a pause in a recording that a replay keeps."""

FASTEST = 64.0

UNREADABLE = (TypeError, ValueError, OverflowError, RecursionError)
"""Errors of a line that no recorder has written."""

SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\)|[^\[])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", re.S
)
"""An escape sequence or a control character other than tab and newline."""

HARMLESS = re.compile(r"\x1b\[(?:[0-9;:]*[mHJKABCDG]|\?(?:25|2026)[hl])")
"""Colours, positions, erasure, the cursor, and synchronized output."""

BEGIN, END = "\x1b[?1049h\x1b[?25l\x1b[2J\x1b[H", "\x1b[0m\x1b[?2026l\x1b[?25h\x1b[?1049l"


class CastEvent(NamedTuple):
    """An event of a recording.

    Args:
        at: seconds since its begin.
        kind: `o` for output, `r` for a new size.
        text: harmless output, or the size as `120x40`.
    """

    at: float
    kind: str
    text: str


def harmless(text: str) -> str:
    """The text, colours and positions of an output, without any other escape sequence."""
    return SEQUENCE.sub(lambda match: match.group() if HARMLESS.fullmatch(match.group()) else "", text)


class Recorder:
    """Writes the output of the console to a file.

    Args:
        path: the file, which must not exist; only its owner may read it.

    Raises:
        InvalidInput: the file exists, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InvalidInput(why=f"{path} exists; a recording replaces no file. Name a new one") from None
        except OSError as error:
            raise InvalidInput(
                why=f"cannot write {path}: {error.strerror}. Name a file in a folder that you may write"
            ) from error
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")
        self._begin, self._size = time.monotonic(), shutil.get_terminal_size()
        self.failure = ""
        header = {
            "version": VERSION,
            "width": self._size.columns,
            "height": self._size.lines,
            "timestamp": int(time.time()),
        }
        self._write(header | {"env": {"TERM": os.environ.get("TERM", "")}})
        self.output("\x1b[2J\x1b[H")

    def output(self, text: str) -> None:
        """Record an output, and before it a new size of the terminal."""
        at, size = round(time.monotonic() - self._begin, 6), shutil.get_terminal_size()
        if size != self._size:
            self._size = size
            self._write([at, "r", f"{size.columns}x{size.lines}"])
        if text := harmless(text):
            self._write([at, "o", text])

    def close(self) -> None:
        """Complete the file, and report its early end."""
        with suppress(OSError):
            self._file.close()
        if self.failure:
            print(f"tasktui: {clean(self.failure)}", file=sys.stderr)

    def _write(self, value: object) -> None:
        if not self.failure:
            try:
                self._file.write(f"{json.dumps(value)}\n")
                self._file.flush()
            except (OSError, ValueError) as error:  # The disk is full: the console goes on.
                self.failure = f"the recording ended early: {error}"


def events(path: Path) -> tuple[tuple[int, int], Iterator[CastEvent]]:
    """Read a recording.

    Returns:
        Columns and lines of the terminal, and the events in order. A recording may end within an event.

    Raises:
        InvalidInput: the file is unreadable, or not a recording.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            header = _parsed(file.readline())
        size = (int(header["width"]), int(header["height"])) if header["version"] == VERSION else (0, 0)
    except OSError as error:
        raise InvalidInput(why=f"cannot read {path}: {error.strerror}") from error
    except (KeyError, *UNREADABLE):
        size = (0, 0)
    if min(size) < 1:
        why = f"{path} is no recording: it does not begin as an asciicast of version {VERSION}"
        raise InvalidInput(why=f"{why}. tasktui --record FILE makes one")
    return size, _events(path)


def _events(path: Path) -> Iterator[CastEvent]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in islice(file, 1, None):
            with suppress(*UNREADABLE):
                at, kind, value = _parsed(text)
                yield CastEvent(float(at), str(kind), harmless(str(value)))


def _parsed(text: str) -> Any:
    return json.loads(text)


def replay(path: Path) -> int:
    """Play a recording in the terminal: space pauses, + and - change the speed, q quits.

    Raises:
        InvalidInput: the file is not a recording, or the terminal is too small for it.
    """
    size, played = events(path)
    here = shutil.get_terminal_size()
    if here.columns < size[0] or here.lines < size[1]:
        needed = f"{size[0]}x{size[1]}, and this terminal has {here.columns}x{here.lines}"
        raise InvalidInput(why=f"the recording needs {needed}; enlarge it")
    import termios  # Windows has neither
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        tty.setcbreak(keys)
        sys.stdout.write(BEGIN)
        play(played, _print, lambda seconds: _key(keys, seconds))
    finally:
        sys.stdout.write(END)
        sys.stdout.flush()
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
    return 0


def play(played: Iterable[CastEvent], show: Callable[[str], object], wait: Callable[[float | None], str]) -> None:
    """Show the events of a recording, with pauses of at most LONGEST_WAIT.

    Args:
        show: shows an output.
        wait: waits for a key for a time in seconds, or for any time; returns the key, or an empty text.
    """
    speed, last = 1.0, 0.0
    for event in played:
        until = time.monotonic() + min(max(event.at - last, 0.0), LONGEST_WAIT) / speed
        last = event.at
        while (remaining := until - time.monotonic()) > 0 and (key := wait(remaining)):
            if key == " ":
                paused = time.monotonic()
                key = wait(None)
                until += time.monotonic() - paused
            if key == "q":
                return
            speed = {"+": min(speed * 2, FASTEST), "-": max(speed / 2, 1 / FASTEST)}.get(key, speed)
        if event.kind == "o":
            show(event.text)
    show("\x1b[0m\x1b[1;1H\x1b[7m end of the recording, q closes \x1b[0m")
    while wait(None) != "q":
        pass


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _key(keys: int, seconds: float | None) -> str:
    if not select.select([keys], [], [], seconds)[0]:
        return ""
    return os.read(keys, 1).decode("ascii", "replace") or "q"  # q at the end of input


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
