"""Rows with which a trigger ends the session of the runner: set apart, while all others proceed."""

import logging
import re

import pytest
import sqlalchemy as sa

from runner.engine.runner import Engine
from runner.model.stuck_row import StuckCause
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until
from tests.triggers import accept, refuse

ENDED = re.compile(r"57P01 terminating connection due to administrator command \(function \w+\) \(the session ended\)")

pytestmark = on_postgresql


def apart(runner: Engine, verb: str) -> list[int]:
    """The tasks that a verb has set apart because they end its session."""
    rows = [row for row in runner.stuck.rows() if row.verb == verb and row.cause is StuckCause.REFUSED]
    return [row.task for row in rows if ENDED.fullmatch(row.fact)]


async def work(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...


@pytest.mark.representatives(1)
@pytest.mark.parametrize("neighbours", [0, 20])
async def test_a_claim_sets_the_row_apart(harness: Harness, caplog: pytest.LogCaptureFixture, neighbours: int) -> None:
    await work(harness)
    await refuse(harness.database, "UPDATE", when="{row}.key = 'bad' AND {row}.state = 'waiting'", ends_session=True)
    bad = await harness.submit("work", key="bad", priority=9)
    others = [await harness.submit("work") for _ in range(neighbours)]
    with caplog.at_level(logging.WARNING):
        async with harness.running() as runner:
            await harness.wait_for(*others)
            await until(lambda: apart(runner, "claim") == [bad])
            await harness.wait_for(await harness.submit("work"))
            await until(lambda: not runner.worker.buffer.stalled)
            await accept(harness.database)
            await harness.wait_for(bad)
    assert any(
        f"task {bad} (work)" in record.getMessage() and ENDED.search(record.getMessage()) for record in caplog.records
    )
    assert (await harness.row(bad)).attempt == 1, "a refused claim spends no attempt"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("neighbours", [0, 20])
async def test_a_settle_sets_the_row_apart(harness: Harness, neighbours: int) -> None:
    await work(harness)
    for event in ("UPDATE", "DELETE"):
        when = "{row}.key = 'bad' AND {row}.state = 'running'"
        await refuse(harness.database, event, when=when, ends_session=True, name=f"audit_{event.lower()}")
    bad = await harness.submit("work", key="bad", priority=9)
    others = [await harness.submit("work") for _ in range(neighbours)]
    async with harness.running() as runner:
        await harness.wait_for(*others)
        await until(lambda: apart(runner, "settle") == [bad])
        await harness.wait_for(await harness.submit("work"))
        await until(lambda: not runner.worker.buffer.stalled)
        for name in ("audit_update", "audit_delete"):
            await accept(harness.database, name=name)
        await harness.wait_for(bad)
    assert (await harness.row(bad)).attempt == 1


@pytest.mark.slow
async def test_a_claim_of_suspects_sets_the_row_apart(harness: Harness) -> None:
    await work(harness)
    bad, suspect = await harness.submit("work", key="bad"), await harness.submit("work")
    task = harness.database.tables.task
    await harness.change(sa.update(task).values(rescues=2, attempt=1, max_attempts=5))
    await refuse(harness.database, "UPDATE", ends_session=True)
    async with harness.running(heartbeat_interval="50ms") as runner:
        await harness.wait_for(suspect)
        await until(lambda: apart(runner, "claim") == [bad])
        await accept(harness.database)
        await harness.wait_for(bad)
