"""Claims while surveys are slow, because an old snapshot of another client keeps the entries of claimed tasks."""

import asyncio
import time
from collections import Counter
from math import inf
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.server_watch import AnswerLimits
from runner.db.types import db_later, db_now
from runner.engine.claiming import survey
from runner.engine.events import TasksRescued
from runner.engine.runner import Engine
from runner.errors import DatabaseUnavailable
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from runner.operations.resume import resume
from runner.policy import positions
from runner.policy.polling import SHARE, Pace
from tests.conftest import on_postgresql
from tests.engine.harness import Harness, until

pytestmark = on_postgresql

EARLIER: dict[str, Any] = {"handler": "work", "run_at": db_later(db_now(), -3600.0)}
"""A task before the positions that claims have passed."""

WORK, ANA = PauseTarget(PauseKind.HANDLER, "work"), Actor("ana", "desk", None)


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


async def surveys_beside(harness: Harness, runner: Engine) -> None:
    """Wait until surveys run beside the claims, and none is in progress."""
    await has_a_known_lane(harness, runner)
    await until(lambda: runner.claimer._beside.is_needed() and runner.claimer._beside._task is None)


async def test_a_task_of_a_known_lane_needs_no_survey(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await surveys_beside(harness, runner)
        monkeypatch.setattr(runner.claimer.survey, "beside", asyncio.Event().wait)  # from now on, no survey ends
        await harness.wait_for(await harness.submit("work"))
    assert done == {"work": 2}


async def test_one_long_survey_makes_the_next_ones_run_beside_the_claims(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "QUICK", inf)
    monkeypatch.setattr(survey, "LONG", -1.0)
    first = await harness.submit("work")
    async with harness.running(poll_interval="1h") as runner:
        await harness.wait_for(first)
        claimer = runner.claimer
        (position,) = claimer.lanes.passed(claimer.lanes.lately).values()
        assert position > claimer.lanes.start
        await until(lambda: claimer._beside.is_needed() and claimer._beside._task is None)
        await harness.wait_for(await harness.submit("other"))
        monkeypatch.setattr(survey, "LONG", inf)
        assert not claimer._beside.is_needed()
    assert done == {"work": 1, "other": 1}


async def test_a_survey_beside_the_claims_finds_other_lanes(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        await harness.wait_for(await harness.submit("other"), await harness.submit("work", queue="elsewhere"))
    assert done == {"work": 2, "other": 1}


async def test_a_submit_of_which_no_claim_takes_a_task_makes_the_survey_early(
    harness: Harness, done: Counter[str]
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await surveys_beside(harness, runner)
        runner.claimer.survey.pace = Pace(every=inf)
        runner.claimer.survey.pace.record(0.0, 0.0)
        await harness.wait_for(await harness.submit("other"))
    assert done == {"work": 1, "other": 1}


async def test_a_rescue_makes_the_survey_early(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "POSITION_LAG", 0.0)
    async with harness.running(poll_interval="1h") as runner:
        await surveys_beside(harness, runner)
        await harness.wait_for(await harness.submit("work"))
        await until(lambda: runner.claimer.idle and runner.claimer._beside._task is None)
        runner.claimer.survey.pace = Pace(every=inf)
        runner.claimer.survey.pace.record(0.0, 0.0)
        await harness.change(sa.insert(harness.database.tables.task).values(EARLIER))
        runner.events.publish(TasksRescued({}))
        await until(lambda: done["work"] == 3)


async def test_a_survey_beside_the_claims_finds_tasks_before_their_position(
    harness: Harness, done: Counter[str]
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        task = harness.database.tables.task
        await harness.change(sa.insert(task).values(EARLIER))
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: done["work"] == 2)
    assert done == {"work": 2, "other": 1}


async def test_claims_under_a_limit_continue_from_their_old_position(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "POSITION_LAG", 0.0)
    await harness.database.write(set_limits, WORK, LimitEdit({"concurrency": "5"}, new=True), ANA)
    async with harness.running(poll_interval="1h") as runner:
        await surveys_beside(harness, runner)
        for _ in range(2):
            await harness.wait_for(await harness.submit("work"))
        ((lane, old),) = runner.claimer.lanes.passed(runner.claimer.lanes.lately).items()
        assert (lane.handler, runner.claimer.lanes.limited.has_limits(lane)) == ("work", True)
        assert old > runner.claimer.lanes.start
        # A survey beside the claims finds a task before it.
        await harness.change(sa.insert(harness.database.tables.task).values(EARLIER))
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: done["work"] == 4)
    assert done == {"work": 4, "other": 1}


async def test_claims_under_a_limit_per_tenant_continue_from_the_position_of_each(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "POSITION_LAG", 0.0)
    await harness.database.write(set_limits, WORK, LimitEdit({"per-tenant": "5"}, new=True), ANA)
    async with harness.running(poll_interval="1h") as runner:
        await surveys_beside(harness, runner)
        lanes = runner.claimer.lanes
        for _ in range(3):
            await harness.wait_for(await harness.submit("work", tenant="acme"))
        ((lane, tenants),) = lanes.limited.tenants.items()
        (known,) = tenants.following("", 9, inf)
        assert (lane.handler, known.tenant) == ("work", "acme")
        assert known.old > lanes.start
        # A survey beside the claims may have noted the first task of the lane.
        assert all(position.id == positions.FIRST_ID for position in lanes.passed(lanes.lately).values())
        # Surveys find tasks before the position of their tenant, and those of other tenants, some at a time.
        monkeypatch.setattr(survey, "MOST_VISITS", 1)
        task = harness.database.tables.task
        await harness.change(sa.insert(task).values([EARLIER | {"tenant": name} for name in ("acme", "bolt")]))
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: done["work"] == 6)
        await harness.database.write(set_limits, WORK, LimitEdit({"per-tenant": "none", "concurrency": "5"}), ANA)
        await harness.wait_for(await harness.submit("work", tenant="acme"))
        assert lanes.limited.tenants == {}, "without a limit per tenant"
    assert done == {"work": 7, "other": 1}


async def test_a_slow_renewal_does_not_make_surveys_quick(harness: Harness, done: Counter[str]) -> None:
    async with harness.running() as runner:
        await until(lambda: runner.lease.answer_time() < inf)
        usual = runner.lease.answer_time()
        runner.lease._answers.append(60.0)
        assert runner.lease.answer_time() <= usual
    assert not done


async def test_tasks_that_become_due_need_no_submit(harness: Harness, done: Counter[str]) -> None:
    async with harness.running() as runner:
        await has_a_known_lane(harness, runner)
        await harness.wait_for(await harness.submit("work", delay=0.2), await harness.submit("other", delay=0.2))
    assert done == {"work": 2, "other": 1}


async def test_lanes_that_become_due_one_after_the_other_start(harness: Harness, done: Counter[str]) -> None:
    async with harness.running() as runner:
        await has_a_known_lane(harness, runner)
        first = await harness.submit("work", delay=0.3)
        await harness.wait_for(first, await harness.submit("other", delay=0.6), await harness.submit("work", delay=0.9))
    assert done == {"work": 3, "other": 1}


async def test_a_scan_without_a_submit_asks_for_a_survey(harness: Harness, done: Counter[str]) -> None:
    """As after a rescue, whose tasks are before the positions of their lanes."""
    async with harness.running(poll_interval="1h", notify=False) as runner:
        await until(lambda: runner.lease.answer_time() < inf)
        for name in ("work", "other"):
            task = await harness.submit(name)
            runner.scans.soon()
            await harness.wait_for(task)
        await harness.change(sa.insert(harness.database.tables.task).values(EARLIER))
        runner.scans.soon()
        await until(lambda: done["work"] == 2)


async def test_a_submit_during_a_scan_asks_for_a_survey(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.running(poll_interval="1h", notify=False) as runner:
        await until(lambda: runner.lease.answer_time() < inf)
        claimer, claim_round = runner.claimer, runner.claimer._claim_round
        first = await harness.submit("work")
        runner.scans.soon()
        await harness.wait_for(first)
        second: list[int] = []

        async def submit_other() -> int | None:
            if not second:
                second.append(await harness.submit("other"))
                await claimer.scan(submitted=True)
            return await claim_round()

        monkeypatch.setattr(claimer, "_claim_round", submit_other)
        runner.scans.soon()
        await until(lambda: bool(second))
        await harness.wait_for(*second)


class FailsOnce:
    """A database whose first answer is lost."""

    def __init__(self, database: Database) -> None:
        self._database, self.dialect = database, database.dialect
        self.calls = 0

    async def read(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise DatabaseUnavailable(url="test", why="the answer was lost")
        return await self._database.read(*args)


async def test_a_survey_that_fails_is_tried_again(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        await until(lambda: runner.claimer._beside._task is None)
        runner.claimer.survey._database = fails = FailsOnce(runner.database)  # type: ignore[assignment]
        await harness.wait_for(await harness.submit("other"))
    assert fails.calls > 1
    assert done["other"] == 1


async def test_no_scan_waits_for_a_survey_after_the_surveys_are_quick_again(
    harness: Harness, done: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        claimer = runner.claimer
        await has_a_known_lane(harness, runner)
        await until(lambda: claimer._beside._task is None)
        claimer._beside.ask()
        monkeypatch.setattr(survey, "QUICK", inf)
        await harness.wait_for(await harness.submit("other"))
        await until(lambda: claimer.idle and claimer._next_timer is None)
    assert done["other"] == 1


async def test_a_submit_during_a_survey_waits_for_the_pace(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        beside, pace = runner.claimer._beside, runner.claimer.survey.pace
        await until(lambda: beside._task is None)
        beside._task = asyncio.ensure_future(asyncio.sleep(0))
        beside.reset()  # The scan of the first submit may have asked for an early one.
        beside.ask()
        now = time.monotonic()
        pace.record(now - 100.0, now)
        pace.record(now - 100.0, now)
        beside._task = None
        beside.begin_if_due()
        assert beside._task is None
        assert beside.wait(now) == pytest.approx(100.0 * SHARE)
    assert done["work"] == 1


async def test_locked_tasks_do_not_hide_those_of_other_lanes(
    harness: Harness, rival: Database, done: Counter[str]
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        await harness.pause("held")
        locked = [await harness.submit("work", queue="held", priority=9) for _ in range(8)]
        task = harness.database.tables.task
        async with rival.writing() as tx:
            await tx.rows(sa.select(task.c.id).where(task.c.id.in_(locked)).with_for_update())
            await harness.database.write(resume, PauseTarget(PauseKind.QUEUE, "held"), ANA)
            await harness.wait_for(await harness.submit("other", priority=1))
        await harness.wait_for(*locked)
    assert done == {"work": 9, "other": 1}


@pytest.mark.slow
async def test_a_survey_beside_the_claims_may_take_longer_than_other_answers(
    harness: Harness, done: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.running(poll_interval="1h") as runner:
        await has_a_known_lane(harness, runner)
        beside = runner.claimer._beside
        await until(lambda: beside._task is None)
        ends = list[bool]()
        beside._on_end = lambda: ends.append(beside.has_ended)
        limit = AnswerLimits.of_lease(runner.settings.lease_timeout.total_seconds()).statement
        assert limit is not None
        async with harness.database.writing() as tx:
            await tx.execute(sa.text("LOCK TABLE task"))
            end = time.monotonic() + limit + 0.5
            beside.ask(early=True)

            def is_over() -> bool:
                beside.begin_if_due()
                return time.monotonic() > end

            await until(is_over)
        await until(lambda: any(ends))
    assert not [record for record in caplog.records if "survey failed" in record.getMessage()]


async def test_every_task_of_many_lanes_is_claimed(harness: Harness, done: Counter[str]) -> None:
    async with harness.running(claim_batch_size=3):
        ids = [await harness.submit("work", queue=f"q{number % 12}", priority=1 + number % 3) for number in range(60)]
        await harness.wait_for(*ids)
    assert done == {"work": 60}
