"""A runner that stops when no work is left."""

import asyncio
import socket
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from runner.engine.events import AttemptsEnded
from runner.engine.hosting import completion
from runner.engine.hosting.completion import IDLE_EVERY, LONGEST_PAUSE
from runner.engine.main import AttemptCount
from tests.engine.harness import Harness, until


async def test_it_waits_for_retries(harness: Harness) -> None:
    tries: list[int] = []

    @harness.handler("flaky", retry="300ms")
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError

    task = await harness.run("flaky")
    assert len(tries) == 3
    assert await harness.state(task) == "succeeded"


async def test_it_leaves_scheduled_tasks_and_logs_their_number(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later = [await harness.submit("work", run_at=tomorrow) for _ in range(3)]
    runner = await harness.work()
    assert runner.completion.scheduled_count == 3
    assert [await harness.state(task) for task in later] == ["waiting"] * 3


async def test_it_waits_for_tasks_that_its_tasks_submit(harness: Harness) -> None:
    done: list[int] = []

    @harness.handler("count")
    async def count(n: int) -> None:
        done.append(n)
        if n:
            await harness.submit("count", {"n": n - 1})

    await harness.submit("count", {"n": 5})
    await harness.work()
    assert done == [5, 4, 3, 2, 1, 0]


async def test_it_waits_for_tasks_in_another_runners_hands(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    task = await harness.submit("work")
    async with harness.running():
        await begun.wait()
        second = asyncio.ensure_future(harness.work(poll_interval="20ms"))
        looks = await asyncio.wait([second], timeout=0.5)
        assert second in looks[1], "it must not leave while the other may still need it"
        go_on.set()
        await second
    assert await harness.state(task) == "succeeded"


async def test_it_ends_immediately_without_tasks(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    runner = await harness.work()
    assert runner.completion.scheduled_count == 0
    assert runner.metrics.verbs == {}


async def test_it_does_not_wait_for_handlers_that_it_does_not_know(harness: Harness) -> None:
    @harness.handler("known")
    async def noop() -> None: ...

    strange = await harness.submit("unknown")
    await harness.submit("known")
    await harness.work()
    row = await harness.row(strange)
    assert (row.state, row.attempt, row.fence) == ("waiting", 0, 0)


async def test_it_does_not_wait_for_other_queues(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    elsewhere = await harness.submit("work", queue="mail")
    here = await harness.submit("work")
    await harness.work(queues=("default",))
    assert await harness.state(elsewhere) == "waiting"
    assert await harness.state(here) == "succeeded"


@pytest.mark.representatives(1)
@pytest.mark.parametrize("selection", [{"buckets": "0-499"}, {"slice": "0/2"}], ids=str)
async def test_it_does_not_wait_for_other_buckets(harness: Harness, selection: dict[str, str]) -> None:
    begun, go_on = harness.held_handler("slow")

    @harness.handler("work")
    async def work() -> None: ...

    elsewhere, here = await harness.submit("work", bucket=501), await harness.submit("work", bucket=2)
    running = await harness.submit("slow", bucket=701)
    async with harness.running(buckets="701"):
        await begun.wait()
        await harness.work(**selection)
        assert [await harness.state(task) for task in (elsewhere, running)] == ["waiting", "running"]
        go_on.set()
    assert await harness.state(here) == "succeeded"


async def test_it_counts_and_waits_for_its_buckets_only(harness: Harness) -> None:
    tries: list[int] = []

    @harness.handler("flaky", retry="300ms")
    async def flaky() -> None:
        tries.append(1)
        if len(tries) < 2:
            raise ConnectionError

    later = datetime.now(UTC) + timedelta(days=1)
    for bucket in (2, 3, 501):
        await harness.submit("flaky", bucket=bucket, run_at=later)
    task = await harness.submit("flaky", bucket=2)
    runner = await harness.work(buckets="0-499")
    assert await harness.state(task) == "succeeded"
    assert runner.completion.scheduled_count == 2


async def test_a_standby_waits_for_the_tasks_of_its_slice(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    await harness.submit("work", bucket=2)
    async with harness.running(slice="0/2"):
        await begun.wait()
        standby = asyncio.ensure_future(harness.work(slice="0/2"))
        looks = await asyncio.wait([standby], timeout=0.5)
        assert standby in looks[1], "it must not leave while the tasks of its slice run"
        go_on.set()
        await standby


async def test_it_does_not_wait_for_other_hosts(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    elsewhere = [await harness.submit("work", hosts=hosts) for hosts in ("web-1", "web-1,web-2")]
    here = await harness.run("work", hosts=f"web-1,{socket.gethostname()}")
    assert [await harness.state(task) for task in elsewhere] == ["waiting"] * 2
    assert await harness.state(here) == "succeeded"


async def test_it_does_not_wait_for_the_queue_of_another_runner(harness: Harness) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    broadcast = await harness.run("work", queue="@999")
    assert await harness.state(broadcast) == "waiting"


async def test_slow_looks_take_a_share_of_the_time(harness: Harness) -> None:
    completion = harness.runner().completion
    assert completion.pause() == IDLE_EVERY
    completion._pause = 2.0
    assert completion.pause() == 2.0
    completion._pause = 60.0
    assert completion.pause() == LONGEST_PAUSE


async def test_an_invalid_retry_plan_in_a_row_does_not_stop_the_runner(harness: Harness) -> None:
    @harness.handler("broken", retry="1ms", max_attempts=2)
    async def broken() -> None:
        raise ZeroDivisionError

    @harness.handler("fine")
    async def fine() -> None: ...

    table = harness.database.tables.task
    task = await harness.submit("broken")
    await harness.change(sa.update(table).where(table.c.id == task).values(retry="every now and then"))
    other = await harness.run("fine")
    assert await harness.state(task) == "dead"
    assert len(await harness.attempts(task)) == 2
    assert await harness.state(other) == "succeeded"


async def test_a_max_attempts_erased_during_the_run_does_not_stop_the_runner(harness: Harness) -> None:
    table = harness.database.tables.task
    tries: list[int] = []

    @harness.handler("broken", retry="1ms", max_attempts=2)
    async def broken() -> None:
        tries.append(1)
        if len(tries) == 1:
            await harness.change(sa.update(table).values(max_attempts=None))
        raise ZeroDivisionError

    task = await harness.run("broken")
    assert len(tries) == 2, "the next claim sets the limit again"
    assert await harness.state(task) == "dead"


async def test_a_runner_that_waits_for_a_retry_logs_it_once(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.handler("fail")
    async def fail() -> None:
        raise LookupError("no such shop")

    monkeypatch.setattr(completion, "QUIET_WAIT", 0.0)
    caplog.set_level("INFO", "runner")
    task = await harness.submit("fail", retry="1h")
    runner = harness.runner()
    looks: list[int | None] = []
    note = runner.completion._note_wait

    async def note_and_count(example: int | None) -> None:
        await note(example)
        looks.append(example)

    monkeypatch.setattr(runner.completion, "_note_wait", note_and_count)
    run = asyncio.create_task(runner.run(until_idle=True))
    await until(lambda: looks[-2:] == [task, task])
    runner.stop()
    assert await run
    text = f"no task runs; the runner waits for task {task} (fail), due at 20"
    logged = [line for line in caplog.messages if line.startswith(text)]
    assert (len(logged), await harness.state(task)) == (1, "waiting")


async def test_it_leaves_retries_if_it_runs_until_none_is_due(harness: Harness) -> None:
    tries: list[int] = []

    @harness.handler("flaky", retry="1h")
    async def flaky() -> None:
        tries.append(1)
        raise ConnectionError

    task = await harness.submit("flaky")
    runner = harness.runner()
    runner.leaves_retries = True
    assert await runner.run(until_idle=True)
    assert (tries, await harness.state(task), runner.completion.scheduled_count) == ([1], "waiting", 1)


async def test_it_drains_after_a_number_of_attempts(harness: Harness) -> None:
    started: list[int] = []
    stopped = asyncio.Event()

    @harness.handler("work")
    async def work() -> None:
        started.append(1)
        if len(started) > 3:
            await stopped.wait()

    def stop() -> None:
        runner.stop()
        stopped.set()

    tasks = [await harness.submit("work") for _ in range(9)]
    runner = harness.runner(concurrency=1, prefetch=0)
    runner.events.subscribe(AttemptsEnded, AttemptCount(3, stop).add)
    assert await runner.run()
    states = [await harness.state(task) for task in tasks]
    assert (states.count("succeeded"), states.count("waiting")) == (4, 5)
