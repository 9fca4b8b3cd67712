"""Drain: runs due tasks one after the other, with the code of a runner."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.schema import Tables
from runner.db.transaction import Transaction
from runner.db.types import EARLIEST, Instant, db_later
from runner.engine.claiming.claims import handler_defaults
from runner.engine.events import Events
from runner.engine.executing.attempt_outcome import AttemptLimits, done
from runner.engine.executing.child_calls import ChildCalls
from runner.engine.executing.executor import Executor
from runner.engine.executing.handler_context import StoredParentResults, completing_transaction
from runner.engine.executing.notes import NotesWriter
from runner.engine.executing.sealing import Sealing
from runner.engine.executing.step_store import StoredSteps
from runner.engine.hosting.hooks import Hooks, Middleware, attempt_end, call_after_settle
from runner.engine.hosting.resources import OpenResources
from runner.engine.lease.identity import release
from runner.engine.running import ChunkRunning, Running, in_context
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.handlers.hooks import LIFE_CYCLE, HookName
from runner.handlers.keyring import Keyring
from runner.handlers.own_transaction import OwnTransaction
from runner.handlers.registry import Handler
from runner.model.outcome import Outcome
from runner.model.task import Claimed
from runner.policy.lanes import Lane, Lanes
from runner.policy.positions import LanePosition
from runner.settings import Settings
from runner.store.claim.plain import Claimant, claim
from runner.store.claim.survey import survey
from runner.store.registration import Identity, leave, register
from runner.store.settle import Settlement, settle


async def advance(tx: Transaction, seconds: float) -> None:
    """Let time pass: later tasks become due, ages grow, and keys held for a time expire.

    Args:
        tx: open transaction.
        seconds: time to pass; not negative.
    """
    for table in _tables_with_times(tx.tables):
        times = [column for column in table.c if isinstance(column.type, Instant)]
        await tx.execute(sa.update(table).values({column.name: db_later(column, -seconds) for column in times}))


def _tables_with_times(tables: Tables) -> list[sa.Table]:
    """All tables without runners, whose leases must stay valid, and minutes, which must stay whole."""
    others = (tables.runner, tables.ended_runner, tables.minute)
    return [table for table in tables.metadata.tables.values() if table not in others]


LEASE = 3600.0
"""Lease in seconds; long, so that no task is rescued while a test is paused in a debugger."""

MOST = 10_000
"""Maximum number of tasks per drain, because handlers that submit tasks could keep it busy without end."""


class Ran(NamedTuple):
    """One attempt of a drain.

    Args:
        id: task id.
        handler: handler name.
        verb: move of the task: succeed, retry, die, snooze or cancel.
        reason: reason, unless it succeeded.
    """

    id: int
    handler: str
    verb: str
    reason: str | None


@dataclass
class Drain:
    """Runs due tasks in order, one at a time, or one chunk.

    Args:
        database: database with the tasks.
        settings: settings of the runner.
        handlers: handlers to run, by name; other tasks stay as they are.
        replacements: objects to use instead of opening the resource with their name.
        threads: runs plain functions inside a transaction that is not ours, in which `ctx.transaction()` is not
            available; None for threads of its own.
    """

    database: Database
    settings: Settings
    handlers: Mapping[str, Handler]
    replacements: Mapping[str, Any] = field(default_factory=dict)
    threads: Any = None

    def __post_init__(self) -> None:
        self._resources = OpenResources((), self.replacements)
        self._around = LIFE_CYCLE.of("around_execute")
        self._hooks = Hooks(self._resources.values, Events(), self.threads)

    async def run(self, ahead: float = 0.0) -> list[Ran]:
        """Run due tasks and the tasks that they trigger, until none is due.

        Args:
            ahead: maximum time in seconds to advance when nothing is due, for retries and scheduled tasks.

        Returns:
            The attempts in order.
        """
        identity = Identity("test", 0, release(), sorted(self.handlers), 1)
        runner_id = await self.database.write(register, identity, LEASE)
        resolver = DependencyResolver(self.database, False, Events(), StuckRows())
        ran: list[Ran] = []
        try:
            while len(ran) < MOST:
                lanes = await self._lanes()
                tasks = await self._claim_next(lanes, runner_id)
                if tasks:
                    ran += await self._attempts(tasks, runner_id)
                elif not await resolver.resolve_all():
                    continue
                elif lanes.next_due is not None and lanes.next_due <= ahead:
                    ahead -= lanes.next_due
                    await self.database.write(advance, lanes.next_due + 0.001)
                else:
                    break
        finally:
            await self._resources.close()
            await self.database.write(leave, runner_id)
        return ran

    async def _lanes(self) -> Lanes:
        start = LanePosition(self.database.dialect.position(EARLIEST), 0)
        lanes = Lanes(lambda lane: lane.handler in self.handlers, start)
        lanes.survey(await self.database.read(survey))
        return lanes

    async def _claim_next(self, lanes: Lanes, runner_id: int) -> list[Claimed]:
        """Claim the next task, and for a chunk handler those that its chunk has room for."""
        claimed = await self._claim(lanes.positions, runner_id, 1)
        option = self.handlers[claimed[0].handler].defaults.chunk if claimed else None
        if option is None or option.size == 1:
            return claimed
        name = claimed[0].handler
        own = {lane: position for lane, position in lanes.positions.items() if lane.handler == name}
        return claimed + await self._claim(own, runner_id, option.size - 1)

    async def _claim(self, positions: Mapping[Lane, LanePosition], runner_id: int, limit: int) -> list[Claimed]:
        if not positions:
            return []
        handler_terms = {name: handler_defaults(handler, self.settings) for name, handler in self.handlers.items()}
        claimant = Claimant(runner_id, "test", int(self.settings.payload_limit))
        return await self.database.write(claim, claimant, positions, handler_terms, limit)

    async def _attempts(self, tasks: Sequence[Claimed], runner_id: int) -> list[Ran]:
        """Run the tasks of a claim: a single one, or those of a chunk handler, in a chunk for each tenant."""
        handler, slots = self.handlers[tasks[0].handler], Slots("drain", 1)
        await self._open_for(handler)
        running = [Running(task, handler, slots) for task in tasks]
        option = handler.defaults.chunk
        if option is None:
            return [await self._end(each, await self._outcome(each, runner_id), runner_id) for each in running]
        chunks = dict[str | None, ChunkRunning]()
        for each in running:
            if (chunk := chunks.get(each.task.tenant)) is None:
                chunks[each.task.tenant] = ChunkRunning(each, option)
            else:
                chunk.add(each)
        ran: list[Ran] = []
        for chunk in chunks.values():
            ran += [await self._end(*ended, runner_id) for ended in await self._chunk_outcomes(chunk, runner_id)]
        return ran

    async def _end(self, running: Running, outcome: Outcome, runner_id: int) -> Ran:
        """Write the outcome of an attempt."""
        task, took = running.task, time.monotonic() - running.started
        failure = getattr(outcome, "failure", None)
        reason = failure.reason if failure else getattr(outcome, "why", None)
        if running.done_in_tx:
            await self._call_hooks(running, "succeed", outcome, took, runner_id)
            return Ran(task.id, task.handler, "succeed", reason)
        plan = running.handler.defaults.retry or self.settings.retry
        headers = running.task.headers if running.has_new_headers else None
        settlement = Settlement(task.id, task.fence, outcome, None, plan, headers=headers)
        settled = await self.database.write(settle, runner_id, [settlement])
        verb = settled.verbs.get(task.id, "fenced")
        await self._call_hooks(running, verb, outcome, took, runner_id)
        return Ran(task.id, task.handler, verb, reason)

    async def _open_for(self, handler: Handler) -> None:
        """Open the resources of a handler, the middleware and the hooks, so that a test opens no others."""
        events: tuple[HookName, ...] = ("around_execute", "on_success", "on_failure", "on_retry", "on_dead")
        handler.require_resources()
        callbacks = [callback for event in events for callback in LIFE_CYCLE.of(event)]
        names = {*handler.resources.values(), *(name for item in callbacks for name in item.require().values())}
        await self._resources.require(names)

    async def _call_hooks(self, running: Running, verb: str, outcome: Outcome, took: float, runner_id: int) -> None:
        if self._hooks.listens(verb) or running.after_settled:
            end = attempt_end(running, verb, outcome, took, runner_id)
            in_context(running, call_after_settle, running, end)
            self._hooks.call(end)
            await self._hooks.drain(LEASE)

    async def _outcome(self, running: Running, runner_id: int) -> Outcome:
        running.started = time.monotonic()
        async with self._executor(runner_id) as executor:
            return await asyncio.ensure_future(executor.execute(running, lambda _: None))

    async def _chunk_outcomes(self, chunk: ChunkRunning, runner_id: int) -> list[tuple[Running, Outcome]]:
        for running in (chunk, *chunk.members):
            running.started = time.monotonic()
        async with self._executor(runner_id) as executor:
            return await asyncio.ensure_future(executor.execute_chunk(chunk, lambda _: None))

    @asynccontextmanager
    async def _executor(self, runner_id: int) -> AsyncIterator[Executor]:
        limits, keyring = AttemptLimits.of(self.settings), Keyring(self.settings)
        notes = NotesWriter(self.database, self.settings, lambda: runner_id, StuckRows(), Events())
        calls = ChildCalls(self.database, self.settings, lambda: None)
        executor = Executor(
            1,
            limits,
            partial(self._transaction, runner_id, limits) if self.threads is None else None,
            lambda running: StoredParentResults(self.database, running, asyncio.get_running_loop(), keyring),
            self._resources.values,
            Middleware(self._around, self._resources.values),
            notes.begin,
            sealing=Sealing(keyring),
            steps=lambda running: StoredSteps(running, notes, calls),
            pool=self.threads,
        )
        try:
            yield executor
        finally:
            await notes.flush()
            await executor.close()

    def _transaction(self, runner_id: int, limits: AttemptLimits, running: Running) -> OwnTransaction:
        return completing_transaction(self.database, runner_id, running, partial(done, limit=limits.result))
