"""The message of a crash."""

import traceback

from runner.text.sanitize import clean

MAX_FRAMES = 12


def crash_text(error: BaseException | None) -> str:
    """The error type and the stack, without values of variables."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:] if error else []
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    kind = type(error).__name__
    return clean("\n".join([f"tasktui crashed with an unexpected error: {kind}", *lines]), newlines=True)
