"""together: many calls in one transaction, and what is to be done when all of them have ended."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runner.door.door import door
from runner.errors import InvalidTask
from runner.producer.submission import waited
from runner.producer.ticket import Ticket, tickets
from runner.task import After, NewTask, OnFailure, Receipt, Sibling


@dataclass(frozen=True, slots=True)
class Together:
    """Tasks that were submitted together.

    Args:
        members: the ids of the calls, as tickets, in their order.
        then: of what runs when all of them have ended.
        on_success: of what runs when all of them have succeeded.
    """

    members: list[Ticket[Any]]
    then: Ticket[Any] | None = None
    on_success: Ticket[Any] | None = None


def together(
    calls: Iterable[NewTask], *, then: NewTask | None = None, on_success: NewTask | None = None, tx: object = None
) -> Together:
    """Submit calls in one transaction, with what is to be done when all of them have ended.

    Args:
        calls: made with `call`, of any handlers.
        then: a call that runs when all have ended, whatever became of them; its Context says how many succeeded.
        on_success: a call that runs when all have succeeded; it is cancelled as soon as one is dead or cancelled.
        tx: your connection or session, whose open transaction they are to be part of; see docs/transactions.md.

    Raises:
        InvalidTask: there is no call; or see Submission.submit.
        WouldBlock: when called on an event loop, without `tx`.

    Example:
        >>> together([charge.call(order=n) for n in orders], then=report.options(queue="reports").call(day="today"))
    """
    tasks, places = _tasks(list(calls), then, on_success)
    return _told(waited(tasks, "together") if tx is None else door().submit_within(tx, tasks), places)


async def together_async(
    calls: Iterable[NewTask], *, then: NewTask | None = None, on_success: NewTask | None = None, tx: object = None
) -> Together:
    """Do what `together` does without blocking the event loop."""
    tasks, places = _tasks(list(calls), then, on_success)
    handed_in = door().submit_async(tasks) if tx is None else door().submit_within_async(tx, tasks)
    return _told(await handed_in, places)


def _tasks(
    members: list[NewTask], then: NewTask | None, on_success: NewTask | None
) -> tuple[list[NewTask], dict[str, int]]:
    """All tasks in the order in which they are submitted, and the places of those that wait for the members."""
    if not members:
        raise InvalidTask(field="after", value="nothing", why="there is no call to wait for")
    for task in (*members, then, on_success):
        _require_call(task)
    tasks, places = list(members), dict[str, int]()
    rules: dict[str, tuple[NewTask | None, OnFailure]] = {"then": (then, "run"), "on_success": (on_success, "cancel")}
    for name, (task, rule) in rules.items():
        if task is not None:
            places[name] = len(tasks)
            edges = tuple(After(Sibling(place), rule) for place in range(len(members)))
            tasks.append(task._replace(after=(*edges, *(task.after or ()))))
    return tasks, places


def _require_call(task: Any) -> None:
    """Refuse what was submitted already, a handler, and the parts of a call that stands without a list."""
    if task is not None and not isinstance(task, NewTask):
        why = "together takes calls in a list, each made with handler.call(...)"
        raise InvalidTask(field="call", value=task, why=why)


def _told(receipt: Receipt, places: dict[str, int]) -> Together:
    made: list[Ticket[Any]] = tickets(receipt.ids, receipt.duplicates)
    first = min(places.values(), default=len(made))
    return Together(made[:first], **{name: made[place] for name, place in places.items()})
