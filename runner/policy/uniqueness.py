"""What becomes of tasks with unique keys, once it is known who holds the keys."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from runner.errors import DuplicateTask
from runner.task import NewTask, OnDuplicate

Key: TypeAlias = tuple[str, str]
"""A handler's name, and a unique key of its."""


class Change(NamedTuple):
    """What is written down of a key.

    Args:
        task_id: of the task that holds it from now on; None when that stays as it is.
        scope: with which that task holds it.
        seconds: how long, where time limits the scope.
        duplicates: how many more there were.
    """

    task_id: int | None = None
    scope: str | None = None
    seconds: float | None = None
    duplicates: int = 0


class Contest(NamedTuple):
    """How tasks of one batch, by their places in it, came out of asking for their keys.

    Args:
        new: those that become tasks.
        held: the id of the task that holds the key already, for each that does not for this reason.
        twins: the place of the first task of the batch with the same key, for each that does not for that reason.
    """

    new: list[int]
    held: dict[int, int]
    twins: dict[int, int]

    def ids(self, inserted: Sequence[int]) -> list[int]:
        """The id for each place, when it is known which ids the new ones were given."""
        known = dict(zip(self.new, inserted, strict=True)) | self.held
        known |= {place: known[first] for place, first in self.twins.items()}
        return [known[place] for place in range(len(known))]


def key_of(task: NewTask) -> Key | None:
    """What a task asks to be the only one by; None for nothing."""
    return (task.handler, task.unique.key) if task.unique is not None else None


def contest(tasks: Sequence[NewTask], holders: Mapping[Key, int]) -> Contest:
    """Give each free key to the first task of the batch that asks for it.

    Args:
        tasks: a batch.
        holders: the ids of the tasks that hold keys which the batch asks for.

    Raises:
        DuplicateTask: a task that is to be no duplicate is one.
    """
    outcome, first = Contest([], {}, {}), dict[Key, int]()
    for place, task in enumerate(tasks):
        key = key_of(task)
        if key is None or (key not in holders and first.setdefault(key, place) == place):
            outcome.new.append(place)
            continue
        if task.unique is not None and task.unique.on_duplicate is OnDuplicate.ERROR:
            raise _duplicate(task.handler, task.unique.key, holders.get(key))
        if key in holders:
            outcome.held[place] = holders[key]
        else:
            outcome.twins[place] = first[key]
    return outcome


def changes(tasks: Sequence[NewTask], outcome: Contest, ids: Sequence[int]) -> dict[Key, Change]:
    """What a batch changes of its keys.

    Args:
        tasks: the batch.
        outcome: of its contest.
        ids: for each place.
    """
    losers = Counter(key_of(tasks[place]) for place in (*outcome.held, *outcome.twins))
    found = {key: Change(duplicates=number) for key, number in losers.items() if key is not None}
    for place in outcome.new:
        task = tasks[place]
        if task.unique is not None:
            key = (task.handler, task.unique.key)
            found[key] = Change(ids[place], task.unique.scope, task.unique.seconds, losers[key])
    return found


def _duplicate(handler: str, key: str, id: int | None) -> DuplicateTask:
    holder = "another task of the batch" if id is None else f"task {id}"
    return DuplicateTask(handler=handler, key=key, id=id, holder=holder)


def losers(keys: Mapping[int, Key], holders: Mapping[Key, int]) -> dict[int, int]:
    """Of finished tasks that are to be run again, those whose keys others have.

    Args:
        keys: of the finished tasks, by their ids.
        holders: the ids of the tasks that hold these keys; one that holds its own still does so.

    Returns:
        Who has the key, by the id of the task that cannot come back. Of several that ask for one free key the latest
        task gets it.
    """
    takers = dict(holders)
    for id in sorted(keys, reverse=True):
        takers.setdefault(keys[id], id)
    return {id: takers[key] for id, key in keys.items() if takers[key] != id}


def replacements(tasks: Sequence[NewTask], outcome: Contest, ids: Sequence[int]) -> dict[int, NewTask]:
    """The duplicates whose values another task is to take over, by its id; of several the last.

    Args:
        tasks: the batch.
        outcome: of its contest.
        ids: for each place.
    """
    duplicates = sorted(outcome.held.keys() | outcome.twins.keys())
    return {
        ids[place]: task
        for place in duplicates
        if (task := tasks[place]).unique is not None and task.unique.on_duplicate is OnDuplicate.REPLACE
    }
