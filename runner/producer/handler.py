"""The applications' door: @handler, and submitting by calling."""

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from runner.errors import InvalidHandler, InvalidTask
from runner.handlers import REGISTRY, Context, Handler, OnError, Options
from runner.outcome import Delay
from runner.people.times import parse_duration
from runner.policy.retry import parse_plan
from runner.producer.submission import Submission
from runner.producer.ticket import Ticket
from runner.rules.after import Parent, edges
from runner.rules.buckets import Bucket
from runner.rules.once import Duplicate, UniqueKey
from runner.rules.rules import NO_RULES, Rules
from runner.storable import require_text
from runner.task import NewTask

P = ParamSpec("P")
C = TypeVar("C")
"""What calling a handler returns: a coroutine, if it is async."""
R = TypeVar("R")
"""What its tasks result in."""


class TaskHandler(Handler, Generic[P, C, R]):
    """A handler as its decorator leaves it: call it to run it here and now, submit it to have it run."""

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Call the function itself, as if it had not been decorated."""
        result: C = self.function(*args, **kwargs)
        return result

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit a call; see Submission.submit."""
        return self._plainly.submit(*args, **kwargs)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Submit a call; see Submission.submit_async."""
        return await self._plainly.submit_async(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Make a call that is still to be submitted; see Submission.call."""
        return self.options().call(*args, **kwargs)

    def submit_many(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Submit many calls; see Submission.submit_many."""
        return self._plainly.submit_many(calls)

    async def submit_many_async(self, calls: Iterable[Mapping[str, Any]]) -> list[Ticket[R]]:
        """Submit many calls; see Submission.submit_many_async."""
        return await self._plainly.submit_many_async(calls)

    @cached_property
    def _plainly(self) -> Submission[P, R]:
        """What most calls are submitted through; to make it takes as long as all else that a submit does here."""
        return self.options()

    def ticket(self, id: int) -> Ticket[R]:
        """The ticket of a task that was submitted earlier, to wait for its result."""
        return Ticket(id)

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
        after: Parent | Iterable[Parent] = (),
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
            after: what it waits for: ids of tasks, or pairs of a handler and a key; a dead or cancelled one is waited
                for until it is run again and succeeds, unless After(..., on_failure="cancel") or "run" says otherwise.
            tx: your connection or session, whose open transaction the task is to be part of: see docs/transactions.md.

        Raises:
            InvalidTask: a value is not valid.
            InvalidHandler: a function asks for arguments that the handler does not take.
        """
        task = NewTask(
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
            after=edges(after) or None,
        )
        return Submission(self, task, self._rules(Rules.read(unique_key, unique, on_duplicate, bucket)), tx)

    def _rules(self, said: Rules) -> Rules:
        if said == NO_RULES:
            return self.defaults.rules
        rules = said.over(self.defaults.rules)
        rules.require(self.signature)
        return rules


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
        InvalidHandler: when there is no name.
        DuplicateHandler: when the name is taken.

    Example:
        >>> @handler("coupons.send", retry="1m,5m,20m", timeout="30s")
        ... async def send_coupon(ctx: Context, user_id: int) -> None: ...
    """
    if callable(name):
        why = 'write @handler("name") above it, with the name that its tasks are to be known by'
        raise InvalidHandler(name=getattr(name, "__name__", ""), why=why)
    plan = str(parse_plan(retry)) if retry is not None else None
    rules = Rules.read(unique_key, unique, on_duplicate, bucket)
    return _Decorator(name, Options(queue, plan, _seconds(timeout), max_attempts, priority, on_error, rules))


def _seconds(delay: Delay | None) -> float | None:
    return None if delay is None else parse_duration(delay).total_seconds()


def _json_list(tags: Iterable[str]) -> str | None:
    """Write tags; a text is no list of them, though Python would take it for one of letters."""
    if isinstance(tags, str):
        raise InvalidTask(field="tags", value=tags, why=f"it must be a list of texts, such as [{tags!r}]")
    words = list(tags)
    for word in words:
        require_text("tags", word)
    return json.dumps(words) if words else None
