"""The applications' door: @handler, and submitting by calling."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from runner.buckets import Bucket
from runner.bulk import Bulk
from runner.door import door
from runner.errors import PayloadTooLarge, WouldBlock
from runner.handlers import REGISTRY, Context, Handler, OnError, Options
from runner.once import Duplicate, UniqueKey
from runner.outcome import Delay
from runner.policy.retry import parse_plan
from runner.rules import NO_RULES, Rules
from runner.task import NewTask, Receipt
from runner.ticket import Ticket, tickets
from runner.times import parse_duration

P = ParamSpec("P")
C = TypeVar("C")
"""What calling a handler returns: a coroutine, if it is async."""
R = TypeVar("R")
"""What its tasks result in."""


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

    def filled(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task that `submit` would submit, with its arguments checked and written as JSON."""
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
        return _waited(tasks) if self.tx is None else door().submit_within(self.tx, tasks)

    async def _handed_in_async(self, tasks: Sequence[NewTask]) -> Receipt:
        return await (door().submit_async(tasks) if self.tx is None else door().submit_within_async(self.tx, tasks))


class TaskHandler(Handler, Generic[P, C, R]):
    """A handler as its decorator leaves it: call it to run it here and now, submit it to have it run."""

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Call the function itself, as if it had not been decorated."""
        result: C = self.function(*args, **kwargs)
        return result

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit a call; see Submission.submit."""
        return self.options().submit(*args, **kwargs)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit a call; see Submission.submit_async."""
        return await self.options().submit_async(*args, **kwargs)

    def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Submit many calls; see Submission.submit_many."""
        return self.options().submit_many(calls)

    async def submit_many_async(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Submit many calls; see Submission.submit_many_async."""
        return await self.options().submit_many_async(calls)

    def options(  # noqa: PLR0913 - they are what a task has
        self,
        *,
        run_at: datetime | None = None,
        delay: Delay | None = None,
        priority: int | None = None,
        key: str | None = None,
        queue: str | None = None,
        max_attempts: int | None = None,
        retry: str | None = None,
        timeout: Delay | None = None,
        tags: Iterable[str] = (),
        bucket: Bucket | None = None,
        unique_key: UniqueKey | None = None,
        unique: str | None = None,
        on_duplicate: Duplicate | None = None,
        tx: object = None,
    ) -> Submission[P, R]:
        """Say something else than the handler does, for the calls submitted through what this returns.

        Args:
            run_at: not before this time, which must have a zone.
            delay: not before so long from now: text ("10m"), seconds or timedelta.
            priority: 1 to 9, 9 goes first.
            key: a business key, to find the task by.
            queue: the lane that people name, pause and limit.
            max_attempts: how often it may be tried.
            retry: the retry plan as text.
            timeout: how long an attempt may take: text ("30s"), seconds or timedelta.
            tags: words to find it by.
            bucket: a number from 0 to 999 to spread tasks by, or a function that makes a whole number of the call's
                arguments; at random when nobody says it.
            unique_key: the task is to be the only one of its handler with this key; a function makes it of the call's
                arguments.
            unique: for how long it is: "until finished", "forever", or "for 1h" from its submit.
            on_duplicate: what to do when another task holds the key: "skip" answers with that one; "replace" also gives
                it the new values, while it waits; "error" raises DuplicateTask.
            tx: your connection or session, whose open transaction the task is to be part of: both are stored, or
                neither. Nothing is committed or tried again in it. See docs/transactions.md for what it may be.

        Raises:
            InvalidTask: a value is not valid.
            InvalidHandler: a function asks for arguments that the handler does not take.
        """
        rules = self.defaults.rules
        said = Rules.read(unique_key, unique, on_duplicate, bucket)
        if said != NO_RULES:
            rules = said.over(rules)
            rules.require(self.signature)
        return Submission(
            self,
            NewTask(
                handler=self.name,
                run_at=run_at,
                delay=_seconds(delay),
                priority=priority if priority is not None else self.defaults.priority,
                key=key,
                queue=queue or self.defaults.queue,
                max_attempts=max_attempts,
                retry=str(parse_plan(retry)) if retry is not None else None,
                timeout=_seconds(timeout),
                tags=_json_list(tags),
            ),
            rules,
            tx,
        )


class _Decorator:
    """What `handler(...)` returns: takes a function with or without a Context, and keeps its parameters' types."""

    def __init__(self, name: str, defaults: Options) -> None:
        self._name = name
        self._defaults = defaults

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]]
    ) -> TaskHandler[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R]) -> TaskHandler[P, R, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> TaskHandler[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> TaskHandler[P, R, R]: ...

    def __call__(self, function: Callable[..., Any]) -> TaskHandler[Any, Any, Any]:
        entered: TaskHandler[Any, Any, Any] = TaskHandler(self._name, function, self._defaults)
        REGISTRY.add(entered)
        return entered


def handler(  # noqa: PLR0913 - they are what its tasks have
    name: str,
    *,
    queue: str | None = None,
    retry: str | None = None,
    timeout: Delay | None = None,
    max_attempts: int | None = None,
    priority: int | None = None,
    on_error: OnError = "retry",
    bucket: Bucket | None = None,
    unique_key: UniqueKey | None = None,
    unique: str | None = None,
    on_duplicate: Duplicate | None = None,
) -> _Decorator:
    """Register a function as the handler of that name.

    Args:
        name: stored in every task; unique among all handlers.
        queue: the lane of its tasks; "default" when None.
        retry: the retry plan: stages (1m,5m,20m), exp:10s*2<1h, sidekiq, 30s or never; None takes the runner's.
        timeout: how long an attempt may take: text ("30s"), seconds or timedelta; None takes the runner's.
        max_attempts: how often a task may be tried; None takes the runner's.
        priority: of its tasks, 1 to 9, 9 goes first.
        on_error: what an exception means: "retry", "dead", exception classes that mean dead, or a function that
            takes the exception and returns an outcome.
        bucket: as in `options`.
        unique_key: as in `options`.
        unique: as in `options`.
        on_duplicate: as in `options`.

    Returns:
        A decorator for an async function, or for a plain one, which will run in a thread.

    Raises:
        InvalidRetryPlan: when `retry` is not one.
        InvalidTask: when `unique` or `on_duplicate` is not one.
        DuplicateHandler: when the name is taken.

    Example:
        >>> @handler("coupons.send", retry="1m,5m,20m", timeout="30s")
        ... async def send_coupon(ctx: Context, user_id: int) -> None: ...
    """
    plan = str(parse_plan(retry)) if retry is not None else None
    rules = Rules.read(unique_key, unique, on_duplicate, bucket)
    return _Decorator(name, Options(queue, plan, _seconds(timeout), max_attempts, priority, on_error, rules))


def _waited(tasks: Sequence[NewTask]) -> Receipt:
    """Submit, and wait for it; not on an event loop, which could be the one that the wait is for."""
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise WouldBlock(call="submit", instead="submit_async")
    return door().submit(tasks).result()


def _tickets(receipt: Receipt) -> list[Ticket[R]]:
    return tickets(receipt.ids, receipt.duplicates)


def _seconds(delay: Delay | None) -> float | None:
    return None if delay is None else parse_duration(delay).total_seconds()


def _json_list(tags: Iterable[str]) -> str | None:
    return json.dumps(list(tags)) if tags else None
