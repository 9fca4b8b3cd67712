"""The threads of an HTTP executor take short tasks early, and hand back those that wait behind long ones."""

import asyncio
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.engine.serving.http_threads import MOST_EARLY, SHORT, HttpThreads
from runner.model.task import State
from tests.engine.harness import Harness, until
from tests.engine.test_executor_conformance import SLOTS, conforming


def run_one(threads: HttpThreads, seconds: float) -> None:
    """Run a task to its end, whose run time is recorded before the next one of its only thread starts."""
    ended = threading.Event()
    threads.start(0, lambda: time.sleep(seconds))
    threads.start(1, ended.set)
    ended.wait()


def test_no_task_comes_early_before_the_first_one_has_ended() -> None:
    threads = HttpThreads(2, lambda: None)
    assert [threads.room(held) for held in range(4)] == [2, 1, 0, 0]


def test_tasks_come_early_although_the_clock_has_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.engine.serving.http_threads.time", SimpleNamespace(monotonic=lambda: 5.0))
    threads = HttpThreads(1, lambda: None)
    run_one(threads, 0)
    assert threads.room(held=1) == MOST_EARLY


def test_short_tasks_come_early_while_few_wait() -> None:
    gate, threads = threading.Event(), HttpThreads(1, lambda: None)
    run_one(threads, 0)
    assert threads.room(held=1) > 0
    for number in range(2, MOST_EARLY // 2 + 4):
        threads.start(number, gate.wait)
    assert threads.room(held=1) == 0
    gate.set()
    threads.close()


def test_long_tasks_do_not_come_early() -> None:
    threads = HttpThreads(1, lambda: None)
    run_one(threads, SHORT)
    assert threads.room(held=1) == 0


def test_a_task_that_is_taken_back_does_not_run() -> None:
    gate, begun, runs = threading.Event(), threading.Event(), list[int]()
    threads = HttpThreads(1, begun.set)
    threads.start(1, gate.wait)
    threads.start(2, lambda: runs.append(2))
    begun.wait()
    assert threads.withdraw(before=0) == []
    assert threads.withdraw() == [2]
    gate.set()
    threads.close()
    assert runs == []


@pytest.mark.slow
@pytest.mark.parametrize("does_stop", [True, False], ids=["stops", "goes on"])
async def test_tasks_behind_long_ones_return_to_the_queue(harness: Harness, tmp_path: Path, does_stop: bool) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    async with conforming(harness, "python") as (_, executor):
        await harness.wait_for(*[await harness.submit("conform.echo", {"value": 1}) for _ in range(20)])
        payload = {"begun": str(begun), "gate": str(gate)}
        await asyncio.gather(*(harness.submit("conform.gate", payload) for _ in range(3 * SLOTS)))
        await until(lambda: begun.exists() and len(begun.read_text().splitlines()) == SLOTS)
        if does_stop:
            executor.send(signal.SIGTERM)
        await until(lambda: _only_started_ones_run(harness))
        gate.touch()
        if does_stop:
            assert await executor.end() == 0, executor.log
        else:
            await until(lambda: _all_ended(harness))
    assert set(begun.read_text().split()) == {"1"}  # each of them in its first attempt


async def _running(harness: Harness) -> int:
    task = harness.database.tables.task
    return await harness.count(task, task.c.state == State.RUNNING)


async def _only_started_ones_run(harness: Harness) -> bool:
    return await _running(harness) == SLOTS


async def _all_ended(harness: Harness) -> bool:
    return await harness.count(harness.database.tables.task) == 0
