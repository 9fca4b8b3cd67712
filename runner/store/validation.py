"""Validation of submitted tasks, before anything is written."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.types import Instant
from runner.errors import InvalidTask
from runner.handlers.options import CHECKS, TASK_OPTIONS
from runner.model.task import DependsOn, NewTask, OnDuplicate
from runner.model.text_limits import FAILED_HOST, require_name, require_payload
from runner.policy.retry import parse_plan

ALL_DEFAULTS = NewTask("handler")[2:]
"""The fields after handler and payload of a task without options, as most tasks are."""


def check(task: NewTask) -> None:
    """Reject a task that a database could not hold, or that no runner could ever execute.

    Raises:
        InvalidTask: a value is not valid; the message names it and the values that are.
        InvalidRetryPlan: the retry plan is not valid.
    """
    require_name("handler", task.handler)
    require_payload(task.payload)
    if task[2:] == ALL_DEFAULTS:
        return
    for name, field, check_value in CHECKS:
        value = getattr(task, field)
        if value is not None:
            check_value(name, value)
    if task.retry is not None:
        parse_plan(task.retry)
    if task.run_at is not None and task.delay is not None:
        raise InvalidTask(field="delay", value=task.delay, why="run_at is set too: omit one of them")
    if task.run_at is not None and task.expires_at is not None and task.expires_at <= task.run_at:
        why = f"the task would expire before its run_at, {task.run_at.isoformat()}"
        raise InvalidTask(field="expires_at", value=task.expires_at.isoformat(), why=why)
    if task.hosts_for is not None and task.hosts is None:
        raise InvalidTask(field="hosts_for", value=task.hosts_for, why="it needs hosts, such as hosts='web-3'")
    if task.hosts_for is not None and FAILED_HOST in (task.hosts or "").split(","):
        why = "it counts from the due time, and not from a failure: omit it with hosts='failed'"
        raise InvalidTask(field="hosts_for", value=task.hosts_for, why=why)
    if task.after is not None:
        _check_parents(task, task.after)


def _check_parents(task: NewTask, after: Sequence[DependsOn]) -> None:
    own = (task.handler, task.key)
    if any(dependency.parent == own for dependency in after):
        raise InvalidTask(
            field="after", value=" ".join(map(str, own)), why="a task cannot depend on its own handler and key"
        )
    if task.unique_key is not None and task.unique_key.on_duplicate is OnDuplicate.REPLACE:
        why = "on_duplicate is 'replace', as with debounce, and a replaced task keeps its parents: omit one of the two"
        raise InvalidTask(field="after", value=[dependency.parent for dependency in after], why=why)


_SQL_TYPES: dict[str, Any] = {
    "text": sa.Text,
    "json": sa.Text,
    "integer": sa.Integer,
    "smallint": sa.SmallInteger,
    "float": sa.Float,
    "time": Instant,
}

SUBMIT_COLUMNS: dict[str, Any] = {"payload": sa.Text} | {
    option.name: _SQL_TYPES[option.type] for option in TASK_OPTIONS if option.type is not None
}
"""The values of a new task, and of one that replaces another, with the types in which statements carry them."""
