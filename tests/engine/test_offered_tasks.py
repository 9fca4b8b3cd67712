"""Offered tasks: a process receives its next task early; until it starts it, the runner can take it back."""

import asyncio
import os
from math import inf
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from runner.engine import runner as engine_runner
from runner.engine import worker
from runner.engine.executing.executor import NO_MIDDLEWARE
from runner.engine.processes import attempt as process_attempt
from runner.engine.processes.messages import StartTokens
from runner.engine.processes.pool import WorkerProcess
from runner.engine.runner import Engine
from runner.engine.running import Running
from runner.engine.slots import ProcessSlots
from runner.model.task import Claimed
from runner.operations.results import Target
from runner.operations.terminate import terminate
from tests.conftest import on_sqlite, sqlite_first
from tests.engine.harness import Harness, TwoAhead, until
from tests.engine.test_breakers import hasten
from tests.engine.test_processes import ANA, HANDLERS, is_dead, result


@pytest.fixture(autouse=True)
def processes(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS_FOLDER", str(tmp_path))
    harness.handlers |= HANDLERS


async def offered(runner: Engine, started: Path) -> ProcessSlots:
    """Wait until a task runs, and the next one is offered to its process."""
    slots = runner.worker.in_flight.in_processes
    slots.look_ahead = TwoAhead()
    await until(lambda: started.exists() and len(slots.offered) == 1)
    return slots


@pytest.mark.slow
@sqlite_first
async def test_a_kill_takes_only_the_running_task(harness: Harness, tmp_path: Path) -> None:
    slow = await harness.submit("process.wait", {"folder": str(tmp_path)}, priority=9, max_attempts=1, timeout=1.0)
    after = [await harness.submit("process.pid", max_attempts=1) for _ in range(2)]
    async with harness.running(processes=1) as runner:
        await offered(runner, tmp_path / "pids")
        await harness.wait_for(slow, *after)
    assert [row.error_type for row in await harness.attempts(slow)] == ["Timeout"]
    killed = int((tmp_path / "pids").read_text().split()[0])
    assert is_dead(killed)
    assert killed not in [await result(harness, id) for id in after]
    assert [(await harness.row(id)).attempt for id in after] == [1, 1]


@pytest.mark.slow
@on_sqlite
async def test_a_crash_takes_only_the_running_task(harness: Harness, tmp_path: Path) -> None:
    slow = await harness.submit("process.wait", {"folder": str(tmp_path)}, priority=9, max_attempts=1)
    after = await harness.submit("process.pid", max_attempts=1)
    async with harness.running(processes=1) as runner:
        await offered(runner, tmp_path / "pids")
        os.kill(int((tmp_path / "pids").read_text().split()[0]), 11)
        await harness.wait_for(slow, after)
    assert [row.error_type for row in await harness.attempts(slow)] == ["ProcessCrashed"]
    assert (await harness.state(after), (await harness.row(after)).attempt) == ("succeeded", 1)


@pytest.mark.slow
@sqlite_first
async def test_a_memory_limit_takes_only_the_running_task(harness: Harness, tmp_path: Path) -> None:
    greedy = await harness.submit("process.greedy", {"folder": str(tmp_path)}, priority=9, max_attempts=1)
    after = await harness.submit("process.pid", max_attempts=1)
    async with harness.running(processes=1) as runner:
        await offered(runner, tmp_path / "started")
        before = runner.worker.executor.process_ids()
        (tmp_path / "go").touch()
        await harness.wait_for(greedy, after)
        assert await result(harness, after) not in before
    assert [row.error_type for row in await harness.attempts(greedy)] == ["MemoryLimit"]
    assert (await harness.state(after), (await harness.row(after)).attempt) == ("succeeded", 1)
    assert not await harness.attempts(after)


@pytest.mark.slow
@sqlite_first
async def test_an_open_breaker_takes_an_offered_task_back(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_runner, "MAX_SLOT_WAIT", inf)  # a long wait for a slot must not release it
    calls = [{"folder": str(tmp_path), "call": call} for call in ("first", "second", "third")]
    first, second, third = [await harness.submit("process.service", call, max_attempts=1) for call in calls]
    async with harness.running(processes=1) as runner:
        slots = runner.worker.in_flight.in_processes
        slots.look_ahead = TwoAhead()  # the process starts the second task while the failure of the first is reported
        await harness.wait_for(first)
        await until(lambda: (tmp_path / "second").exists() and third not in runner.worker.in_flight.tasks)
        assert not slots.offered
        (tmp_path / "go").touch()
        await harness.wait_for(second)
        row = await harness.row(third)
        assert (row.state, row.attempt, await harness.attempts(third)) == ("waiting", 0, [])
        assert not (tmp_path / "third").exists()
        await hasten(harness)
        await harness.wait_for(third)
    assert (await harness.state(third), (await harness.row(third)).attempt) == ("succeeded", 1)


@pytest.mark.slow
@sqlite_first
async def test_a_stop_returns_an_offered_task_without_an_interruption(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERRUPT", 30.0)  # a busy machine may wake the process late
    slow = await harness.submit("process.wait", {"folder": str(tmp_path)}, priority=9)
    after = await harness.submit("process.pid")
    async with harness.running(processes=1, drain_timeout="100ms") as runner:
        await offered(runner, tmp_path / "pids")
    rows = [await harness.row(id) for id in (slow, after)]
    assert [(row.state, row.attempt, row.interruptions) for row in rows] == [("waiting", 0, 1), ("waiting", 0, 0)]


@pytest.mark.slow
@on_sqlite
async def test_a_stop_also_waits_for_an_offered_task_that_has_started(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "INTERRUPT", 30.0)
    slow = await harness.submit("process.wait", {"folder": str(tmp_path)}, priority=9)
    after = await harness.submit("process.pid")
    async with harness.running(processes=1, drain_timeout="100ms") as runner:
        await offered(runner, tmp_path / "pids")
        monkeypatch.setattr(process_attempt._Attempt, "withdraw", lambda _: False)
    rows = [await harness.row(id) for id in (slow, after)]
    assert [(row.state, row.attempt, row.interruptions) for row in rows] == [("waiting", 0, 1)] * 2


@pytest.mark.slow
@sqlite_first
async def test_a_terminated_offered_task_never_starts(harness: Harness, tmp_path: Path) -> None:
    slow = await harness.submit("process.tidy", {"folder": str(tmp_path)}, priority=9)
    after = await harness.submit("process.hold")
    async with harness.running(processes=1) as runner:
        slots = await offered(runner, tmp_path / "started")
        await harness.database.write(terminate, [Target(after)], ANA)
        await until(lambda: not slots.offered)
        await harness.database.write(terminate, [Target(slow)], ANA)
        await harness.wait_for(slow, after)
    assert await harness.state(after) == "cancelled"
    assert not (tmp_path / "child").exists()


@pytest.mark.slow
@on_sqlite
async def test_fewer_processes_take_offered_tasks_back(harness: Harness, tmp_path: Path) -> None:
    slow = await harness.submit("process.tidy", {"folder": str(tmp_path)}, priority=9)
    after = await harness.submit("process.pid")
    async with harness.running(processes=1) as runner:
        slots = await offered(runner, tmp_path / "started")
        runner.worker.resize(None, None, 1)
        assert not slots.offered
        await harness.database.write(terminate, [Target(slow)], ANA)
        await harness.wait_for(after)
    assert await harness.state(after) == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [process_attempt.OFFER_TIME, -1.0], ids=["in time", "late"])
@on_sqlite
async def test_each_task_runs_once_whether_its_offer_is_in_time_or_late(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(process_attempt, "OFFER_TIME", seconds)
    early: list[int] = []
    offer = process_attempt._Attempt.offer

    def record(attempt: Any, *rest: Any) -> None:
        early.append(attempt._running.task.id)
        offer(attempt, *rest)

    monkeypatch.setattr(process_attempt._Attempt, "offer", record)
    tasks = [await harness.submit("process.pid", max_attempts=1) for _ in range(30)]
    async with harness.running(processes=2) as runner:
        runner.worker.in_flight.in_processes.look_ahead = TwoAhead()
        await harness.wait_for(*tasks)
        assert len(runner.worker.executor.process_ids()) <= 2
        executor: Any = runner.worker.executor
        assert sum(worker.tasks for worker in executor._processes.pool._all) == len(tasks)
    assert early
    assert len({await result(harness, id) for id in tasks}) <= 2


def test_a_start_token_goes_to_one_of_its_two_ends() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    ours, theirs = StartTokens(reading), StartTokens(reading)
    for number in (1, 2, 3):
        os.write(writing, StartTokens.SIZE.pack(number))
    assert ours.take(1)
    assert not theirs.take(1)  # it has read the next one
    assert theirs.take(2)
    assert not ours.take(2)
    assert ours.take(3)
    assert not theirs.take(3)
    os.close(reading)
    os.close(writing)


async def answers(_: Running) -> None:
    """A server that answers."""


@pytest.mark.parametrize("in_time", [False, True])
@on_sqlite
async def test_a_process_that_has_begun_its_next_task_is_not_killed_for_the_one_before(
    harness: Harness, in_time: bool
) -> None:
    attempts = process_attempt.ProcessAttempts(
        harness.runner().settings, None, NO_MIDDLEWARE, lambda: True, lambda _: None, answers, lambda _: False
    )
    first, second = (
        process_attempt._Attempt(attempts, Running(task(number), HANDLERS["process.pid"], ProcessSlots("processes", 1)))
        for number in (1, 2)
    )
    start_tokens = os.pipe()
    os.set_blocking(start_tokens[0], False)
    program = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    worker = WorkerProcess(program, start_tokens, TemporaryFile(), most=10)  # noqa: SIM115 - the worker closes it
    first.began(worker)
    first._worker, worker.current = worker, first
    second.offer(worker, [])
    assert not in_time or StartTokens(start_tokens[0]).take(second.call.number)  # as the process does then
    first.kill()
    assert worker.broken is not in_time
    assert (worker.offered is second) is in_time
    worker.current = worker.offered = None
    worker.kill()
    await worker.wait(90.0)
    assert program.returncode == -9


def task(number: int) -> Claimed:
    return Claimed(number, "default", "process.pid", None, "{}", 0, None, 1, 3, 1, None, 0)
