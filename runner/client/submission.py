"""Submission: a handler with task options, and the ways to submit it."""

from asyncio import run, to_thread
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

from runner.client.client import get_client, refuse_event_loop
from runner.client.commit import Template
from runner.client.inline import delay_after, inline_arguments, inline_result
from runner.client.results import TaskHandle, handles
from runner.errors import InvalidInput, InvalidTask
from runner.handlers.call_options import NO_CALL_OPTIONS, CallOptions
from runner.handlers.registry import Handler
from runner.model.duration import parse_duration
from runner.model.task import NewTask, PreparedTask, SubmitResult
from runner.model.task_batch import TaskBatch

if TYPE_CHECKING:
    from runner.model.outcome import Dead, Retry, Snooze

P = ParamSpec("P")
R = TypeVar("R")
"""Type of the tasks' results."""
R_co = TypeVar("R_co", covariant=True)
"""Type of the return value of the handler: a result or an outcome."""


Call: TypeAlias = NewTask | Mapping[str, Any]
"""One call of a handler: made with `new`, or its named arguments."""

SubmitterOf: TypeAlias = "Submitter[P, R | Retry | Dead | Snooze]"
"""The submitter of a handler with a result of type R, which may also return outcomes."""


class Submitter(Generic[P, R_co]):
    """The ways to submit tasks of one handler, which a handler and a handler with options have in common."""

    _submission: "Submission[P, R_co]"
    """The handler with the options of its tasks."""

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]:
        """Submit a task, in a transaction of its own unless `tx` is set.

        Returns:
            The task's id, as a handle for its result. The task is durable when this returns, or with `tx` when your
            transaction commits.

        Raises:
            InvalidPayload: the arguments do not match the handler's signature.
            PayloadTooLarge: the arguments exceed the payload limit.
            SubmitUncertain: the connection broke during the commit; the task may exist. The message names a search.
            DatabaseUnavailable: the database cannot be reached; the task does not exist.
            WouldBlock: called on an event loop without `tx`.
            AutocommitConnection: `tx` has no open transaction; see also UnknownConnection and SyncAsyncMismatch.
            DuplicateTask: another task holds the unique key, and on_duplicate is "error".
        """
        own = self._submission
        payload, client = own.handler.signature.encode(args, kwargs), get_client()
        if own.tx is not None:
            return task_handle(client.submit_within(own.tx, own.with_payloads([payload])))
        refuse_event_loop("submit")
        if own.template is not None and (insert := client.insert_of(own.template)) is not None:
            return TaskHandle(client.submit_one(insert, payload))
        return task_handle(client.submit(own.with_payloads([payload])))

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]:
        """Same as `submit`, without blocking the event loop."""
        own = self._submission
        payload, client = own.handler.signature.encode(args, kwargs), get_client()
        if client.frame is None:
            await client.load()
        if own.tx is not None:
            return task_handle(await client.submit_within_async(own.tx, own.with_payloads([payload])))
        if own.template is not None and (insert := client.insert_of(own.template)) is not None:
            return TaskHandle(await client.submit_one_async(insert, payload))
        return task_handle(await client.submit_async(own.with_payloads([payload])))

    def submit_many(self, calls: Iterable[Call]) -> list[TaskHandle[R_co]]:
        """Submit many tasks in one transaction: that of `tx`, or a separate one.

        Args:
            calls: each made with `new`, which type checkers check, or the named arguments as a mapping. A call keeps
                the options with which it was made.

        Returns:
            Task handles in the order of `calls`.
        """
        own = self._submission
        tasks, client = own.tasks_each(calls), get_client()
        if own.tx is not None:
            return task_handles(client.submit_within(own.tx, tasks))
        refuse_event_loop("submit_many")
        return task_handles(client.submit(tasks))

    async def submit_many_async(self, calls: Iterable[Call]) -> list[TaskHandle[R_co]]:
        """Same as `submit_many`, without blocking the event loop."""
        own = self._submission
        tasks, client = own.tasks_each(calls), get_client()
        if client.frame is None:
            await client.load()
        submitted = client.submit_async(tasks) if own.tx is None else client.submit_within_async(own.tx, tasks)
        return task_handles(await submitted)

    def submit_chunks(self, argument: str, rows: Iterable[Any], size: int, **others: Any) -> list[TaskHandle[R_co]]:
        """Submit many rows as few tasks, in one transaction: `load.submit_chunks("rows", rows, 100, account=7)`.

        Args:
            argument: name of the argument that takes a list of rows.
            rows: the rows.
            size: maximum number of rows per task.
            others: the other arguments, the same for each task.

        Returns:
            Task handles in the order of the rows.

        Raises:
            InvalidPayload: rows or other arguments do not match the handler's signature; nothing is submitted.
            InvalidInput: the size is not positive.
        """
        return self.submit_many({argument: chunk, **others} for chunk in chunks(rows, size))

    async def submit_chunks_async(
        self, argument: str, rows: Iterable[Any], size: int, **others: Any
    ) -> list[TaskHandle[R_co]]:
        """Same as `submit_chunks`, without blocking the event loop."""
        return await self.submit_many_async({argument: chunk, **others} for chunk in chunks(rows, size))

    def call_or_submit(self: "SubmitterOf[P, R]", *args: P.args, **kwargs: P.kwargs) -> R | TaskHandle[R]:
        """Run the handler now, in this thread, and submit a task only if it fails. A coroutine gets a loop of its own.

        Returns:
            The result of the handler, or the handle of the task that was submitted because the handler raised an
            exception, or returned Retry or Snooze, or None where it declares a result and `on_none` retries.

        Raises:
            InvalidPayload: the arguments do not match the handler's signature.
            InvalidInline: the handler needs a resource.
            Exception: the exception of the handler, if `on_error` gives up after it; Dead.
        """
        handler = self._submission.handler
        if handler.is_async:
            refuse_event_loop("call_or_submit")
        arguments = inline_arguments(handler, args, kwargs)
        try:
            result = handler.function(**arguments)
            if handler.is_async:
                result = run(result)
            result = inline_result(handler, arguments, result)
        except Exception as error:
            return cast("TaskHandle[R]", self._submission.after(error).submit(*args, **kwargs))
        return cast("R", result)

    async def call_or_submit_async(self: "SubmitterOf[P, R]", *args: P.args, **kwargs: P.kwargs) -> R | TaskHandle[R]:
        """Same as `call_or_submit`, on an event loop; a plain function runs in a thread."""
        handler = self._submission.handler
        arguments = inline_arguments(handler, args, kwargs)
        try:
            called = handler.function(**arguments) if handler.is_async else to_thread(handler.function, **arguments)
            result = inline_result(handler, arguments, await called)
        except Exception as error:
            return cast("TaskHandle[R]", await self._submission.after(error).submit_async(*args, **kwargs))
        return cast("R", result)

    def new(self, *args: P.args, **kwargs: P.kwargs) -> PreparedTask[R_co]:
        """Make the task that `submit` would submit, with a validated payload: for `batch`, workflows and `ctx.call`."""
        return PreparedTask._make(self._submission.tasks(args, kwargs)[0])


@dataclass(frozen=True)
class Submission(Submitter[P, R_co]):
    """A handler and the options of its tasks, ready to submit.

    Args:
        handler: handler of the tasks.
        task: task options, without a payload.
        call_options: options from which each call derives values.
        tx: connection of the application, whose transaction the tasks join; None for a separate transaction.
    """

    handler: Handler
    task: NewTask
    call_options: CallOptions = NO_CALL_OPTIONS
    tx: object = None

    @cached_property
    def template(self) -> Template | None:
        """The template of its tasks; None if values are derived from their payloads."""
        return Template(self.task) if self.call_options == NO_CALL_OPTIONS and self.tx is None else None

    @property
    def _submission(self) -> "Submission[P, R_co]":  # type: ignore[override] # read only
        return self

    def after(self, outcome: Exception) -> "Submission[P, R_co]":
        """Return the submission of the task that follows a failed inline call."""
        delay = delay_after(self.handler, outcome)
        if delay is None:
            return self
        return replace(self, task=self.task._replace(run_at=None, delay=parse_duration(delay).total_seconds()))

    def tasks(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[NewTask]:
        """Make the task of a call, in a sequence of one.

        Raises:
            InvalidPayload: the arguments do not match the handler's signature.
            PayloadTooLarge: the arguments exceed the payload limit.
        """
        return self.with_payloads([self.handler.signature.encode(args, kwargs)])

    def tasks_each(self, calls: Iterable[Call]) -> Sequence[NewTask]:
        """Make the tasks of many calls.

        Raises:
            InvalidTask: a call was made with another handler.
        """
        calls = list(calls)
        if any(isinstance(call, NewTask) for call in calls):
            return [self._ready(call) for call in calls]
        return self.with_payloads(self.handler.signature.encode_each(cast("list[Mapping[str, Any]]", calls)))

    def _ready(self, call: Call) -> NewTask:
        if not isinstance(call, NewTask):
            return self.tasks((), call)[0]
        if call.handler != self.handler.name:
            why = f"it is a call of {call.handler}; submit calls of several handlers with batch"
            raise InvalidTask(field="calls", value=self.handler.name, why=why)
        return call

    def with_payloads(self, payloads: Sequence[str]) -> Sequence[NewTask]:
        """Make a task for each payload.

        Raises:
            PayloadTooLarge: a payload exceeds the payload limit.
            InvalidPayload: a value cannot be derived from a payload.
        """
        require_size = get_client().sealing.require_size
        for payload in payloads:
            require_size(self.task.handler, payload)
        if self.call_options == NO_CALL_OPTIONS:
            return TaskBatch(self.task, payloads)
        arguments, rest = self.handler.signature.arguments, self.task[2:]
        applied, tasks = self.call_options.applied, []
        for payload in payloads:
            task = NewTask._make((self.task.handler, payload, *rest))  # twice as fast as _replace
            tasks.append(applied(task, partial(arguments, payload)))
        return tasks


def task_handle(result: SubmitResult) -> TaskHandle[R]:
    """Return the handle of the only task of a submit."""
    return task_handles(result)[0]


def task_handles(result: SubmitResult) -> list[TaskHandle[R]]:
    """Return the handles of the tasks of a submit, in order."""
    return handles(result.ids, result.duplicates)


def chunks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Split rows into lists of a size; the last one may be shorter.

    Raises:
        InvalidInput: the size is not positive.
    """
    if size < 1:
        raise InvalidInput(why=f"the size of a chunk is {size}; it must be at least 1")
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk
