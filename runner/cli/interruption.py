"""Signal handling: the first signal stops gracefully, the second one terminates the process."""

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Handles SIGINT and SIGTERM within its block.

    Args:
        callback: called once, at the first signal.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._signal: signal.Signals | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for signal_number in SIGNALS:
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
        for signal_number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(signal_number)
