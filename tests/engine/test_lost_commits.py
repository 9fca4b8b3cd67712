"""A settle whose answer is lost was written: it is recognised and counted, and nothing is called fenced out."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import sqlalchemy as sa

from runner.engine.runner import Engine
from runner.handlers.context import Context
from runner.model.outcome import Dead, Retry, Snooze
from runner.urls import parse_url
from tests.engine.harness import Harness, at_work, until
from tests.engine.lost_replies import LostCommits, losing_commits

pytestmark = pytest.mark.both_databases

MOVED = "INSERT INTO task_history"
FAILED = "INSERT INTO task_attempt"
COMMIT = "COMMIT\0"
"""The isolation level READ COMMITTED contains the word too."""


@pytest.fixture
async def commits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostCommits]:
    async with losing_commits(harness.url, monkeypatch) as commits:
        yield commits


def runner_of(harness: Harness, commits: LostCommits, **settings: Any) -> Engine:
    return harness.runner(
        url=parse_url(commits.url), notify=False, heartbeat_interval="1h", lease_timeout="6h", **settings
    )


async def counted(harness: Harness) -> dict[str, int]:
    """The counts of all minutes."""
    minute = harness.database.tables.minute.c
    names = ("submitted", "succeeded", "retried", "died", "cancelled")
    (row,) = await harness.rows(sa.select(*(sa.func.coalesce(sa.func.sum(minute[name]), 0) for name in names)))
    return {name: int(count) for name, count in zip(names, row, strict=True) if count}


async def test_successes_whose_commit_is_not_answered_are_counted(
    harness: Harness, commits: LostCommits, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = asyncio.Event()

    @harness.handler("work")
    async def work() -> None:
        await go_on.wait()

    tasks = [await harness.submit("work") for _ in range(4)]
    runner = runner_of(harness, commits)
    async with at_work(runner):
        await until(lambda: len(runner.worker.in_flight.started()) == 4)
        commits.lose(MOVED)
        go_on.set()
        await until(lambda: runner.metrics.verbs.total() == 4)
        await harness.wait_for(*tasks)
    assert commits.lost == 1
    assert runner.metrics.verbs == {"succeed": 4}
    assert await counted(harness) == {"submitted": 4, "succeeded": 4}
    assert "fenced" not in caplog.text


OUTCOMES: dict[str, tuple[Any, dict[str, int]]] = {
    "retry": (Retry("1h", why="no relay"), {"submitted": 1, "retried": 1}),
    "die": (Dead("no such customer"), {"submitted": 1, "died": 1}),
    "snooze": (Snooze("1h"), {"submitted": 1}),
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("verb", OUTCOMES)
async def test_other_outcomes_whose_commit_is_not_answered_are_counted(
    harness: Harness, commits: LostCommits, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome, counts = OUTCOMES[verb]
    go_on = asyncio.Event()

    @harness.handler("work", max_attempts=3)
    async def work() -> Any:
        await go_on.wait()
        return outcome

    task = await harness.submit("work")
    runner = runner_of(harness, commits)
    async with at_work(runner):
        await until(lambda: len(runner.worker.in_flight.started()) == 1)
        commits.lose(COMMIT if commits.url.startswith("postgresql") else "UPDATE task SET" if verb != "die" else MOVED)
        go_on.set()
        await until(lambda: runner.metrics.verbs.total() == 1)
    assert commits.lost == 1
    assert runner.metrics.verbs == {verb: 1}
    assert await counted(harness) == counts
    assert "fenced" not in caplog.text
    assert (await harness.row(task)).fence == 1


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_handlers_own_transaction_whose_commit_is_not_answered_is_a_success(
    harness: Harness, commits: LostCommits, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if commits.url.startswith("sqlite"):
        pytest.skip("its own connections are not those of the runner")
    await harness.change(sa.text("CREATE TABLE payment (id integer)"))
    pay = sa.text("INSERT INTO payment VALUES (7)")

    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(pay)
            commits.lose(COMMIT)

    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(pay)
            commits.lose(COMMIT)

    harness.handler("pay", max_attempts=3)(on_loop if kind == "async" else in_thread)
    task = await harness.submit("pay")
    runner = runner_of(harness, commits)
    async with at_work(runner):
        await until(lambda: runner.metrics.verbs.total() == 1)
    assert commits.lost == 1
    assert runner.metrics.verbs == {"succeed": 1}
    assert await counted(harness) == {"submitted": 1, "succeeded": 1}
    assert (await harness.row(task)).state == "succeeded"
    assert len(await harness.rows(sa.text("SELECT * FROM payment"))) == 1
    assert "fenced" not in caplog.text
