"""What is said when something unforeseen ends the console."""

import traceback

from runner.people.terminal import clean

MOST_FRAMES = 12


def crash_text(error: BaseException | None) -> str:
    """Where it happened, and no value of any variable."""
    frames = traceback.extract_tb(error.__traceback__)[-MOST_FRAMES:] if error else []
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    kind = type(error).__name__
    return clean("\n".join([f"tasktui ended because of something unforeseen: {kind}", *places]), newlines=True)
