"""What a submitted task may hold: the checks of the write gate, before anything is written."""

import json
import math
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Any, get_args

from runner.bulk import Bulk
from runner.columns import EARLIEST, LATEST, bounded
from runner.errors import InvalidTask
from runner.policy.retry import parse_plan
from runner.storable import require_storable, require_text
from runner.task import BUCKETS, After, NewTask, OnFailure, Priority, Scope, Unique

LONGEST_NAME = 200
LONGEST_KEY = 400
"""Characters: with the handler's name it must fit into an index of PostgreSQL, which takes 2,700 bytes."""
LONGEST_SECONDS = 1e9
MOST_PARENTS = 100_000
RULES = get_args(OnFailure)

NUMBERS = {
    "priority": (range(Priority.LOWEST, Priority.HIGHEST + 1), "priorities go from 1 to 9, 9 goes first"),
    "max_attempts": (range(1, 2**31), "a task is tried at least once, and that often as a whole number says"),
    "bucket": (range(BUCKETS), f"buckets go from 0 to {BUCKETS - 1}"),
}
"""Whole numbers: what they may be, and what to say of others."""

NOTHING_SAID = NewTask("handler")[2:]
"""What follows handler and payload in a task that leaves everything to the defaults, as most do."""


def check(task: NewTask) -> None:
    """Refuse a task that a database could not hold, or that no runner could ever run.

    Args:
        task: as the producer made it.

    Raises:
        InvalidTask: naming the value and what would do.
        InvalidRetryPlan: when the retry plan is not one.
    """
    _name("handler", task.handler)
    check_payload(task.payload)
    if task[2:] != NOTHING_SAID:
        _check_options(task)


def check_each(tasks: Iterable[NewTask]) -> None:
    """Refuse tasks, as `check` does, at the first that will not do."""
    if isinstance(tasks, Bulk):
        check(tasks.like)
        for payload in tasks.payloads:
            check_payload(payload)
    else:
        for task in tasks:
            check(task)


def _check_options(task: NewTask) -> None:
    if task.queue is not None:
        require_text("queue", task.queue)
        _name("queue", task.queue)
    if task.key is not None:
        require_storable("key", task.key, LONGEST_KEY)
    _texts(task)
    if task.tags is not None and not isinstance(_read("tags", task.tags), list):
        raise InvalidTask(field="tags", value=task.tags[:80], why="it is no JSON array")
    _numbers(task)
    if task.retry is not None:
        parse_plan(task.retry)
    if task.unique is not None:
        _unique(task.unique)
    if task.after is not None:
        _after(task, task.after)
    _times(task)


def _numbers(task: NewTask) -> None:
    for field, (allowed, why) in NUMBERS.items():
        value = getattr(task, field)
        if value is not None and not (isinstance(value, int) and value in allowed):
            raise InvalidTask(field=field, value=value, why=why)


def check_payload(payload: str) -> None:
    """Refuse a payload with text that PostgreSQL cannot hold, written raw or as an escape.

    Raises:
        InvalidTask: when it holds NUL, half of a surrogate pair, or a number that JSON does not know.
    """
    if "\0" in payload or not payload.isascii():
        require_storable("payload", payload, limit=2**31)
    # Only with one of these in it can a text be JSON to Python and none to a database. A pattern would take longer.
    if "\\u" in payload or "NaN" in payload or "Infinity" in payload:
        _read("payload", payload)


def _read(field: str, text: str) -> Any:
    """Read JSON as strictly as the databases do."""

    def refuse(why: str) -> Any:
        raise InvalidTask(field=field, value=text[:80], why=why)

    try:
        # Numbers stay text: Python refuses to read very long ones, which both databases keep.
        value = json.loads(text, parse_int=str, parse_constant=lambda name: refuse(f"JSON knows no {name}"))
        _check_inside(field, value)
    except ValueError as error:
        refuse(f"it is no JSON: {error}")
    except RecursionError:
        refuse("it is nested too deeply")
    return value


def _check_inside(field: str, value: Any) -> None:
    match value:
        case str():
            require_storable(field, value, limit=2**31)
        case list():
            for item in value:
                _check_inside(field, item)
        case dict():
            for name, item in value.items():
                _check_inside(field, name)
                _check_inside(field, item)


@lru_cache(maxsize=1024)
def _name(field: str, text: str) -> None:
    if not 1 <= len(text) <= LONGEST_NAME:
        raise InvalidTask(field=field, value=text[:80], why=f"it must have 1 to {LONGEST_NAME} characters")
    if not (text.isascii() and text.isprintable()):
        require_storable(field, text)
        if not text.isprintable():
            raise InvalidTask(field=field, value=text[:80], why="it holds characters that cannot be shown")


def _unique(unique: Unique) -> None:
    if not unique.key:
        raise InvalidTask(field="unique_key", value="", why="it is empty, which is most likely a mistake")
    require_storable("unique_key", unique.key, LONGEST_KEY)
    if unique.scope is Scope.FOR_A_TIME and not 0 < (unique.seconds or 0) < LONGEST_SECONDS:
        why = f"it must be a number of seconds, more than 0 and up to {LONGEST_SECONDS:.0e}"
        raise InvalidTask(field="unique", value=unique.seconds, why=why)


def _texts(task: NewTask) -> None:
    for field in ("tags", "trace", "submitted_by"):
        text = getattr(task, field)
        if text is not None:
            require_storable(field, text)


def _after(task: NewTask, after: tuple[After, ...]) -> None:
    if not after:
        raise InvalidTask(field="after", value="nothing", why="leave it out for a task that waits for none")
    if len(after) > MOST_PARENTS:
        raise InvalidTask(field="after", value=f"{len(after)} tasks", why=f"it can wait for {MOST_PARENTS} at most")
    for parent, on_failure in after:
        if on_failure not in RULES:
            raise InvalidTask(field="after", value=on_failure, why=f"on failure it can {', '.join(RULES)}")
        if isinstance(parent, tuple):
            _name("after", parent[0])
            require_storable("after", parent[1], LONGEST_KEY)
            if parent == (task.handler, task.key):
                raise InvalidTask(field="after", value=" ".join(parent), why="these are its own handler and key")
        elif isinstance(parent, int) and not 1 <= parent < 2**63:
            raise InvalidTask(field="after", value=parent, why="it is no number of a task")


def _times(task: NewTask) -> None:
    if task.run_at is not None:
        if not isinstance(task.run_at, datetime):
            raise InvalidTask(field="run_at", value=task.run_at, why="it must be a datetime with a time zone")
        if task.run_at.tzinfo is None:
            why = "it has no time zone: take datetime.now(UTC), or its astimezone() if it is this machine's time"
            raise InvalidTask(field="run_at", value=task.run_at.isoformat(), why=why)
        if not bounded(task.run_at):
            why = f"times go from {EARLIEST:%Y} to {LATEST:%Y}"
            raise InvalidTask(field="run_at", value=task.run_at.isoformat(), why=why)
        if task.delay is not None:
            raise InvalidTask(field="delay", value=task.delay, why="run_at is given as well, so leave one of them out")
    for field in ("delay", "timeout"):
        value = getattr(task, field)
        if value is not None and not (
            math.isfinite(value) and 0 <= value < LONGEST_SECONDS and (value or field == "delay")
        ):
            raise InvalidTask(
                field=field, value=value, why=f"it must be a number of seconds up to {LONGEST_SECONDS:.0e}"
            )
