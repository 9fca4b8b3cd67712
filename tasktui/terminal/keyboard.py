"""Keyboard: the way in from the terminal. A byte that is no text is forgiven; a terminal that is gone ends all."""

import codecs
import os
import signal
import time

from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver

PAUSE = 0.1
"""Seconds between two looks at a terminal that is gone, until the console has ended."""


class Keyboard(LinuxDriver):
    """The driver of the terminal, which takes a terminal without an end to be a terminal that hangs up.

    A process that leads no session is not told when its terminal goes away: reading from it returns nothing, or fails,
    at once and for ever. Textual would read on, with all of a processor.
    """

    def run_input_thread(self) -> None:
        """Wait for keys, until the console ends or the terminal does."""
        try:
            super().run_input_thread()
        except OSError:  # EIO: nobody will ever type here again
            hang_up()


class Forgiving(codecs.IncrementalDecoder):
    """Text of what was typed; a byte that is no UTF-8 becomes a replacement sign, and nothing at all is the end."""

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._text = codecs.getincrementaldecoder("utf-8")(errors)
        self._ended = False

    def decode(self, input: bytes, final: bool = False) -> str:  # type: ignore[override] # noqa: A002 - the signature is Python's
        """Decode what was read; a terminal that can be read and gives nothing has gone away."""
        if not input and not final:
            if not self._ended:
                self._ended = True
                hang_up()
            time.sleep(PAUSE)
        return self._text.decode(input, final)


def hang_up() -> None:
    """Do what the system does for those who lead a session when their terminal goes away."""
    os.kill(os.getpid(), signal.SIGHUP)


def forgive_bad_bytes() -> None:
    """Let a byte on standard input that is no UTF-8 do no harm: it would end the thread that reads."""
    # The driver has no other door to its decoder; without this name it has been mended, and needs nothing.
    if hasattr(linux_driver, "getincrementaldecoder"):
        linux_driver.getincrementaldecoder = lambda _encoding: Forgiving
