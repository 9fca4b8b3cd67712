"""Runners repair the sequences of ids, and finish all tasks but those whose ids were used before."""

import pytest

from runner.db.migrations.sequences import reused_ids
from tests.db.test_sequences import set_back
from tests.engine.harness import Harness, until


async def test_a_reused_id_stops_no_other_task(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> str:
        return "done"

    async with harness.running() as runner:
        old = await harness.submit("work")
        await harness.wait_for(old)
        await set_back(harness.database)
        assert await harness.submit("work") == old
        others = [await harness.submit("work") for _ in range(3)]
        for other in others:
            await harness.wait_for(other)
        assert await harness.database.read(reused_ids) == [old]
        await until(lambda: [row.task for row in runner.stuck.rows("settle")] == [old])


async def test_a_runner_repairs_the_sequences_at_its_start(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    old = await harness.submit("work")
    async with harness.running():
        await harness.wait_for(old)
    await set_back(harness.database)
    async with harness.running() as runner:
        await until(lambda: runner.claimer.open)
        new = await harness.submit("work")
        await harness.wait_for(new)
    assert new > old
    assert f"is at id 0, but rows have ids up to {old}" in caplog.text
