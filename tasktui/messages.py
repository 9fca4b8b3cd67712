"""Messages from workers to screens: frozen snapshots and results. Only message handlers touch widgets."""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

from textual.message import Message

from runner.errors import RunnerError

if TYPE_CHECKING:  # `TaskDetail` imports modules that the first screen does not need.
    from collections.abc import Mapping, Sequence

    from runner.filter.parse import Filter
    from runner.operations.results import Result
    from runner.queries.counting import Count
    from runner.queries.task.detail import TaskDetail
    from runner.queries.task_list.row import TaskRow


@dataclass(eq=False, repr=False)
class SnapshotRead(Message):
    """A read of the database succeeded.

    Args:
        snapshot: the frozen result.
        request: the screen's request when the read began; the screen drops the snapshot if its request has changed.
    """

    snapshot: object
    request: object
    seconds: float


@dataclass(eq=False, repr=False)
class ReadFailed(Message):
    """A read of the database failed."""

    error: RunnerError


@dataclass(eq=False, repr=False)
class OperationDone(Message):
    """An operation finished, with or without changes.

    Args:
        label: name of the operation, as shown to the operator.
        result: outcome for each task.
    """

    label: str
    result: "Result"


@dataclass(eq=False, repr=False)
class MatchesFound(Message):
    """The tasks that match a filter at this moment.

    Args:
        filters: the filter by the name of the database, bounded by the newest match.
        rows: the tasks; None if there are too many to list.
        silent: the shards without an answer, whose tasks are not among them.
    """

    filters: "Mapping[str, Filter]"
    count: "Count"
    rows: "Sequence[TaskRow] | None"
    silent: "Sequence[str]" = ()


@dataclass(eq=False, repr=False)
class RevealRecorded(Message):
    """The audit has recorded that the operator reveals the secrets of a task.

    Args:
        detail: the task with its decrypted values.
        reasons: why values stay encrypted.
    """

    detail: "TaskDetail"
    reasons: "Sequence[str]" = ()


@dataclass(eq=False, repr=False)
class TaskChanged(Message):
    """A task has changed since the operator saw it."""

    detail: "TaskDetail"


@dataclass(eq=False, repr=False)
class PayloadRefused(Message):
    """The stored signature of a handler refuses a payload."""

    why: str
    payload: str


class Tone(Enum):
    """The sign and the colour of a notice: all was done, only a part of it, or nothing because of an error."""

    DONE = ("✓", "succeeded")
    PARTIAL = ("!", "retrying")
    ERROR = ("✗", "dead")

    @property
    def sign(self) -> str:
        """The sign before the text."""
        return self.value[0]

    @property
    def role(self) -> str:
        """The role of the sign."""
        return self.value[1]

    @classmethod
    def of(cls, *, changed: int, unchanged: int) -> Self:
        """The tone of a result.

        Args:
            changed: number of things that were changed.
            unchanged: number of things that the operation left as they are.
        """
        if not unchanged:
            return cls.DONE
        return cls.PARTIAL if changed else cls.ERROR


class Notice(Message):
    """A notice for the operator.

    Args:
        text: any text; the widget that shows it sanitizes it.
        bad: True for an error.
        tone: its tone, if it is not just an error or not.
        database: the name of the database that it is about; empty for the one in front.
    """

    database = ""

    def __init__(self, text: str, *, bad: bool = False, tone: Tone | None = None) -> None:
        self.text = text
        self.tone = tone or (Tone.ERROR if bad else Tone.DONE)
        super().__init__()
