"""drain: do what is due, one task after the other, with the code that a runner does it with."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from runner.columns import EARLIEST
from runner.engine.concluding import Concluding
from runner.engine.execute import Executor
from runner.engine.following import Following
from runner.engine.lease import release
from runner.engine.result import done
from runner.engine.slots import Running, Slots
from runner.engine.tally import Tally
from runner.engine.terms import terms
from runner.handlers import Handler
from runner.outcome import Outcome
from runner.policy.selection import Lanes, Place
from runner.settings import Settings
from runner.store.claim import Claimant, claim
from runner.store.database import Database
from runner.store.runners import Identity, leave, register
from runner.store.settle import Settlement, settle
from runner.store.survey import survey
from runner.task import Claimed
from runner.testing.clock import advance

LEASE = 3600.0
"""Seconds: nobody takes over from a test that stands still in a debugger."""

MOST = 10_000
"""Tasks after which a drain stops: handlers that submit tasks of their own could keep it busy for ever."""


class Ran(NamedTuple):
    """One attempt that a drain made.

    Args:
        id: the task's.
        handler: its handler's name.
        verb: what became of it: succeed, retry, bury, snooze or cancel.
        reason: why, when it did not succeed.
    """

    id: int
    handler: str
    verb: str
    reason: str | None


@dataclass
class Drain:
    """Runs due tasks in order, alone.

    Args:
        database: that holds them.
        settings: of a runner.
        handlers: that are run, by name; the tasks of others are left.
    """

    database: Database
    settings: Settings
    handlers: Mapping[str, Handler]

    async def run(self, ahead: float = 0.0) -> list[Ran]:
        """Run what is due, and what that leads to, until nothing is due.

        Args:
            ahead: seconds by which time may be advanced when nothing is due, to when something is: for retries, and
                for what is scheduled.

        Returns:
            The attempts that were made, in order.
        """
        identity = Identity("test", 0, release(), sorted(self.handlers), 1)
        runner_id = await self.database.write(register, identity, LEASE)
        following = Following(self.database, False, Tally(), lambda: None)
        ran: list[Ran] = []
        try:
            while len(ran) < MOST:
                lanes = await self._lanes()
                task = await self._claimed(lanes, runner_id)
                if task is not None:
                    ran.append(await self._attempt(task, runner_id))
                elif not await following.exhausted():
                    continue
                elif lanes.next_due is not None and lanes.next_due <= ahead:
                    ahead -= lanes.next_due
                    await self.database.write(advance, lanes.next_due + 0.001)
                else:
                    break
        finally:
            await self.database.write(leave, runner_id)
        return ran

    async def _lanes(self) -> Lanes:
        start = Place(self.database.dialect.instant(EARLIEST), 0)
        lanes = Lanes(lambda lane: lane.handler in self.handlers, start)
        lanes.survey(await self.database.ask(survey))
        return lanes

    async def _claimed(self, lanes: Lanes, runner_id: int) -> Claimed | None:
        if not lanes:
            return None
        given = {name: terms(handler, self.settings) for name, handler in self.handlers.items()}
        claimed = await self.database.state(claim, Claimant(runner_id, "test"), lanes.places, given, 1)
        return claimed[0] if claimed else None

    async def _attempt(self, task: Claimed, runner_id: int) -> Ran:
        running = Running(task, self.handlers[task.handler], Slots("drain", 1))
        outcome = await self._outcome(running, runner_id)
        failure = getattr(outcome, "failure", None)
        reason = failure.reason if failure else getattr(outcome, "why", None)
        if running.concluded:
            return Ran(task.id, task.handler, "succeed", reason)
        plan = running.handler.defaults.retry or self.settings.retry
        settlement = Settlement(task.id, task.fence, outcome, None, plan)
        settled = await self.database.write(settle, runner_id, [settlement])
        return Ran(task.id, task.handler, settled.verbs.get(task.id, "fenced"), reason)

    async def _outcome(self, running: Running, runner_id: int) -> Outcome:
        limit = int(self.settings.result_limit)
        timeout = self.settings.timeout.total_seconds() if self.settings.timeout else None
        executor = Executor(
            1,
            timeout,
            limit,
            lambda running: Concluding(self.database, runner_id, running, partial(done, limit=limit)),
        )
        try:
            return await executor.execute(running, lambda: None)
        finally:
            executor.close()
