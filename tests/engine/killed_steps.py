"""Random handlers of steps, calls, sleeps and waits, in processes that are killed at any moment.

    python -m tests.engine.killed_steps URL FOLDER SEED KILLS

A process without threads and connections forks a process per attempt, and kills it with SIGKILL. What the functions
saw is in a file, which outlives them. The processes end the children of the calls too, and are killed while they do.
"""

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.engine.events import Events
from runner.engine.executing.durable_steps import DurableSteps
from runner.engine.executing.step_store import StoredSteps
from runner.engine.periodic.signal_look import SignalLook
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.engine.stuck_rows import StuckRows
from runner.errors import DatabaseUnavailable, TaskFailed
from runner.handlers.steps import StepCall, Suspension
from runner.model.outcome import Done, Outcome, Retry
from runner.model.task import NewTask
from runner.settings import Settings
from runner.store.claim.plain import Claimant, HandlerDefaults
from runner.store.submit import submit
from runner.urls import parse_url
from tests.engine.step_attempts import end_children, retry_children, stored_steps
from tests.store.runners import Runner

TERMS = HandlerDefaults(1_000_000, None)
KINDS = ("step", "step", "flaky", "sleep", "wait", "hasty", "call", "twins")
CHILDREN = {"call": 1, "twins": 2}
PARTS = 8
LONGEST = 0.04
"""Seconds of an attempt, until some were measured."""

CALM = 0.1
"""The part of the processes that are not killed."""

ENDED, GOES_ON = 40, 41
"""Exit codes of processes."""


class Attempt:
    """The work of one process.

    Args:
        parts: the kinds of the steps.
        journal: the file of what the functions saw.
    """

    def __init__(self, database: Database, task_id: int, parts: list[str], journal: Path, seed: int) -> None:
        self.database, self.id, self.parts, self.journal = database, task_id, parts, journal
        self.random = random.Random(seed)

    def note(self, *values: object) -> None:
        """Append a line, which outlives this process."""
        descriptor = os.open(self.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps(values) + "\n").encode())
        os.close(descriptor)

    async def send(self) -> None:
        """Insert the next signal; its payload is its number."""
        async with self.database.writing() as tx:
            table = tx.tables.signal
            count = await tx.scalar(sa.select(sa.func.count()).where(table.c.task_id == self.id))
            await tx.execute(sa.insert(table).values(task_id=self.id, name="go", payload=str(count + 1)))

    async def step(self, place: int) -> int:
        """Return another number each time."""
        self.note("run", place)
        runs = sum(line == ["run", place] for line in lines(self.journal))
        if self.parts[place] == "flaky" and runs < 3:
            raise ConnectionError
        return 100 * place + runs

    async def body(self, steps: DurableSteps) -> None:
        values: list[Any] = []
        for place, part in enumerate(self.parts):
            if self.random.random() < 0.2:
                await self.send()
            if part == "sleep":
                await steps.sleep(60, None)
                values.append("slept")
            elif part in ("wait", "hasty"):
                found = await steps.wait_for("go", 60 if part == "hasty" else None)
                values.append(found and found.payload)
            elif part == "call":
                values.append(await steps.call(f"call-{place}", NewTask("child")))
            elif part == "twins":
                twins = [steps.call(f"{name}-{place}", NewTask("child")) for name in "ab"]
                values.append(await asyncio.gather(*twins))
            else:
                retry = "1m,1m,1m,1m,1m,1m" if part == "flaky" else None
                values.append(await steps.step(StepCall(f"step-{place}", self.step, (place,), {}, retry, False)))
            self.note("saw", *values)

    async def live(self) -> bool:
        """Continue the task; True at its end."""
        await self.let_time_pass()
        runner = Runner(self.database, Claimant(1, "here"), {"work": TERMS})
        claimed = await runner.claim(1)
        if not claimed:
            return await self.has_ended()
        (task,) = claimed
        job = asyncio.current_task()
        try:
            store = stored_steps(runner, task, self.body, StoredSteps)
            steps = DurableSteps(task, store, 1_000, lambda: asyncio.current_task() is job)
            await self.body(steps)
        except Suspension as suspension:
            outcome: Outcome = suspension.outcome
            if self.random.random() < 0.3:
                await self.end_children()
        except TaskFailed:
            outcome = Retry("0s")
            await retry_children(self.database, self.random)
        else:
            outcome = Done()
        await runner.end(task, outcome)
        return await self.has_ended()

    async def has_ended(self) -> bool:
        """True at the end of the task; its number of children is in the journal then."""
        async with self.database.reading() as tx:
            if await tx.rows(sa.select(tx.tables.task.c.id).where(tx.tables.task.c.id == self.id)):
                return False
            number = 0
            for table in (tx.tables.task, tx.tables.history):
                later = (table.c.handler == "child") & (table.c.id > self.id)
                number += await tx.scalar(sa.select(sa.func.count()).where(later))
        self.note("children", number)
        return True

    async def end_children(self) -> None:
        """End the due children with a runner of their own."""
        await end_children(Runner(self.database, Claimant(1, "here"), {"child": TERMS}), self.random)

    async def let_time_pass(self) -> None:
        """Return the tasks of a dead runner to the queue, and let a child or a sleep end, or a signal arrive."""
        async with self.database.writing() as tx:
            task, step, signals = tx.tables.task, tx.tables.step, tx.tables.signal
            mine = task.c.id == self.id
            await tx.execute(sa.update(task).where(task.c.state == "running").values(state="waiting", runner_id=None))
            blocked = await tx.rows(sa.select(task.c.id).where(mine, task.c.state == "blocked"))
            open_wait = (step.c.task_id == self.id) & step.c.done_at.is_(None)
            arrived = sa.select(signals.c.id).where(signals.c.task_id == self.id, signals.c.received_at.is_(None))
            waits = sa.select(step.c.name).where(open_wait, step.c.signal == "go", step.c.due_at.is_(None))
            needs_signal = await tx.rows(waits.limit(1)) and not await tx.rows(arrived.limit(1))
        if blocked:
            await self.end_children()
            await DependencyResolver(self.database, False, Events(), StuckRows()).resolve_all()
        if needs_signal:
            await self.send()
        if self.random.random() < 0.5:
            await SignalLook(self.database, Events(), StuckRows()).run()
        async with self.database.writing() as tx:
            past = db_later(db_now(), -1)
            await tx.execute(sa.update(step).where(open_wait, step.c.due_at.is_not(None)).values(due_at=past))
            await tx.execute(sa.update(task).where(mine, task.c.state == "waiting").values(run_at=db_now()))


def lines(journal: Path) -> list[list[Any]]:
    """The complete lines of a journal."""
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def check(parts: list[str], journal: Path) -> None:
    """Compare what each attempt saw.

    No stored result changes, no stored step runs again, and no signal or child is lost.
    """
    seen: list[list[Any]] = []
    stored = set[int]()
    for kind, *values in lines(journal):
        if kind == "run":
            assert values[0] not in stored, f"step {values[0]} ran after its result was used"
        elif kind == "children":
            assert values == [sum(CHILDREN.get(part, 0) for part in parts)], f"{values[0]} children of {parts}"
        else:
            seen.append(values)
            stored |= {place for place in range(len(values)) if parts[place] in ("step", "flaky")}
    done = seen[-1]
    assert len(done) == len(parts)
    assert all(values == done[: len(values)] for values in seen), seen
    waited = [(part, value) for part, value in zip(parts, done, strict=True) if part in ("wait", "hasty")]
    numbers = [value for _, value in waited if value is not None]
    assert numbers == [*range(1, len(numbers) + 1)], done
    assert all(value is not None for part, value in waited if part == "wait"), done


class Process:
    """A fork that runs a coroutine, and is killed at a random moment of it.

    Args:
        work: takes a function that it calls when its statements begin.
    """

    lasted: ClassVar[deque[float]] = deque([LONGEST], maxlen=50)
    """Seconds of the last ones that were not killed, without their beginnings."""

    def __init__(self, work: Callable[[Callable[[], object]], Coroutine[Any, Any, bool]]) -> None:
        begun, self._begins = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                os._exit(ENDED if asyncio.run(work(self._begin)) else GOES_ON)
            except DatabaseUnavailable:  # a busy machine; the next process continues
                os._exit(GOES_ON)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        self._begin()
        os.read(begun, 1)  # until it has begun, or ended
        os.close(begun)

    def _begin(self) -> None:
        os.close(self._begins)

    def end(self, part: float | None) -> int | None:
        """Return the exit code; None if it was killed.

        Args:
            part: the part of the usual time after which it is killed; None waits for its end.
        """
        descriptor, started = os.pidfd_open(self._pid), time.monotonic()
        select.select([descriptor], [], [], None if part is None else part * sorted(self.lasted)[len(self.lasted) // 2])
        if part is None:
            self.lasted.append(time.monotonic() - started)
        else:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return None if code == -signal.SIGKILL else code


async def create(settings: Settings, file: Path, _begin: Callable[[], object]) -> bool:
    """Submit the task of a history, and write its id to a file."""
    database = Database.of(settings)
    await Runner.enter(database, lease=36_000)
    file.write_text(str(await database.write(submit, NewTask("work", max_attempts=TERMS.max_attempts))))
    await database.dispose()
    return True


async def live(
    settings: Settings, id: int, parts: list[str], journal: Path, seed: int, begin: Callable[[], object]
) -> bool:
    """Make one attempt; True at the end of the task."""
    database = Database.of(settings)
    async with database.reading() as tx:
        await tx.scalar(sa.select(sa.literal(1)))
    begin()
    try:
        return await Attempt(database, id, parts, journal, seed).live()
    finally:
        await database.dispose()


def main(url: str, folder: str, seed: str, kills: str) -> None:
    """Run histories until a number of processes were killed, and print the numbers."""
    choices, settings = random.Random(int(seed)), Settings(url=parse_url(url))
    counts = Counter[str]()
    _ = Database.of(settings).engine  # imports the driver once
    while counts["kills"] < int(kills):
        number = counts["histories"]
        parts, journal = [choices.choice(KINDS) for _ in range(PARTS)], Path(folder) / f"{seed}-{number}"
        created = Path(folder) / f"{seed}-{number}.id"

        assert Process(partial(create, settings, created)).end(None) == ENDED
        id = int(created.read_text())
        while True:
            attempt = Process(partial(live, settings, id, parts, journal, choices.getrandbits(32)))
            code = attempt.end(None if choices.random() < CALM else choices.uniform(0, 1.2))
            counts["kills" if code is None else "attempts"] += 1
            if code == ENDED:
                break
            assert code in (None, GOES_ON), f"history {number}: a process ended with {code}"
        check(parts, journal)
        counts["histories"] += 1
        journal.unlink()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
