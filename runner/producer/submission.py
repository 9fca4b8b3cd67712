"""Submission: a call with what its tasks are to have, and the ways to hand it in."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from runner.bulk import Bulk
from runner.door.door import door
from runner.errors import PayloadTooLarge, WouldBlock
from runner.handlers import Handler
from runner.producer.ticket import Ticket, tickets
from runner.rules.rules import NO_RULES, Rules
from runner.task import NewTask, Receipt

P = ParamSpec("P")
R = TypeVar("R")
"""What the tasks result in."""


@dataclass(frozen=True)
class Submission(Generic[P, R]):
    """A call that is to be submitted: a handler, and options for its tasks.

    Args:
        handler: what will execute it.
        task: the options, as a task still without its payload.
        rules: what follows from the payload.
        tx: the application's connection, whose transaction the tasks are to be part of; None for one of their own.
    """

    handler: Handler
    task: NewTask
    rules: Rules = NO_RULES
    tx: object = None

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit the call, in a transaction of its own unless `tx` was given.

        Returns:
            The task's id, as a ticket to its result; the task is durable when this returns, or when the transaction
            of `tx` has been committed.

        Raises:
            InvalidPayload: when the arguments do not fit the handler's signature.
            PayloadTooLarge: when they are too large to be stored.
            DatabaseAway: when the database cannot be reached; whether the task exists is then unknown.
            WouldBlock: when called on an event loop, without `tx`.
            CommitsByItself: when `tx` has no transaction open; see UnknownConnection and WrongForm as well.
            DuplicateTask: when another task holds the unique key, and that is to be an error.
        """
        return _tickets(self._handed_in(self._filled(args, kwargs)))[0]

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Do what `submit` does without blocking the event loop."""
        return _tickets(await self._handed_in_async(self._filled(args, kwargs)))[0]

    def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Submit many calls in one transaction: that of `tx`, or one of their own.

        Args:
            calls: the named arguments of each.

        Returns:
            The tasks' ids as tickets, in the order of `calls`.
        """
        return _tickets(self._handed_in(self._filled_each(calls)))

    async def submit_many_async(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Do what `submit_many` does without blocking the event loop."""
        return _tickets(await self._handed_in_async(self._filled_each(calls)))

    def call(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task that `submit` would submit, its arguments checked and written as JSON, for `together`."""
        return self._filled(args, kwargs)[0]

    def _filled(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[NewTask]:
        return self._tasks([self.handler.signature.encode(args, kwargs)])

    def _filled_each(self, calls: Iterable[Mapping[str, Any]]) -> Sequence[NewTask]:
        return self._tasks(self.handler.signature.encode_each(calls))

    def _tasks(self, payloads: list[str]) -> Sequence[NewTask]:
        limit = door().payload_limit
        for payload in payloads:
            if len(payload) * 4 > limit and (size := len(payload.encode())) > limit:
                raise PayloadTooLarge(handler=self.handler.name, size=size, limit=limit)
        bulk = Bulk(self.task, payloads)
        if self.rules == NO_RULES:
            return bulk
        arguments = self.handler.signature.arguments
        return [self.rules.applied(task, partial(arguments, task.payload)) for task in bulk]

    def _handed_in(self, tasks: Sequence[NewTask]) -> Receipt:
        return waited(tasks) if self.tx is None else door().submit_within(self.tx, tasks)

    async def _handed_in_async(self, tasks: Sequence[NewTask]) -> Receipt:
        return await (door().submit_async(tasks) if self.tx is None else door().submit_within_async(self.tx, tasks))


def waited(tasks: Sequence[NewTask], call: str = "submit") -> Receipt:
    """Submit, and wait for it; not on an event loop, which could be the one that the wait is for."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise WouldBlock(call=call, instead=f"{call}_async")
    return door().submit(tasks).result()


def _tickets(receipt: Receipt) -> list[Ticket[R]]:
    return tickets(receipt.ids, receipt.duplicates)
