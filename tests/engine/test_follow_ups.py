"""A handler submits follow-up tasks in its own transaction: they exist if its task is done, and only then."""

from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, TaskHandler, handler
from tests.engine.harness import Harness

Later = TaskHandler[[int], Any, Any]


@pytest.fixture
def later(own_handlers: None) -> Later:
    @handler("test.later")
    def later(number: int) -> None: ...

    return later


def parent(harness: Harness, kind: str, later: Later, ends: Any) -> None:
    """A handler that submits a follow-up and then returns or raises as given."""

    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await later.options(tx=tx).submit_async(ctx.attempt)
            await tx.execute(ends, {"task": ctx.id})

    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as tx:
            later.options(tx=tx).submit(ctx.attempt)
            tx.execute(ends, {"task": ctx.id})

    harness.handler("parent", max_attempts=1)(on_loop if kind == "async" else in_thread)


async def follow_ups(harness: Harness) -> int:
    task = harness.database.tables.task
    return await harness.count(task, task.c.handler == "test.later")


each_kind = pytest.mark.parametrize("kind", ["async", "plain"])


@each_kind
async def test_a_follow_up_commits_with_the_end_of_its_parent(harness: Harness, later: Later, kind: str) -> None:
    parent(harness, kind, later, sa.text("SELECT :task"))
    task = await harness.run("parent")
    assert (await harness.state(task), await follow_ups(harness)) == ("succeeded", 1)


@pytest.mark.representatives(1)
@each_kind
@pytest.mark.parametrize(
    "ends",
    ["INSERT INTO nowhere VALUES (:task)", "UPDATE task SET fence = fence + 1 WHERE id = :task"],
    ids=["fails", "is fenced out"],
)
async def test_a_parent_that_is_not_done_has_no_follow_up(harness: Harness, later: Later, kind: str, ends: str) -> None:
    parent(harness, kind, later, sa.text(ends))
    task = await harness.run("parent")
    assert (await harness.state(task), await follow_ups(harness)) == ("dead", 0)
