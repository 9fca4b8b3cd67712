"""The steps of an attempt that a test executes without an engine, and the children of its calls."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any, TypeVar

import sqlalchemy as sa

from runner.db.database import Database
from runner.engine.executing.child_calls import ChildCalls
from runner.engine.executing.step_store import StoredSteps
from runner.engine.running import Running
from runner.engine.slots import Slots
from runner.engine.stuck_rows import StuckRows
from runner.handlers.registry import Handler, Options
from runner.model.outcome import Dead, Done
from runner.model.task import Claimed
from runner.operations.results import Actor, Target
from runner.operations.retry import requeue
from runner.settings import Settings
from tests.store.runners import Runner

S = TypeVar("S", bound=StoredSteps)


def stored_steps(runner: Runner, task: Claimed, body: Any, kind: type[S]) -> S:
    """The store of the steps of a task that a runner has claimed.

    Args:
        body: the function of its handler.
    """
    running = Running(task, Handler("work", body, Options()), Slots("async", 1))
    writer: Any = SimpleNamespace(
        database=runner.database, runner_id=lambda: runner.id, stuck=StuckRows(), loop=asyncio.get_running_loop()
    )
    return kind(running, writer, ChildCalls(runner.database, Settings(), lambda: None))


async def end_children(runner: Runner, draw: random.Random) -> None:
    """Let each due child succeed with a number of its own, or die."""
    for child in await runner.claim():
        dies = draw.random() < 0.25
        await runner.end(child, Dead("no paper") if dies else Done(str(1_000 * child.id + child.fence)))


async def retry_children(database: Database, draw: random.Random) -> None:
    """Retry dead children, as an operator does at any time."""
    async with database.reading() as tx:
        past = tx.tables.history.c
        rows = await tx.rows(sa.select(past.id, past.version).where(past.handler == "child", past.state == "dead"))
    if draw.random() < 0.7:
        targets = [Target(row.id, row.version) for row in rows]
        await database.write(requeue, targets, Actor("ana", "desk", "test"))
