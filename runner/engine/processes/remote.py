"""The runner as a handler in a worker process sees it: notes, results of parents and logs, sent over the channel."""

import asyncio
import copy
import itertools
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn, Protocol, TypeVar

from runner.engine.executing.attempt_outcome import checkpoint_text
from runner.engine.processes.messages import Channel, ProcessCall, crossing, plain
from runner.errors import DatabaseUnavailable, NoRunner, TransactionInProcess
from runner.handlers.context import require_progress
from runner.logs import TaskFilter, payload_secrets
from runner.model.step import StepWrite, StoredStep
from runner.model.task import NewTask
from runner.text.redact import hide

PART = "part"
"""The kind of a message of one task of a chunk, before its position and the message."""

PROGRESS_EVERY = 0.2
"""Seconds between two messages with the progress."""


T = TypeVar("T")


class Sender(Protocol):
    """The way of messages to the runner."""

    def send(self, *message: Any) -> None:
        """Send one message; any thread may do so."""


class Requests:
    """Requests to the runner that have a reply.

    Args:
        loop: the event loop of this process.
        on_outage: called with an outage of the runner's connection, before the handler receives it.
    """

    def __init__(
        self, channel: Sender, loop: asyncio.AbstractEventLoop, on_outage: Callable[[DatabaseUnavailable], None]
    ) -> None:
        self.channel, self.loop, self._on_outage = channel, loop, on_outage
        self._replies: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)

    def of_part(self, position: int) -> "Requests":
        """The requests of one task of a chunk, which name its position; their replies arrive here."""
        part = copy.copy(self)
        part.channel = _PartSender(self.channel, position)
        return part

    async def ask(self, kind: str, *values: Any) -> Any:
        """Send a request and wait for its reply; an error of the runner is raised."""
        number, reply = next(self._numbers), Future[Any]()
        self._replies[number] = reply
        self.channel.send(kind, number, *values)
        try:
            return await asyncio.wrap_future(reply)
        except DatabaseUnavailable as error:
            self._on_outage(error)
            raise

    def reply(self, number: int, value: Any, error: BaseException | None) -> None:
        """Enter a reply."""
        future = self._replies.pop(number)
        if not future.set_running_or_notify_cancel():  # a timeout ended the call
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


class _PartSender:
    def __init__(self, channel: Sender, position: int) -> None:
        self._channel, self._position = channel, position

    def send(self, *message: Any) -> None:
        self._channel.send(PART, self._position, *message)


class RemoteNotes:
    """The notes of one attempt, which the runner writes.

    Args:
        limit: maximum size of a checkpoint in bytes.
    """

    unsaved: str | None = None

    def __init__(self, requests: Requests, call: ProcessCall, limit: int) -> None:
        self.state: Any = None if call.state is None else json.loads(call.state)
        self._requests, self._task_id, self._limit = requests, call.task.id, limit
        self._progress: tuple[float, float | None, str] | None = None

    async def load(self) -> None:
        """Do nothing: the state came with the task."""

    async def save_kept(self) -> None:
        """Do nothing: the runner has the state."""

    async def save(self, state: Any) -> None:
        """Store a checkpoint."""
        text = self._text(state)
        await self._requests.ask("save", text)
        self.state = json.loads(text)

    def keep(self, state: Any) -> None:
        """Send the state that the runner stores later."""
        text = self._text(state)
        self.state = json.loads(text)
        self._requests.channel.send("keep", text)

    def progress(self, done: float, total: float | None, unit: str) -> None:
        """Send the progress, at most once per PROGRESS_EVERY and at the end."""
        require_progress(done, total)
        first, self._progress = self._progress is None, (done, total, unit)
        if first:
            self._requests.loop.call_soon_threadsafe(self._send_later)

    def _send_later(self) -> None:
        self._requests.loop.call_later(PROGRESS_EVERY, self.send_progress)

    def send_progress(self) -> None:
        """Send the progress that was not sent yet."""
        progress, self._progress = self._progress, None
        if progress is not None:
            done, total, unit = progress
            self._requests.channel.send("progress", float(done), None if total is None else float(total), plain(unit))

    def line(self, level: int, text: str) -> None:
        """Send a line of the log."""
        self._requests.channel.send("line", int(level), plain(text))

    def submit(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Future[None]:
        """Run a coroutine function on the event loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._requests.loop)

    def _text(self, state: Any) -> str:
        return checkpoint_text(state, self._limit, self._task_id)


class RemoteSteps:
    """The steps of one attempt, which the runner reads and writes."""

    def __init__(self, requests: Requests, task_id: int) -> None:
        self._requests, self._task_id = requests, task_id

    async def load(self) -> list[StoredStep]:
        """Read the steps of the task."""
        return [StoredStep(*step) for step in await self._requests.ask("load_steps")]

    async def save(self, write: StepWrite) -> None:
        """Store a step."""
        await self._requests.ask("save_step", plain(list(write)))

    async def receive(self, wait: StepWrite, timed_out: bool) -> StepWrite:
        """Take the signal that a wait is for, or store the wait; return it as it is stored."""
        return StepWrite(*await self._requests.ask("receive", plain(list(wait)), timed_out))

    async def call(self, call: StepWrite, task: NewTask, child: int | None) -> tuple[int, Any, bool]:
        """Submit a child, unless it has an id, and read its end."""
        id, end, may_keep = await self._requests.ask("call", plain(list(call)), crossing(task), child)
        return id, end, may_keep

    def transaction(self, _write: Callable[[Any], StepWrite], /) -> NoReturn:
        """Refuse: only the runner has the database of the task."""
        raise TransactionInProcess(id=self._task_id, executor="process")

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Run a coroutine function on the event loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._requests.loop)


class RemoteParentResults:
    """The results of the parents of one task, which the runner reads."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def read(self) -> list[Any]:
        """Return the result of each parent, or the error in its place, in the order of the dependencies."""
        values: list[Any] = await self._requests.ask("parents")
        return values

    async def headers(self, limit: int) -> list[Mapping[str, str]]:
        """Refuse: the middleware of the runner reads them."""
        raise NoRunner(call=f"ctx.batch.headers_async({limit})")

    def submit(self, work: Callable[[], Coroutine[Any, Any, list[Any]]]) -> Future[list[Any]]:
        """Run a coroutine function on the event loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._requests.loop)


class ForwardRecords(logging.Handler):
    """Sends log records to the runner, whose configuration decides where they go."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.addFilter(TaskFilter())  # only this process knows the task of a record
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, with its message and traceback as text."""
        try:
            values = dict(vars(record)) | {"msg": record.getMessage(), "args": None, "exc_info": None}
            if record.exc_info and not record.exc_text:
                values["exc_text"] = logging.Formatter().formatException(record.exc_info)
            values = {name: plain(value) for name, value in values.items() if _is_plain(value)}
            self._channel.send("log", hide(values, payload_secrets()))
        except Exception:
            self.handleError(record)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, tuple, list, dict))
