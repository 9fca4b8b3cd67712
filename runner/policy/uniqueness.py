"""Decisions on tasks with unique keys, once the holders of the keys are known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from runner.errors import DuplicateTask
from runner.model.task import NewTask, OnDuplicate

HandlerKey: TypeAlias = tuple[str, str]
"""Handler name and unique key."""


class KeyChange(NamedTuple):
    """The update of a unique key's row.

    Args:
        task_id: id of the new holder; None if the holder stays.
        scope: scope of the new holder.
        seconds: duration, if the scope is limited by time.
        duplicates: number of new duplicates.
    """

    handler: str
    unique_key: str
    task_id: int | None = None
    scope: str | None = None
    seconds: float | None = None
    duplicates: int = 0


class Contest(NamedTuple):
    """The result for each task of a submit, by its index.

    Args:
        new: indexes of the tasks to insert.
        existing: id of the existing holder, for each duplicate of an existing task.
        same_submit: index of the first task with the same key, for each duplicate within the submit.
    """

    new: list[int]
    existing: dict[int, int]
    same_submit: dict[int, int]


class ContestRows(NamedTuple):
    """The rows that belong to a contest.

    Args:
        ids: the id of each task; for a duplicate, that of the holder.
        changes: the update of each key.
        replacements: the tasks whose values replace those of an existing task, by its id; the last one wins.
    """

    ids: list[int]
    changes: dict[HandlerKey, KeyChange]
    replacements: dict[int, NewTask]


def key_of(task: NewTask) -> HandlerKey | None:
    """Return the handler and unique key of a task; None without a unique key."""
    return (task.handler, task.unique_key.text) if task.unique_key is not None else None


def contest(tasks: Sequence[NewTask], holders: Mapping[HandlerKey, int]) -> Contest:
    """Assign each free key to the first task of the submit that requests it.

    Args:
        holders: ids of the existing holders of their keys.

    Raises:
        DuplicateTask: a task is a duplicate, and its on_duplicate is "error".
    """
    outcome, first = Contest([], {}, {}), dict[HandlerKey, int]()
    for index, task in enumerate(tasks):
        key = key_of(task)
        if key is None or (key not in holders and first.setdefault(key, index) == index):
            outcome.new.append(index)
            continue
        if task.unique_key is not None and task.unique_key.on_duplicate is OnDuplicate.ERROR:
            raise _duplicate(task.handler, task.unique_key.text, holders.get(key))
        if key in holders:
            outcome.existing[index] = holders[key]
        else:
            outcome.same_submit[index] = first[key]
    return outcome


def contest_rows(tasks: Sequence[NewTask], outcome: Contest, inserted: Sequence[int]) -> ContestRows:
    """Return the rows that belong to a contest.

    Args:
        outcome: result of `contest`.
        inserted: ids of the new tasks.
    """
    holders = dict(zip(outcome.new, inserted, strict=True)) | outcome.existing
    rows = ContestRows([], {}, {})
    for index, task in enumerate(tasks):
        id = holders[outcome.same_submit.get(index, index)]
        rows.ids.append(id)
        if task.unique_key is None:
            continue
        key = (task.handler, task.unique_key.text)
        if index not in outcome.existing and index not in outcome.same_submit:  # it comes before its duplicates
            rows.changes[key] = KeyChange(*key, id, task.unique_key.scope, task.unique_key.seconds)
            continue
        change = rows.changes.get(key, KeyChange(*key))
        rows.changes[key] = change._replace(duplicates=change.duplicates + 1)
        if task.unique_key.on_duplicate is OnDuplicate.REPLACE:
            rows.replacements[id] = task
    return rows


def _duplicate(handler: str, key: str, id: int | None) -> DuplicateTask:
    holder = "another task of the same submit" if id is None else f"task {id}"
    return DuplicateTask(handler=handler, key=key, id=id, holder=holder)


def blocked(keys: Mapping[int, HandlerKey], holders: Mapping[HandlerKey, int]) -> dict[int, int]:
    """Find the finished tasks that cannot be requeued because another task has their unique key.

    Args:
        keys: keys of the finished tasks, by task id.
        holders: ids of the holders of these keys; a finished task may hold its own key.

    Returns:
        The holder of the key, by the id of the task that cannot be requeued. If several tasks request a free key, the
        latest task gets it.
    """
    owners = dict(holders)
    for id in sorted(keys, reverse=True):
        owners.setdefault(keys[id], id)
    return {id: owners[key] for id, key in keys.items() if owners[key] != id}
