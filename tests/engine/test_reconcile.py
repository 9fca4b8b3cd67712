"""The tasks that the table gives to a runner are the tasks that its process has."""

import asyncio
import threading
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.engine.claiming.scan_state import Gate
from runner.engine.runner import Engine
from runner.model.outcome import Outcome, Release
from runner.model.task import Claimed, State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.store.claim.plain import claim
from runner.store.registration import Identity, register
from runner.store.settle import Settlement, settle
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until
from tests.engine.lost_replies import LateReplies, LostReplies

RELEASE = Release("the answer was lost")
RARE = {
    "poll_interval": "1h",
    "notify": False,
    "sqlite_poll_interval": "1h",
    "heartbeat_interval": "1h",
    "lease_timeout": "2h",
}
"""Settings of a runner that scans and renews its lease only when a test asks for it."""


async def submitted(harness: Harness, number: int, **options: Any) -> list[int]:
    return [await harness.submit("work", **options) for _ in range(number)]


async def ready(runner: Engine) -> None:
    await until(lambda: runner.claimer.idle)


async def has_running(harness: Harness, number: int) -> bool:
    task = harness.database.tables.task
    return await harness.count(task, task.c.state == State.RUNNING) == number


@pytest.mark.representatives(1)
@pytest.mark.parametrize("suspects", [False, True], ids=["claim", "claim_suspect"])
async def test_tasks_of_a_claim_whose_answer_is_lost_run_on_the_same_runner(
    harness: Harness, suspects: bool, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    @harness.handler("work", max_attempts=1)
    async def work() -> None:
        started.append(1)

    number = 1 if suspects else 7
    tasks = await submitted(harness, number)
    if suspects:
        await harness.change(sa.update(harness.database.tables.task).values(rescues=2))
    runner = harness.runner(concurrency=20)
    answers = LostReplies(runner.database, suspects)
    answers.most = 1
    async with at_work(runner):
        id_before = await has_an_id(runner)
        await harness.wait_for(*tasks)
        assert runner.lease.id == id_before, "one runner lives throughout"
    assert answers.lost == 1
    assert len(started) == number
    rows = [await harness.row(task) for task in tasks]
    assert {(row.state, row.attempt, row.releases) for row in rows} == {("succeeded", 1, 1)}
    warnings = [record.getMessage() for record in caplog.records if record.name == "runner.recovery"]
    noun = "task" if number == 1 else "tasks"
    assert warnings == [f"released {number} {noun}: the result of the claim never reached the runner"]


async def has_an_id(runner: Engine) -> int:
    await until(lambda: runner.lease.id != 0)
    return runner.lease.id


async def test_the_first_heartbeat_that_sees_a_stranger_releases_it(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    tasks = await submitted(harness, 3)
    async with harness.running(**RARE) as runner:
        await ready(runner)
        await harness.wait_for(*tasks)
        strangers = await submitted(harness, 3)
        await claimed_behind(harness, runner)
        assert await has_running(harness, 3)
        await runner._heartbeat()
        await until(lambda: has_running(harness, 0))
        await runner.claimer.scan()
        await harness.wait_for(*strangers)


async def claimed_behind(harness: Harness, runner: Engine) -> list[Claimed]:
    """Claim the due tasks for a runner, and keep the answer from it."""
    claims = runner.claims
    await runner.claimer.survey.run(claims.claimant)
    return await harness.database.write(claim, claims.claimant, claims.lanes.positions, claims.defaults, 100)


async def test_a_claim_in_flight_during_a_heartbeat_keeps_its_tasks(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[int] = []

    @harness.handler("work")
    async def work() -> None:
        started.append(1)

    tasks = await submitted(harness, 5)
    runner = harness.runner(concurrency=20, **RARE)
    late = LateReplies(runner.database)
    runner.claimer._database = late  # type: ignore[assignment]
    async with at_work(runner):
        async with asyncio.timeout(WAIT_SECONDS):
            await late.kept.wait()
        await runner._heartbeat()
        assert runner.reconciler._comparison is not None, "the heartbeat saw tasks that are not here yet"
        await runner._heartbeat()
        assert await has_running(harness, 5)
        late.go_on.set()
        await harness.wait_for(*tasks)
        await until(lambda: runner.reconciler._comparison is None)
    rows = [await harness.row(task) for task in tasks]
    assert {(row.state, row.attempt, row.releases, row.fence) for row in rows} == {("succeeded", 1, 0, 1)}
    assert len(started) == 5
    assert "released" not in caplog.text


async def test_a_reply_whose_heartbeat_began_during_a_comparison_is_ignored(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    async with harness.running(**RARE) as runner:
        await ready(runner)
        reconciler, claim_done = runner.reconciler, runner.claims.done
        (stranger,) = await submitted(harness, 1)
        await claimed_behind(harness, runner)
        claim_done.clear()
        await runner._heartbeat()
        assert reconciler._comparison is not None
        await runner._heartbeat()
        claim_done.set()
        await until(lambda: reconciler._comparison is None)
        await runner.claimer.scan()
        await begun.wait()
        await runner._heartbeat()
        await until(lambda: reconciler._comparison is None)
        assert await harness.state(stranger) == "running"
        go_on.set()
        await harness.wait_for(stranger)
    row = await harness.row(stranger)
    assert (row.state, row.attempt, row.releases) == ("succeeded", 1, 1)


async def test_outcomes_in_the_settle_buffer_are_no_strangers(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    tasks = await submitted(harness, 3)
    async with harness.running(**RARE | {"settle_interval": "1h"}) as runner:
        await until(lambda: len(runner.worker.buffer) == 3)
        assert await has_running(harness, 3)
        await runner._heartbeat()
        await until(lambda: runner.reconciler._comparison is None)
        runner.worker.buffer._ready.set()
        await harness.wait_for(*tasks)
    assert [(await harness.row(task)).releases for task in tasks] == [0, 0, 0]


async def test_a_terminate_request_for_a_stranger_takes_effect(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    async with harness.running(**RARE) as runner:
        await ready(runner)
        task = await harness.submit("work")
        await claimed_behind(harness, runner)
        row = await harness.row(task)
        asked = await harness.database.write(terminate, [Target(task, row.version)], Actor("ana", "desk", "wrong list"))
        assert asked.changed == [task]
        await runner._heartbeat()
        await harness.wait_for(task)
    assert await harness.state(task) == "cancelled"


async def test_the_same_task_under_a_higher_fence_is_a_stranger_beside_its_earlier_run(harness: Harness) -> None:
    begun, go_on = threading.Event(), threading.Event()
    fences: list[bool] = []

    @harness.handler("work")
    def work() -> None:
        fences.append(go_on.is_set())
        begun.set()
        go_on.wait(WAIT_SECONDS)

    async with harness.running(**RARE) as runner:
        await ready(runner)
        task = await harness.submit("work")
        await runner.claimer.scan()
        await until(begun.is_set)
        await runner.claimer.close(WAIT_SECONDS)
        table = harness.database.tables.task
        taken_back = {"state": State.WAITING.value, "fence": table.c.fence + 1, "runner_id": None}
        await harness.change(sa.update(table).where(table.c.id == task).values(taken_back))
        (again,) = await claimed_behind(harness, runner)
        assert (again.id, again.fence) == (task, 3)
        await runner._heartbeat()
        await until(lambda: has_running(harness, 0))
        runner.claims.gate = Gate.OPEN
        go_on.set()
        await until(lambda: succeeds(harness, runner, task))
    assert fences == [False, True]
    assert (await harness.row(task)).state == "succeeded"


async def succeeds(harness: Harness, runner: Engine, task: int) -> bool:
    """Scan, since a task that was put off is due a second later."""
    await runner.claimer.scan()
    return await harness.state(task) == "succeeded"


async def test_a_stranger_that_was_claimed_again_since_is_left_alone(database: Database) -> None:
    """The release names the claim that the heartbeat saw."""
    me = await database.write(register, Identity("here", 1, "1", ["work"], 1), 60.0)
    release = Settlement(1, 1, RELEASE)
    async with database.writing() as tx:
        await tx.execute(
            sa.insert(tx.tables.task).values(id=1, handler="work", state="running", runner_id=me, fence=3, attempt=2)
        )
    settled = await database.write(settle, me, [release])
    assert settled.fenced == {1}


async def test_a_row_that_waits_is_not_released_though_it_names_the_runner(database: Database) -> None:
    me = await database.write(register, Identity("here", 1, "1", ["work"], 1), 60.0)
    async with database.writing() as tx:
        await tx.execute(
            sa.insert(tx.tables.task).values(id=1, handler="work", state="waiting", runner_id=me, fence=1, attempt=1)
        )
    settled = await database.write(settle, me, [Settlement(1, 1, RELEASE)])
    assert settled.fenced == {1}


async def test_a_draining_runner_leaves_no_stranger_behind(harness: Harness) -> None:
    @harness.handler("work", max_attempts=1)
    async def work() -> None: ...

    async with harness.running(**RARE) as runner:
        await ready(runner)
        task = await harness.submit("work")
        await claimed_behind(harness, runner)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.releases) == ("waiting", 0, 1)


async def test_a_job_that_ends_by_an_exception_of_ours_is_a_failed_attempt_and_frees_its_slot(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    @harness.handler("work", max_attempts=2)
    async def work() -> None: ...

    task = await harness.submit("work")
    runner = harness.runner(concurrency=1)
    execute = runner.worker.executor.execute

    async def breaks(*arguments: Any) -> Outcome:
        nonlocal broken
        outcome = await execute(*arguments)
        if broken:
            broken = False
            raise RecursionError("out of the executor")
        return outcome

    monkeypatch.setattr(runner.worker.executor, "execute", breaks)
    async with at_work(runner):
        await harness.wait_for(task)
        assert runner.worker.in_flight.on_loop.in_use == 0
    row = await harness.row(task)
    assert (row.state, row.attempt) == ("succeeded", 2)
    (failed,) = await harness.attempts(task)
    assert (failed.error_type, failed.message) == ("RecursionError", "out of the executor")
    assert "ended without an outcome" in caplog.text


async def test_a_job_that_broke_before_its_handler_began_frees_its_slot_too(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = True

    @harness.handler("work", max_attempts=2)
    async def work() -> None: ...

    tasks = [await harness.submit("work") for _ in range(2)]
    runner = harness.runner(concurrency=1)
    execute = runner.worker.executor.execute

    async def breaks(*arguments: Any) -> Outcome:
        nonlocal broken
        if broken:
            broken = False
            raise asyncio.CancelledError("before the handler")
        return await execute(*arguments)

    monkeypatch.setattr(runner.worker.executor, "execute", breaks)
    async with at_work(runner):
        await harness.wait_for(*tasks)
        assert runner.worker.in_flight.on_loop.in_use == 0
    assert sorted([(await harness.row(task)).attempt for task in tasks]) == [1, 2]
