"""Claims while surveys are slow, because an old snapshot of another client keeps the entries of claimed tasks."""

from collections import Counter

import pytest
import sqlalchemy as sa

from runner.db.types import db_later, db_now
from runner.engine.claiming import survey
from runner.engine.runner import Engine
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until

pytestmark = on_postgresql


@pytest.fixture
def done(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The finished tasks by handler, of runners that find every survey slow."""
    monkeypatch.setattr(survey, "QUICK", -1.0)
    monkeypatch.setattr(survey, "ANSWERS", 0)
    tasks: Counter[str] = Counter()
    for name in ("work", "other"):

        @harness.handler(name)
        async def run(name: str = name) -> None:
            tasks[name] += 1

    return tasks


async def has_a_known_lane(harness: Harness, runner: Engine) -> None:
    """Wait until a claim has taken a task, after which its lane is known."""
    await until(lambda: runner.lease.id != 0)
    await harness.wait_for(await harness.submit("work"))
    assert runner.claimer.lanes.lately


async def test_a_task_of_a_known_lane_needs_no_survey(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        await until(lambda: runner.claimer._beside._task is None)
        runner.claimer.survey.pace.record(0.0, 1e9)
        runner.claimer.survey.pace.record(0.0, 1e9)
        await harness.wait_for(await harness.submit("work"))
        assert not runner.claimer.survey.pace.is_due(1e9)
    assert done == {"work": 2}


async def test_a_survey_beside_the_claims_finds_other_lanes(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        await harness.wait_for(await harness.submit("other"), await harness.submit("work", queue="elsewhere"))
    assert done == {"work": 2, "other": 1}


async def test_a_survey_beside_the_claims_finds_tasks_before_their_position(
    harness: Harness, done: Counter[str]
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        task = harness.database.tables.task
        values = {"handler": "work", "run_at": db_later(db_now(), -3600.0)}
        await harness.change(sa.insert(task).values(values))
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: done["work"] == 2)
    assert done == {"work": 2, "other": 1}


async def test_tasks_that_become_due_need_no_submit(harness: Harness, done: Counter[str]) -> None:
    async with harness.running() as runner:
        await has_a_known_lane(harness, runner)
        await harness.wait_for(await harness.submit("work", delay=0.2), await harness.submit("other", delay=0.2))
    assert done == {"work": 2, "other": 1}


async def test_every_task_of_many_lanes_is_claimed(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(claim_batch_size=3):
        ids = [await harness.submit("work", queue=f"q{number % 12}", priority=1 + number % 3) for number in range(60)]
        await harness.wait_for(*ids)
    assert done == {"work": 60}
