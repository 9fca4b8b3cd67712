"""A running bulk operation, which every screen shows and the operator can stop."""

from dataclasses import dataclass

from runner.operations.results import Result
from runner.text import formatting


@dataclass(slots=True)
class Job:
    """A running operation.

    Args:
        what: name of the operation.
        total: number of tasks to change; None if the count stopped at its cap.
        began: start in seconds on the clock of `now`.
        done: number of tasks changed so far.
        stopping: no further chunk starts.
        note: the present stage, or the reason why it ended early; sanitized.
    """

    what: str
    total: int | None
    began: float
    done: int = 0
    stopping: bool = False
    note: str = ""

    def update(self, result: Result) -> None:
        """Update the progress."""
        self.done = len(result.changed)

    def stop(self) -> None:
        """Stop after the current chunk."""
        self.stopping = True

    def label(self, now: float) -> str:
        """The progress, and the key that stops the operation."""
        end = "stopping" if self.stopping else "ctrl+x stops it"
        note = f"; {self.note}" if self.note else ""
        return f"{self.what}: {formatting.progress(self.done, self.total, now - self.began)}{note}; {end}"
