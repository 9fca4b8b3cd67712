"""Random handlers of steps, calls, sleeps and waits, whose runner dies between any two statements.

No stored result changes, no step that is done runs again, each signal is received once, in its order, and each call
submits one child, also if that is retried.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.engine.events import Events
from runner.engine.executing.durable_steps import DurableSteps
from runner.engine.executing.step_store import StoredSteps
from runner.engine.periodic.signal_look import SignalLook
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.engine.stuck_rows import StuckRows
from runner.errors import TaskFailed
from runner.handlers.steps import StepCall, Suspension
from runner.model.outcome import Done, Outcome, Retry
from runner.model.step import StepWrite
from runner.model.task import NewTask
from runner.settings import Settings
from runner.store.submit import submit
from tests.engine.step_attempts import end_children, retry_children, stored_steps
from tests.programs import ROOT
from tests.store.runners import Runner

pytestmark = pytest.mark.both_databases
HISTORIES = int(os.environ.get("STEP_HISTORIES", "5"))
KILLS = os.environ.get("STEP_KILLS", "50")
SETTINGS = Settings()
T = TypeVar("T")


class Killed(BaseException):
    """The runner dies."""


class MortalStore(StoredSteps):
    """The store of steps of a runner that dies at one of its statements, before or after it takes effect."""

    chance = 0.0
    random = random.Random()

    async def _mortal(self, call: Callable[[], Awaitable[T]]) -> T:
        if self.random.random() < self.chance:
            raise Killed
        value = await call()
        if self.random.random() < self.chance:
            raise Killed
        return value

    async def load(self) -> Any:
        return await self._mortal(super().load)

    async def save(self, write: StepWrite) -> None:
        await self._mortal(lambda: StoredSteps.save(self, write))

    async def receive(self, wait: StepWrite, timed_out: bool) -> StepWrite:
        return await self._mortal(lambda: StoredSteps.receive(self, wait, timed_out))

    async def call(self, call: StepWrite, task: NewTask, child: int | None) -> Any:
        return await self._mortal(lambda: StoredSteps.call(self, call, task, child))


class History:
    """One task with a random list of functions, calls, sleeps and waits.

    Args:
        nursery: a runner of the children.
    """

    def __init__(self, database: Database, runner: Runner, nursery: Runner, seed: int) -> None:
        self.database, self.runner, self.random = database, runner, random.Random(seed)
        self.nursery = nursery
        self.parts = [
            self.random.choice(("call", "flaky", "sleep", "wait", "hasty", "child", "twins")) for _ in range(8)
        ]
        self.resolver = DependencyResolver(database, False, Events(), StuckRows())
        self.look = SignalLook(database, Events(), StuckRows())
        self.sent = 0
        self.runs: list[int] = []
        self.seen: list[tuple[Any, ...]] = []
        self.done: tuple[Any, ...] | None = None

    async def send(self) -> None:
        """Insert the next signal, as a client may at any time."""
        self.sent += 1
        values = {"task_id": self.id, "name": "go", "payload": str(self.sent)}
        async with self.database.writing() as tx:
            await tx.execute(sa.insert(tx.tables.signal).values(**values))
        if self.random.random() < 0.5:
            await self.look.run()

    async def call(self, place: int) -> int:
        """Return another number each time."""
        self.runs.append(place)
        if self.parts[place] == "flaky" and self.runs.count(place) < 3:
            raise ConnectionError
        return 100 * place + self.runs.count(place)

    async def body(self, steps: DurableSteps) -> None:
        values: list[Any] = []
        self.seen.append(())
        for place, part in enumerate(self.parts):
            if self.random.random() < 0.2:
                await self.send()
            if part == "sleep":
                await steps.sleep(60, None)
                values.append("slept")
            elif part in ("wait", "hasty"):
                found = await steps.wait_for("go", 60 if part == "hasty" else None)
                values.append(found and found.payload)
            elif part == "child":
                values.append(await steps.call(f"child-{place}", NewTask("child")))
            elif part == "twins":
                twins = [steps.call(f"{name}-{place}", NewTask("child")) for name in "ab"]
                values.append(tuple(await asyncio.gather(*twins)))
            else:
                retry = "1m,1m,1m" if part == "flaky" else None
                values.append(await steps.step(StepCall(f"call-{place}", self.call, (place,), {}, retry, False)))
            self.seen[-1] = tuple(values)
        self.done = tuple(values)

    async def live(self) -> None:
        self.id = await self.database.write(submit, NewTask("work", max_attempts=1_000))
        for _ in range(200):
            if await self.attempt():
                return
            await self.let_time_pass()
        raise AssertionError(f"it does not end: {self.parts}, {self.seen[-1]}")

    async def attempt(self) -> bool:
        """One attempt; True at the end of the task."""
        (task,) = await self.runner.claim(1)
        store = stored_steps(self.runner, task, self.body, MortalStore)
        store.random, store.chance = self.random, 0.07
        job = asyncio.current_task()
        try:
            await self.body(DurableSteps(task, store, 1_000, lambda: asyncio.current_task() is job))
        except Killed:
            await self.change(state="waiting", runner_id=None, run_at=db_now())  # as a rescue does
            return False
        except Suspension as suspension:
            outcome: Outcome = suspension.outcome
            if self.random.random() < 0.3:
                await self.send()
            if self.random.random() < 0.3:
                await end_children(self.nursery, self.random)
        except TaskFailed:
            outcome = Retry("0s")
            await retry_children(self.database, self.random)
        else:
            outcome = Done()
        settled = await self.runner.end(task, outcome)
        assert settled.verbs
        return settled.verbs[task.id] == "succeed"

    async def let_time_pass(self) -> None:
        """Start a task whose signal has arrived; otherwise send one, or let its time come."""
        await self.look.run()
        async with self.database.reading() as tx:
            step, signal, task = tx.tables.step.c, tx.tables.signal.c, tx.tables.task.c
            arrived = sa.select(signal.id).where(signal.task_id == self.id, signal.received_at.is_(None))
            waits = sa.select(step.name).where(step.task_id == self.id, step.done_at.is_(None), step.signal == "go")
            has_signal, waits_for_it = [bool(await tx.rows(each.limit(1))) for each in (arrived, waits)]
            (row,) = await tx.rows(sa.select(task.run_at <= db_now(), task.state).where(task.id == self.id))
        if row.state == "blocked":
            await end_children(self.nursery, self.random)
            await self.resolver.resolve_all()
            return
        if row[0]:
            return
        assert not (has_signal and waits_for_it), "a signal does not start the task that waits for it"
        if waits_for_it and (self.parts.count("hasty") == 0 or self.random.random() < 0.5):
            await self.send()
            await self.let_time_pass()
            return
        async with self.database.writing() as tx:
            table = tx.tables.step
            past = db_later(db_now(), -1)
            mine = (table.c.task_id == self.id) & table.c.done_at.is_(None) & table.c.due_at.is_not(None)
            await tx.execute(sa.update(table).where(mine).values(due_at=past))
        await self.change(run_at=db_now())

    async def change(self, **values: Any) -> None:
        async with self.database.writing() as tx:
            await tx.execute(sa.update(tx.tables.task).where(tx.tables.task.c.id == self.id).values(**values))

    async def check(self) -> None:
        assert self.done is not None
        async with self.database.reading() as tx:
            child = tx.tables.dependency.c
            called = await tx.rows(sa.select(child.parent_id).where(child.task_id == self.id, child.step.is_not(None)))
        assert len(called) == self.parts.count("child") + 2 * self.parts.count("twins")
        assert all(seen == self.done[: len(seen)] for seen in self.seen), self.seen
        numbers = [
            value
            for part, value in zip(self.parts, self.done, strict=True)
            if part in ("wait", "hasty") and value is not None
        ]
        assert numbers == [*range(1, len(numbers) + 1)], (self.parts, self.done)
        assert all(value is not None for part, value in zip(self.parts, self.done, strict=True) if part == "wait")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("seed", range(2))
async def test_no_death_of_a_runner_changes_a_step_or_loses_a_signal_or_a_child(database: Database, seed: int) -> None:
    runner = await Runner.enter(database, lease=3600)
    nursery = await Runner.enter(database, "child", lease=3600)
    for number in range(HISTORIES):
        history = History(database, runner, nursery, seed * 1_000_003 + number)
        await history.live()
        await history.check()
    async with database.reading() as tx:
        child, past = tx.tables.dependency.c, tx.tables.history.c
        called = {row[0] for row in await tx.rows(sa.select(child.parent_id).where(child.step.is_not(None)))}
        assert called == {row[0] for row in await tx.rows(sa.select(past.id).where(past.handler == "child"))}


@pytest.mark.slow
def test_no_kill_of_a_process_changes_a_stored_step_or_loses_a_signal(migrated_url: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.engine.killed_steps", migrated_url, str(tmp_path), "1", KILLS]
    done = subprocess.run(program, cwd=ROOT, check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["kills"] >= int(KILLS)
