"""ChildCalls: submits the children of attempts, and reads their ends."""

import asyncio
from collections.abc import Callable

from runner.client.payload_sealing import PayloadSealing
from runner.client.placement import Placement
from runner.client.sealed_results import any_sealed, opened
from runner.db.database import Database
from runner.db.needs import Needs, needs
from runner.db.transaction import Transaction
from runner.errors import TaskNotFound, TwoShards
from runner.handlers.hooks import submitting
from runner.model.sealed import hide_sealed
from runner.model.step import StepWrite
from runner.model.task import CURRENT_TASK, Claimed, NewTask, State
from runner.queries.task.results import TaskResult, endings
from runner.settings import Settings
from runner.store.calls import submit_child
from runner.store.steps import StepOwner


class ChildCalls:
    """The children of the attempts of a runner.

    Args:
        settings: the keys, the limit of payloads, the shards, and whether a submit wakes other runners.
        on_submit: called after each submit.
    """

    def __init__(self, database: Database, settings: Settings, on_submit: Callable[[], None]) -> None:
        self._database, self._sealing, self._on_submit = database, PayloadSealing(settings), on_submit
        self._notify, self._shard = settings.notify, settings.shard
        self._placement = Placement(settings) if settings.shards else None

    async def submit(self, caller: Claimed, owner: StepOwner, call: StepWrite, task: NewTask) -> int | None:
        """Submit a child, inside the functions of @around_submit.

        Returns:
            Its id, or that of the task that holds its unique key; None if the runner no longer holds the caller.

        Raises:
            TwoShards: the child belongs to another shard.
        """
        token = CURRENT_TASK.set(caller)  # a process asks in the context of an earlier task
        try:
            return await self._submit(owner, call, task)
        finally:
            CURRENT_TASK.reset(token)

    async def _submit(self, owner: StepOwner, call: StepWrite, task: NewTask) -> int | None:
        with submitting([self._placed(owner.task_id, task)]) as around:
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

    def _placed(self, caller: int, task: NewTask) -> NewTask:
        """Return a child with the route of its caller, unless it has one."""
        if self._placement is None:
            return task
        shard, (placed,) = self._placement.place([task])
        if shard != self._shard:
            why = f"route {task.route!r} is in {shard}, and task {caller}, which calls its task, in {self._shard}"
            raise TwoShards(why=why)
        return placed

    async def end(self, child: int, *, in_vault: bool) -> tuple[TaskResult | None, bool]:
        """Return the end of a child, decrypted; None while it is live.

        Args:
            in_vault: True if the caller is encrypted too. Otherwise the failure of an encrypted child stays hidden,
                because an error that leaves the handler is stored.

        Returns:
            The end, and whether the steps of the caller may contain it.

        Raises:
            TaskNotFound: the child was deleted.
        """
        found = await self._database.read(_ending, child)
        if child not in found:
            raise TaskNotFound(id=child)
        ending = found[child]
        if ending is None or not any_sealed(found):
            return ending, True
        plain = await asyncio.to_thread(opened, found, self._sealing.keyring)
        if in_vault:
            return plain[child], True
        if ending.state is State.SUCCEEDED:
            return plain[child], False
        error, message, trace = (hide_sealed(text or "") for text in (ending.error, ending.message, ending.traceback))
        return ending._replace(error=error or None, message=message, traceback=trace), True


@needs(Needs.PREPARED)
async def _ending(tx: Transaction, id: int) -> dict[int, TaskResult | None]:
    return await tx.follow(endings(tx, [id]))
