"""Interruption: the first signal ends the demo in order, a second one at once."""

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Listens to the signals that ask a process to end, as long as its block lasts.

    Args:
        told: called once, at the first of them.
    """

    def __init__(self, told: Callable[[], None]) -> None:
        self._told = told
        self._heard: signal.Signals | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._hear, number)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listen_no_more()

    @property
    def exit_code(self) -> int:
        """What shells expect of a process that ended so: 0 without a signal, 130 after Ctrl-C."""
        return 128 + self._heard if self._heard else 0

    def _hear(self, number: signal.Signals) -> None:
        self._heard = number
        self._listen_no_more()  # the next one does what it does to any process
        self._told()

    def _listen_no_more(self) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
