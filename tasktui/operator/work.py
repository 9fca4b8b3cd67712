"""Work: something under way that takes long, which is shown on every screen and can be stopped."""

from dataclasses import dataclass

from runner.people import cells
from runner.store.intervene import Result


@dataclass(slots=True)
class Work:
    """Something under way.

    Args:
        what: is done, in a word.
        total: tasks that will be changed; None when there are more than were counted.
        began: seconds on the clock that `told` is given.
        done: tasks that were changed so far.
        stopping: no other chunk is begun.
    """

    what: str
    total: int | None
    began: float
    done: int = 0
    stopping: bool = False

    def went_on(self, result: Result) -> None:
        """Take in the result so far."""
        self.done = len(result.changed)

    def stop(self) -> None:
        """Let what is under way end, and begin nothing more."""
        self.stopping = True

    def told(self, now: float) -> str:
        """How far it has come, and what one can do about it."""
        end = "stopping" if self.stopping else "ctrl+x stops it"
        return f"{self.what}: {cells.progress(self.done, self.total, now - self.began)}; {end}"
