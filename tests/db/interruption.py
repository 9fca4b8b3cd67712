"""Exceptions of signal handlers, at any point of a call."""

import sys
from types import FrameType


class Interruption:
    """Raises KeyboardInterrupt after one of the calls of a thread, as a signal does.

    Args:
        files: the files of the code that is interrupted: after its calls of C functions, and at the start of its own.
        count: the number of calls before.
    """

    def __init__(self, files: set[str], count: int) -> None:
        self._files, self._left = files, count

    def __enter__(self) -> None:
        sys.setprofile(self._profile)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in self._files:
            self._left -= 1
            if self._left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt
