"""The status of a task, as its application reads it."""

from dataclasses import dataclass
from datetime import datetime

from runner.model.task import State
from runner.text.progress import TaskProgress


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of a task.

    Args:
        attempt: number of the current or last attempt; 0 before the first.
        error: the last error; None without one.
        run_at: when it is due, or was due.
        submitted_at: when it was submitted.
        claimed_at: when a runner claimed it for its current or last attempt; None before the first.
        finished_at: when it succeeded, died or was cancelled; None until then.
        cancel_requested: True if a running task has been asked to stop.
        waits_for: the signal for which it waits, or the name of its sleep or its call; None if it has none.
        progress: the progress of the current or last attempt; None if its handler reported none.
    """

    id: int
    handler: str
    state: State
    attempt: int
    error: str | None
    run_at: datetime | None
    submitted_at: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    waits_for: str | None
    progress: TaskProgress | None

    @property
    def finished(self) -> bool:
        """True if the task has succeeded, is dead or was cancelled."""
        return self.state.final
