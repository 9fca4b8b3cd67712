"""ChildCalls: submits the children of attempts, and reads their ends."""

import asyncio
from collections.abc import Callable

from runner.client.payload_sealing import PayloadSealing
from runner.client.sealed_results import any_sealed, opened
from runner.db.database import Database
from runner.db.needs import Needs, needs
from runner.db.transaction import Transaction
from runner.errors import TaskNotFound
from runner.handlers.hooks import submitting
from runner.model.step import StepWrite
from runner.model.task import NewTask
from runner.queries.task.results import TaskResult, endings
from runner.settings import Settings
from runner.store.calls import submit_child
from runner.store.steps import StepOwner


class ChildCalls:
    """The children of the attempts of a runner.

    Args:
        settings: the keys, the limit of payloads, and whether a submit wakes other runners.
        on_submit: called after each submit.
    """

    def __init__(self, database: Database, settings: Settings, on_submit: Callable[[], None]) -> None:
        self._database, self._sealing, self._on_submit = database, PayloadSealing(settings), on_submit
        self._notify = settings.notify

    async def submit(self, owner: StepOwner, call: StepWrite, task: NewTask) -> int | None:
        """Submit a child, inside the functions of @around_submit.

        Returns:
            Its id, or that of the task that holds its unique key; None if the runner no longer holds the caller.
        """
        with submitting([task]) as around:
            tasks = around.tasks
            if self._sealing.may_block(tasks):
                tasks = await asyncio.to_thread(self._sealing.tasks, tasks)
            else:
                tasks = self._sealing.tasks(tasks)
            result = await self._database.write(submit_child, owner, call, tasks[0], notify=self._notify)
            if result is None:
                return None
            around.result = result
        self._on_submit()
        return result.ids[0]

    async def end(self, child: int) -> tuple[TaskResult | None, bool]:
        """Return the end of a child, decrypted; None while it is live. The flag is True if it was encrypted.

        Raises:
            TaskNotFound: the child was deleted.
        """
        found = await self._database.read(_ending, child)
        if child not in found:
            raise TaskNotFound(id=child)
        sealed = any_sealed(found)
        if sealed:
            found = await asyncio.to_thread(opened, found, self._sealing.keyring)
        return found[child], sealed


@needs(Needs.PREPARED)
async def _ending(tx: Transaction, id: int) -> dict[int, TaskResult | None]:
    return await tx.follow(endings(tx, [id]))
