"""Keyboard input: replaces invalid bytes, ends with the terminal, and keeps keys for the dialog that they belong to."""

import codecs
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter

from tasktui.terminal.typed_ahead import KeyBuffer

if TYPE_CHECKING:
    from tasktui.terminal.recording import Recorder

ATTRIBUTES = ("bold", "dim", "italic", "underline", "reverse", "strike")
"""Attributes that distinguish text without colours."""


class NoColor(LineFilter):
    """Removes colours from lines. Textual's own filter would paint grey on black."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the signature is Textual's
        """Draw with the terminal's own colours."""
        return [Segment(text, style and plain(style), control) for text, style, control in segments]


def plain(style: Style) -> Style:
    """A style without colours; click actions stay."""
    return Style(meta=style.meta, **{name: getattr(style, name) for name in ATTRIBUTES})


PAUSE = 0.1
"""Seconds between two reads of a closed terminal, until the console has ended."""


class Keyboard(LinuxDriver):
    """A terminal driver that treats end of input as a hang-up.

    A process that leads no session receives no signal when its terminal is closed: reads return nothing, or fail,
    immediately and repeatedly. Textual would keep reading with a full CPU core.
    """

    recorder: "Recorder | None" = None

    def write(self, data: str) -> None:
        """Write to the terminal, and to the recording if there is one."""
        super().write(data)
        if self.recorder is not None:
            self.recorder.output(data)

    def run_input_thread(self) -> None:
        """Read keys until the console ends or the terminal is closed."""
        try:
            super().run_input_thread()
        except OSError:  # EIO: the terminal is closed
            hang_up()


def recorded(recorder: "Recorder") -> type[Keyboard]:
    """The driver of a console whose output a recorder writes."""
    return type("RecordedKeyboard", (Keyboard,), {"recorder": recorder})


class ReplacingDecoder(codecs.IncrementalDecoder):
    """A UTF-8 decoder that replaces invalid bytes and treats empty input as a hang-up."""

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._has_ended = False

    def decode(self, input: bytes, final: bool = False) -> str:  # type: ignore[override] # noqa: A002 - the signature is Python's
        """Decode input; empty input from a readable terminal means that it is closed."""
        if not input and not final:
            if not self._has_ended:
                self._has_ended = True
                hang_up()
            time.sleep(PAUSE)
        return self._decoder.decode(input, final)


def hang_up() -> None:
    """Send SIGHUP to this process, as the system does for session leaders."""
    os.kill(os.getpid(), signal.SIGHUP)


def forgive_bad_bytes() -> None:
    """Make invalid bytes on standard input harmless; they would end the thread that reads."""
    # The driver offers no other access to its decoder. Without this name it has been fixed and needs no patch.
    if hasattr(linux_driver, "getincrementaldecoder"):
        linux_driver.getincrementaldecoder = lambda _encoding: ReplacingDecoder


def key_buffer(app: App[Any]) -> KeyBuffer:
    """The application of a screen, with its type."""
    assert isinstance(app, KeyBuffer)  # noqa: S101 - all our screens belong to this application
    return app
