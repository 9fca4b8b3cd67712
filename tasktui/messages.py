"""What workers tell screens: frozen snapshots and outcomes; only the handlers of messages touch widgets."""

from typing import TYPE_CHECKING

from textual.message import Message

from runner.errors import RunnerError
from runner.people.filters import Filter

if TYPE_CHECKING:  # `Story` comes with all that is told of a task, which the first screen does without
    from collections.abc import Sequence

    from runner.store.intervene import Result
    from runner.store.observe import Count, Story, TaskRow


class Looked(Message):
    """A look at the database has ended well.

    Args:
        snapshot: what was seen; frozen.
        asked: what had been asked for; an answer to another question is not shown.
        took: seconds.
    """

    def __init__(self, snapshot: object, asked: object, took: float) -> None:
        self.snapshot = snapshot
        self.asked = asked
        self.took = took
        super().__init__()


class Failed(Message):
    """A look at the database has failed."""

    def __init__(self, error: RunnerError) -> None:
        self.error = error
        super().__init__()


class Acted(Message):
    """Something was changed, or was tried to.

    Args:
        what: was asked for, in a word.
        result: what was done, task by task.
    """

    def __init__(self, what: str, result: "Result") -> None:
        self.what = what
        self.result = result
        super().__init__()


class Matched(Message):
    """What a filter lets through at this moment.

    Args:
        wanted: the filter, bounded by the newest of them.
        count: how many.
        rows: the tasks; None when there are too many to name each.
    """

    def __init__(self, wanted: Filter, count: "Count", rows: "Sequence[TaskRow] | None") -> None:
        self.wanted = wanted
        self.count = count
        self.rows = rows
        super().__init__()


class Revealed(Message):
    """It has been written down that the secrets of a task are shown."""

    def __init__(self, task_id: int) -> None:
        self.task_id = task_id
        super().__init__()


class MovedOn(Message):
    """A task is not as it was seen any more.

    Args:
        story: of the task as it is now.
    """

    def __init__(self, story: "Story") -> None:
        self.story = story
        super().__init__()


class Told(Message):
    """A sentence for the operator: an outcome, or why there is none.

    Args:
        text: safe or not; it is made safe where it is shown.
        bad: it is about something that did not go well.
    """

    def __init__(self, text: str, *, bad: bool = False) -> None:
        self.text = text
        self.bad = bad
        super().__init__()
