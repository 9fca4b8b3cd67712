"""A console process in a real terminal that records every byte of its output."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator

from tests.tasktui.display import Display

WAIT_SECONDS = 90.0
PROGRAM = [sys.executable, "-P", "-m", "tasktui"]
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"

CSI = rb"\x1b\[(?P<parameters>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
OSC = rb"\x1b\](?P<number>\d*)[^\x07\x1b]*(?:\x07|\x1b\\)"
SEQUENCE = re.compile(rb"|".join([CSI, OSC, rb"\x1b(?P<other>[^\[\]])"]))


def alone() -> dict[str, str]:
    """The environment of the tests without the settings, files and terminal of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "COLUMNS", "LINES"))}
    return kept | {"XDG_CONFIG_HOME": "/nowhere", "TERM": "xterm-256color", "COLORTERM": "truecolor"}


class Terminal:
    """A terminal, and the console in it.

    Args:
        arguments: of the console.
        session: make it a session leader, which gets a signal when its terminal closes.
        size: columns and lines.
        environment: additions to the environment of the tests.
    """

    def __init__(
        self,
        *arguments: str,
        session: bool = False,
        size: tuple[int, int] = (80, 24),
        environment: dict[str, str] | None = None,
    ) -> None:
        self.output = b""
        self.display = Display()
        self.keyboard, inner = pty.openpty()
        self.resize(*size)
        begun = ["setsid", "--ctty", "--wait", *PROGRAM] if session else PROGRAM
        self.process = subprocess.Popen(
            [*begun, *arguments], stdin=inner, stdout=inner, stderr=inner, env=alone() | (environment or {})
        )
        os.close(inner)

    def resize(self, columns: int, lines: int) -> None:
        """Resize the terminal, which signals the session leader."""
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def reads(self, output: bytes) -> None:
        """Read until a text appears in the output."""
        begin, until = len(self.output), time.monotonic() + WAIT_SECONDS
        while output not in self.output[begin:] and time.monotonic() < until:
            if not self._read():
                break
        assert output in self.output[begin:], self.output[-2000:]

    def sees(self, *texts: str, no: str = "") -> None:
        """Read until all texts are displayed, and `no` is not."""
        until = time.monotonic() + WAIT_SECONDS
        while not self._displays(texts, no) and time.monotonic() < until:
            if not self._read():
                break
        assert self._displays(texts, no), f"{texts} is not displayed, or {no!r} is:\n{self.display.text}"

    def goes(self, key: str, title: str) -> None:
        """Open a screen and read until it shows data."""
        self.types(key.encode())
        until = time.monotonic() + WAIT_SECONDS
        while title not in self.display.marked and time.monotonic() < until:
            self._read()
        assert title in self.display.marked, f"{title} is not where one is:\n{self.display.text}"

    def _displays(self, texts: Iterable[str], no: str) -> bool:
        text = self.display.text
        return all(part in text for part in texts) and not (no and no in text)

    def types(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def answers(self, keys: bytes, *texts: str, no: str = "") -> None:
        """Type keys and read until all texts are displayed, and `no` is not."""
        self.types(keys)
        self.sees(*texts, no=no)

    def drains(self, seconds: float = 0.005) -> None:
        """Read for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def ends(self) -> int:
        """Read until the process exits."""
        while self._read():
            pass
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)

    def _read(self, wait: float = WAIT_SECONDS) -> bytes:
        """Wait for output and read it; empty if the other end is closed."""
        read = b""
        while select.select([self.keyboard], [], [], wait)[0]:
            try:
                part = os.read(self.keyboard, 65536)
            except OSError:  # The other end is closed.
                break
            read, wait = read + part, 0.0
        self.output += read
        self.display.feed(read)
        return read


def escapes(output: bytes) -> set[bytes]:
    """Return the kinds of escape sequences in an output, without positions and colours."""
    return set(_kinds(output))


def _kinds(output: bytes) -> Iterator[bytes]:
    for match in SEQUENCE.finditer(output):
        parts = match.groupdict(b"")
        if parts["final"] in (b"m", b"H"):
            yield b"CSI " + parts["final"]
        elif parts["final"]:
            yield b"CSI " + parts["parameters"] + parts["between"] + parts["final"]
        else:
            yield b"ESC " + parts["other"] if parts["other"] else b"OSC " + parts["number"]


def text(output: bytes) -> str:
    """Return an output without its escape sequences."""
    return SEQUENCE.sub(b"", output).decode()
