"""StoredSteps: reads and writes the steps of one attempt in the database of its runner."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from runner.db.errors import row_fault
from runner.engine.executing.child_calls import ChildCalls
from runner.engine.executing.handler_context import HandlerTransaction
from runner.engine.executing.notes import NotesWriter
from runner.engine.executing.outages import waiting
from runner.engine.executing.sealing import call_codec, seal_text
from runner.engine.running import Running
from runner.errors import FencedOut, RowLocked
from runner.handlers.keyring import Vault
from runner.handlers.own_transaction import OwnTransaction
from runner.model.step import StepKind, StepWrite, StoredStep
from runner.model.task import NewTask
from runner.model.text_limits import ERROR_LIMIT
from runner.queries.task.results import TaskResult
from runner.store.signals import receive
from runner.store.steps import StepOwner, load_steps, save_step, saving

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

SEALED = (StepKind.FUNCTION, StepKind.CALL)
"""The kinds of steps whose results are encrypted."""


class StoredSteps:
    """The steps of one attempt in the database.

    Args:
        running: the attempt.
        writer: writes the notes of the same runner, from the same event loop.
        calls: submits the children of the same runner.
    """

    def __init__(self, running: Running, writer: NotesWriter, calls: ChildCalls) -> None:
        self._running, self._writer, self._database = running, writer, writer.database
        self._calls = calls
        self._progressed = True

    async def load(self) -> list[StoredStep]:
        """Read the steps of the task."""
        with waiting(self._running):
            stored = await self._database.read(load_steps, self._running.task.id)
        if (vault := self._running.vault) is None:
            return stored
        return await call_codec(vault, lambda: [_opened(vault, step) for step in stored])

    async def save(self, write: StepWrite) -> None:
        """Store a step."""
        if (vault := self._running.vault) is not None:
            plain = write
            write = await call_codec(vault, lambda: _sealed(vault, plain))
        if not await self._when_free(lambda: self._database.write(save_step, self._owner(write.done), write)):
            raise self._fenced_out()
        self._progressed = self._progressed and not write.done

    async def receive(self, wait: StepWrite, timed_out: bool) -> StepWrite:
        """Take the signal that a wait is for, or store the wait; return it as it is stored."""
        held, stored = await self._when_free(
            lambda: self._database.write(receive, self._owner(done=False), wait, timed_out=timed_out)
        )
        if not held:
            raise self._fenced_out()
        if stored.done and (notes := self._running.notes) is not None:
            notes.line(logging.INFO, _end_of(stored))
        return stored

    async def call(self, call: StepWrite, task: NewTask, child: int | None) -> tuple[int, TaskResult | None, bool]:
        """Submit a child, unless it has an id, and read its end."""
        if child is None:
            caller = self._running.task
            child = await self._when_free(lambda: self._calls.submit(caller, self._owner(done=False), call, task))
        if child is None:
            raise self._fenced_out()
        with waiting(self._running):
            return child, *await self._calls.end(child, in_vault=self._running.vault is not None)

    def transaction(self, write: Callable[[Any], StepWrite], /) -> OwnTransaction:
        """Open a transaction whose commit stores a step; `write` makes it of the transaction's `result`."""
        return HandlerTransaction(
            self._database,
            self._running,
            lambda tx, result: saving(
                tx, self._owner(done=True), _sealed(self._running.vault, write(result)), waits=True
            ),
            completes=False,
        )

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Run a coroutine function on the event loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(work(), self._writer.loop)

    def _owner(self, done: bool) -> StepOwner:
        task = self._running.task
        return StepOwner(task.id, task.fence, task.attempt, self._writer.runner_id(), done and self._progressed)

    def _fenced_out(self) -> FencedOut:
        return FencedOut(id=self._running.task.id, fence=self._running.task.fence)

    async def _when_free(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write as soon as no other transaction locks the row of the task."""
        task, stuck = self._running.task, self._writer.stuck
        while True:
            try:
                with waiting(self._running):
                    value = await write()
            except RowLocked as error:
                if (fault := row_fault(error)) is not None:
                    stuck.set_apart("step", task.id, task.handler, fault)
                await asyncio.sleep(stuck.until_due("step", task.id) or 0.0)
            else:
                stuck.free("step", [task.id])
                return value


def _end_of(wait: StepWrite) -> str:
    """The end of a sleep or a wait, for the log of the attempt."""
    if wait.result is None:
        return f"{wait.name}: its time has passed"
    by = json.loads(wait.result)["by"]
    return f"{wait.name}: received signal {wait.signal}{'' if by is None else f' from {by}'}"


def _sealed(vault: Vault | None, step: StepWrite) -> StepWrite:
    """Encrypt the result and the failure of a function or a call; signals are not encrypted."""
    if vault is None or step.kind not in SEALED:
        return step
    result = None if step.result is None else vault.seal("checkpoint", step.result)
    return step._replace(result=result, error=step.error and seal_text(vault, step.error, ERROR_LIMIT))


def _opened(vault: Vault, step: StoredStep) -> StoredStep:
    if step.result is None or step.kind not in SEALED:
        return step
    return step._replace(result=vault.open("checkpoint", step.result))
