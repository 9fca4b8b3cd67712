"""Queue retention: how long the finished tasks of one queue are kept, from the setting `retention_queues`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from runner.errors import InvalidDuration
from runner.model.duration import parse_duration
from runner.model.task import State
from runner.text.sanitize import one_line

FINISHED = (State.SUCCEEDED, State.DEAD, State.CANCELLED)

NEVER = "never"


class QueueRetention(NamedTuple):
    """The retention of a queue.

    Args:
        states: the states that it is for.
        age: None keeps the tasks indefinitely.
    """

    queue: str
    states: Sequence[State]
    age: timedelta | None


def parse_queue_retention(text: str) -> QueueRetention:
    """Parse the retention of a queue: audit=365d for all its finished tasks, audit:succeeded=never for one state.

    Raises:
        ValueError: it is not valid.
    """
    name, equals, age = text.strip().rpartition("=")
    queue, colon, state = name.rpartition(":")
    if not colon or state not in FINISHED:
        queue, state = name, ""
    if not equals or not queue:
        raise ValueError(f"{one_line(text)} is no retention of a queue: write QUEUE=AGE, such as audit=365d")
    try:
        kept = None if age.strip() == NEVER else parse_duration(age)
    except InvalidDuration as error:
        raise ValueError(f"queue {one_line(queue)}: {error}") from None
    return QueueRetention(queue, (State(state),) if state else FINISHED, kept)


def require_different_queues(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the retentions of the setting, which are checked.

    Raises:
        ValueError: two are for the same queue and state.
    """
    seen = set[tuple[str, State]]()
    for each in map(parse_queue_retention, texts):
        for state in each.states:
            if (each.queue, state) in seen:
                raise ValueError(f"queue {one_line(each.queue)} has two retentions of {state} tasks")
            seen.add((each.queue, state))
    return texts
