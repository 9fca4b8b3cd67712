"""Runners resolve dependencies immediately and find missed ones."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.transaction import Transaction
from runner.engine.settling import dependency_resolver
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.handlers.context import Context
from runner.model.outcome import Dead
from runner.model.task import DependsOn, OrderKey, State
from runner.store.dependencies.followers import release_followers
from runner.store.dependencies.resolve import FinishedParent
from tests.conftest import on_sqlite
from tests.engine.harness import Harness, until


def after(*parents: Any, on_failure: Any = "wait") -> dict[str, Any]:
    return {"after": tuple(DependsOn(parent, on_failure) for parent in parents)}


@pytest.fixture
def order(harness: Harness) -> list[int]:
    """The tasks that were executed, in order; those called `fail` are dead then."""
    executed: list[int] = []

    @harness.handler("step")
    async def step(ctx: Context) -> None:
        executed.append(ctx.id)

    @harness.handler("fail")
    async def fail(ctx: Context) -> Dead:
        executed.append(ctx.id)
        return Dead("no")

    return executed


async def test_a_chain_runs_in_order_without_delay(harness: Harness, order: list[int]) -> None:
    ids = [await harness.submit("step")]
    for _ in range(9):
        ids.append(await harness.submit("step", **after(ids[-1])))
    await harness.work(poll_interval="1h")
    assert order == ids


@on_sqlite  # where one writer waits for all others
async def test_only_tasks_with_followers_in_their_order_key_are_released_by_a_write(
    harness: Harness, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = list[int]()

    async def release(tx: Transaction, parents: Sequence[int], *, notify: bool = True) -> int:
        released.extend(parents)
        return await release_followers(tx, parents, notify=notify)

    monkeypatch.setattr(dependency_resolver, "release_followers", release)
    parent = await harness.submit("step")
    child = await harness.submit("step", **after(parent))
    await harness.work(poll_interval="1h")
    assert (order, released) == ([parent, child], [])
    first, second = [await harness.submit("step", order_key=OrderKey("k", "wait")) for _ in range(2)]
    await harness.work(poll_interval="1h")
    assert order[2:] == [first, second]
    assert first in released


async def test_a_chain_of_an_order_key_leaves_no_other_dependent_behind(
    harness: Harness, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_sweep(_resolver: DependencyResolver) -> None: ...

    monkeypatch.setattr(DependencyResolver, "sweep", no_sweep)
    chain = [await harness.submit("step", order_key=OrderKey("k")) for _ in range(5)]
    others = [await harness.submit("step", **after(parent)) for parent in chain]
    async with harness.running(poll_interval="1h"):
        await harness.wait_for(*chain, *others)
    assert [id for id in order if id in chain] == chain


async def test_a_chain_that_is_cancelled_is_cancelled_to_its_end(harness: Harness, order: list[int]) -> None:
    ids = [await harness.submit("fail")]
    for _ in range(5):
        ids.append(await harness.submit("step", **after(ids[-1], on_failure="cancel")))
    runner = await harness.work(poll_interval="1h")
    assert order == ids[:1]
    assert [await harness.state(id) for id in ids] == [State.DEAD, *[State.CANCELLED] * 5]
    assert runner.metrics.verbs["cancel"] == 5


async def test_an_idle_runner_ends_despite_unresolvable_dependencies(harness: Harness, order: list[int]) -> None:
    dead = await harness.submit("fail")
    blocked = await harness.submit("step", **after(dead))
    unborn = await harness.run("step", **after(("step", "never")))
    assert [await harness.state(id) for id in (blocked, unborn)] == [State.BLOCKED] * 2
    assert order == [dead]


async def test_any_runner_finds_missed_dependents(harness: Harness, order: list[int]) -> None:
    parent = await harness.submit("step")
    child = await harness.submit("step", **after(parent))
    async with harness.running(poll_interval="50ms") as runner:
        runner.dependency_resolver.add = lambda tasks: None  # type: ignore[method-assign] # as if it had died in between
        await harness.wait_for(parent, child)
    assert order == [parent, child]


FORBIDDEN = {
    "sqlite": "CREATE TRIGGER forbidden BEFORE UPDATE ON task WHEN NEW.key = 'no' AND NEW.state = 'waiting' "
    "BEGIN SELECT RAISE(ABORT, 'no'); END",
    "postgresql": "ALTER TABLE task ADD CONSTRAINT forbidden CHECK (key <> 'no' OR state <> 'waiting')",
}
"""Rules of an owner by which the database refuses to unblock the task with the key `no`."""


async def test_a_row_that_no_database_takes_holds_up_no_other(
    harness: Harness, order: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    parent = await harness.submit("step")
    children = [await harness.submit("step", key="no" if n == 2 else None, **after(parent)) for n in range(5)]
    await harness.change(sa.text(FORBIDDEN[harness.database.dialect.name]))
    async with harness.running():
        await harness.wait_for(parent, *(id for id in children if id != children[2]))
    assert await harness.state(children[2]) == State.BLOCKED
    assert sorted(order) == [parent, *(id for id in children if id != children[2])]
    assert f"task {children[2]} (step): " in caplog.text
    assert "its dependency is not resolved" in caplog.text


async def test_while_nothing_waits_that_is_asked_now_and_then_and_nothing_else(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.settling.dependency_resolver.CHECK_INTERVAL", 3_600.0)
    asked: list[str] = []
    runner = harness.runner()
    read = runner.database.read

    async def counting(verb: Any, *args: Any) -> Any:
        asked.append(verb.__name__)
        return await read(verb, *args)

    runner.database.read = counting  # type: ignore[method-assign, assignment] # looks over its shoulder
    telling = asyncio.ensure_future(runner.dependency_resolver.run())
    for id in range(1, 200):
        runner.dependency_resolver.add([FinishedParent(id, "step", None)])
    await until(lambda: runner.dependency_resolver.idle)
    runner.dependency_resolver.add([FinishedParent(200, "step", None)])
    await asyncio.sleep(0)
    telling.cancel()
    await runner.database.dispose()
    assert asked == ["any_open"]
