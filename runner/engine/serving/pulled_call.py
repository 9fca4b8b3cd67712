"""PulledCall: an attempt that an HTTP executor runs, from its start in the engine to its end."""

import asyncio
import itertools
import json
import pickle
from math import inf
from typing import TYPE_CHECKING, Any, assert_never

from runner.engine.executing.attempt_outcome import done, not_kept
from runner.engine.external.executor import End, Receive, WorkerLost
from runner.engine.processes.messages import ProcessCall, ProcessEnd, RemoteError
from runner.engine.serving.protocol import (
    Die,
    Ending,
    ExecutorError,
    HandBack,
    RetryLater,
    SnoozeTask,
    Stopped,
    Succeed,
)
from runner.model.headers import read_headers
from runner.model.outcome import Cancelled, Dead, Failure, Interrupted, Outcome, Release, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Callable


quote = json.encoder.encode_basestring_ascii
"""Returns a text as JSON."""

Key = tuple[str, int, int]
"""Shard, task id and fence."""


class PulledCall:
    """One attempt. It waits in a queue until an executor pulls it.

    Args:
        forget: takes it from the queue or from its executor.
        received_at: the time in monotonic seconds.
    """

    is_pulled = False
    """True if an executor has it; False while it waits."""
    lease_end = inf
    """The time in monotonic seconds at which its executor loses it without a heartbeat."""
    is_stopped = is_terminated = False
    """True if its handler has to end: because the server stops, or an operator terminated the task."""

    def __init__(
        self,
        shard: str,
        forget: "Callable[[PulledCall], object]",
        call: ProcessCall,
        receive: Receive,
        end: End,
        received_at: float,
    ) -> None:
        self.shard = shard
        self.number, self.task, self.timeout = call.number, call.task, call.timeout
        self.received_at = received_at
        self._state, self._forget, self._receive, self._end = call.state, forget, receive, end
        self._sent, self._requests = 0, itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}

    @property
    def key(self) -> Key:
        """Shard, task id and fence."""
        return self.shard, self.task.id, self.task.fence

    @property
    def rank(self) -> tuple[int, int]:
        """Its position among the waiting calls: by priority, then by the order of their starts."""
        return -self.task.priority, self.number

    def begin(self, lease_end: float) -> None:
        """Give it to an executor."""
        self.is_pulled, self.lease_end = True, lease_end
        self.message("started")

    @property
    def text(self) -> str:
        """Its PulledTask as JSON; payload and checkpoint are JSON already."""
        task, timeout = self.task, "null" if self.timeout is None else self.timeout
        key = "null" if task.key is None else quote(task.key)
        headers = "{}" if task.headers is None else json.dumps(dict(read_headers(task.headers)))
        checkpoint = "null" if self._state is None else self._state
        texts = (
            f'"shard": {quote(self.shard)}, "handler": {quote(task.handler)}, "queue": {quote(task.queue)}',
            f'"key": {key}, "id": {task.id}, "fence": {task.fence}, "priority": {task.priority}',
            f'"attempt": {task.attempt}, "max_attempts": {task.max_attempts}, "timeout": {timeout}',
            f'"headers": {headers}, "payload": {task.payload or "{}"}, "checkpoint": {checkpoint}',
        )
        return f"{{{', '.join(texts)}}}"

    def message(self, *message: Any) -> None:
        """Send the engine a message of the handler."""
        self._sent += 1
        self._receive(message)

    async def ask(self, kind: str, *values: Any) -> None:
        """Send the engine a request, and wait for its reply; an error of the engine is raised."""
        number = next(self._requests)
        self._replies[number] = reply = asyncio.get_running_loop().create_future()
        self.message(kind, number, *values)
        await reply

    def finish(self, outcome: Outcome, error: RemoteError | None = None) -> None:
        """End it with the outcome of its handler."""
        self._end(("end", ProcessEnd(outcome, error, True), self._sent))

    def lose(self, why: str) -> None:
        """End it without an outcome: its executor has lost it, which is a failed attempt."""
        self._end(WorkerLost(why))

    def send(self, data: bytes) -> None:
        """Take a message of the engine: a reply, or the request to stop."""
        kind, *values = pickle.loads(data)  # noqa: S301 - from the engine of this process
        if kind == "reply":
            number, _, error = values
            reply = self._replies.pop(number, None)
            if reply is not None and not reply.done():
                reply.set_result(None) if error is None else reply.set_exception(error)
        elif kind == "stop":
            self.is_stopped, self.is_terminated = True, values[0]
            if not self.is_pulled:
                self._forget(self)
                self.finish(Cancelled("terminated before it started") if values[0] else Release("its server stopped"))

    def close(self) -> None:
        """End the requests that have no reply."""
        for reply in self._replies.values():
            reply.cancel()

    def kill(self) -> None:
        """Take it from its executor, whose settle is refused from now on."""
        self._forget(self)
        self.lose("its executor did not end it in time")


def end_call(call: PulledCall, ending: Ending, result_limit: int) -> ProcessEnd | str:
    """Return the end of a call, or why the ending is refused.

    Args:
        result_limit: maximum size of a result in bytes.
    """
    outcome: Outcome
    match ending:
        case Succeed() if ending.why:
            outcome = not_kept(ending.why)
        case Succeed():
            outcome = done(ending.result, result_limit)
        case RetryLater():
            outcome = Retry(ending.delay, ending.why, _failure(ending.error))
        case Die():
            outcome = Dead(ending.why, _failure(ending.error))
        case SnoozeTask():
            outcome = Snooze(ending.delay, ending.why)
        case HandBack():
            outcome = Release(ending.why)
        case Stopped() if not call.is_stopped:
            return "the server did not ask the executor to stop it: settle it with another outcome"
        case Stopped():
            outcome = Cancelled() if call.is_terminated else Interrupted()
        case _:
            assert_never(ending)
    error = ending.error if isinstance(ending, (RetryLater, Die)) else None
    return ProcessEnd(outcome, None if error is None else _remote(error), True)


def _failure(error: ExecutorError | None) -> Failure | None:
    return None if error is None else Failure(error.type, error.message, error.traceback)


def _remote(error: ExecutorError) -> RemoteError:
    return RemoteError("", error.type, error.message, error.traceback, {})
