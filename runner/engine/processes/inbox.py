"""AttemptInbox: the messages of a handler outside of its runner, executed in their order."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from runner.engine.processes.messages import ProcessEnd, error_of
from runner.engine.running import Running
from runner.errors import DatabaseUnavailable, StoreError
from runner.handlers.dependencies import ParentResults
from runner.model.outcome import Failure, Outcome, Retry
from runner.model.step import StepWrite


def ignored(_number: int, _value: Any, _error: BaseException | None) -> None:
    """The reply after the end of an attempt."""


def state_text(running: Running) -> str | None:
    """The state of the last checkpoint, as JSON text; None without one."""
    return None if running.notes is None or running.notes.state is None else json.dumps(running.notes.state)


class AttemptInbox:
    """The messages of one handler: its notes, its requests, and its end.

    Args:
        parents: returns the reader of `ctx.batch.results()`; None without a database.
        reply: sends the handler the number of a request, its value, and its error; raises if it cannot pickle them.
    """

    def __init__(
        self,
        running: Running,
        parents: Callable[[Running], ParentResults] | None,
        reply: Callable[[int, Any, BaseException | None], object],
    ) -> None:
        self._running, self._parents, self._send_reply = running, parents, reply
        self.ending: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        """Receives the outcome."""
        self.outcome: Outcome | None = None
        self.crashed = False
        """True if its process ended before the handler."""
        self.outage: StoreError | None = None
        """The outage in a call of the Context for which the handler waited until its timeout."""
        self._messages: deque[tuple[str, list[Any]]] = deque()
        self._is_open = False
        self._request: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Execute the messages from now on: the attempt has a slot."""
        self._is_open = True
        self._read()

    def receive(self, kind: str, values: list[Any]) -> None:
        """Take a message; it waits for the slot, and for the reply to an earlier one."""
        self._messages.append((kind, values))
        self._read()

    def close(self) -> None:
        """Send no more replies: the handler has ended. With the attempt, the reply would be a reference cycle."""
        self._send_reply = ignored

    def end(self, end: ProcessEnd | Exception) -> None:
        """End the attempt: its handler has ended, or its process crashed or could not start it."""
        if isinstance(end, Exception):
            self._running.error, self.crashed = end, True
            self.outcome = Retry(failure=Failure(type(end).__name__, str(end.args[0]), "".join(end.args[1:])))
        else:
            self._running.error = error_of(end.error)
            self.outcome = end.outcome
        if not self.ending.done():
            self.ending.set_result(self.outcome)

    def _read(self) -> None:
        while self._messages and self._is_open and self._request is None:
            kind, values = self._messages.popleft()
            self._execute(kind, values, self._running)

    def _execute(self, kind: str, values: list[Any], running: Running) -> None:
        if kind == "part":
            position, kind, *values = values
            running = running.parts()[position]
            if running.notes is None:
                running.make_context(running)  # begins its notes
        notes = running.notes
        match kind:
            case "end" | "fail":
                self.end(values[0])
            case "line" | "progress" if notes is not None:
                getattr(notes, kind)(*values)
            case "keep" if notes is not None:
                notes.keep(json.loads(values[0]))
            case "outcome":
                running.decision, running.error = values[0], error_of(values[1])
            case "save" | "parents" | "load_steps" | "save_step" | "receive" | "call":
                self._request = asyncio.ensure_future(self._reply(running, kind, *values))

    async def _reply(self, running: Running, kind: str, number: int, *values: Any) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            if kind == "parents" and self._parents is not None:
                value = await self._parents(running).read()
            elif kind in ("load_steps", "save_step", "receive", "call"):
                value = await self._ask_steps(running, kind, *values)
            elif running.notes is not None:
                await running.notes.save(json.loads(values[0]))
        except Exception as failure:
            error = failure
            if isinstance(failure, DatabaseUnavailable) and any(kind == "end" for kind, _ in self._messages):
                self.outage = failure
        try:
            self._send_reply(number, value, error)
        except Exception as failure:  # the value or the error cannot be pickled
            reason = error or failure
            self._send_reply(number, None, RuntimeError(f"{type(reason).__name__}: {reason}"))
        self._request = None
        self._read()

    async def _ask_steps(self, running: Running, kind: str, *values: Any) -> Any:
        store = running.store_of_steps()
        match kind, values:
            case "load_steps", ():
                return [tuple(step) for step in await store.load()]
            case "save_step", (write,):
                return await store.save(StepWrite(*write))
            case "call", (call, task, child):
                return await store.call(StepWrite(*call), task, child)
            case _, (wait, timed_out):
                return tuple(await store.receive(StepWrite(*wait), timed_out))
