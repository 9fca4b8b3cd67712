"""Ticks by what happens in which order; nothing here is measured with a clock."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from runner.engine.periodic import ticks as module
from runner.engine.periodic.ticks import Tick, Ticks
from runner.errors import DatabaseRefused
from runner.store.claim.plain import Claimant
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until, wait_for_event

SOON = 0.01
NEVER = 3600.0


@asynccontextmanager
async def ticking(*table: Tick) -> AsyncIterator[Ticks]:
    ticks = Ticks(list(table))
    ticks.start()
    try:
        yield ticks
    finally:
        await ticks.shutdown(WAIT_SECONDS)


class Log:
    """Records events, and wakes tests that wait for a number of them."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, note: str) -> None:
        self.notes.append(note)

    async def has(self, note: str, times: int = 1) -> None:
        await until(lambda: self.notes.count(note) >= times)


async def test_fixed_delay_begins_the_delay_after_the_end() -> None:
    log, gate = Log(), asyncio.Event()

    async def run() -> None:
        log("start")
        await gate.wait()
        log("end")

    async with ticking(Tick("slow", run, SOON, "fixed-delay"), Tick("other", lambda: log("other"), SOON)):
        await log.has("other", 5)  # many delays have passed, and the first run has not ended
        assert log.notes.count("start") == 1
        gate.set()
        await log.has("start", 3)
    turns = [note for note in log.notes if note != "other"]
    assert turns[:5] == ["start", "end", "start", "end", "start"]


async def test_fixed_rate_starts_the_next_run_while_the_last_one_is_running() -> None:
    log, gate = Log(), asyncio.Event()
    begun: set[asyncio.Task[None]] = set()

    async def body() -> None:
        log("start")
        await gate.wait()
        log("end")

    def start() -> None:
        begun.add(asyncio.ensure_future(body()))

    async with ticking(Tick("scan", start, SOON, "fixed-rate")):
        await log.has("start", 3)
    assert "end" not in log.notes
    gate.set()
    await asyncio.gather(*begun)


async def test_the_first_run_waits_for_its_own_delay() -> None:
    log = Log()
    late = Tick("late", lambda: log("late"), SOON, first=NEVER)
    async with ticking(late, Tick("now", lambda: log("now"), SOON, "fixed-rate")):
        await log.has("now", 5)
    assert "late" not in log.notes


@pytest.mark.parametrize("rate", ["fixed-rate", "fixed-delay"])
async def test_a_tick_that_fails_goes_on(rate: module.Rate, caplog: pytest.LogCaptureFixture) -> None:
    log = Log()

    async def fail() -> None:
        log("run")
        raise ZeroDivisionError

    async with ticking(Tick("broken", fail, SOON, rate)):
        await log.has("run", 3)
    assert "tick broken failed" in caplog.messages


async def test_ticks_log_an_error_of_the_database_once_until_they_succeed(caplog: pytest.LogCaptureFixture) -> None:
    log, broken = Log(), True

    def failing(name: str, why: str) -> Tick:
        async def run() -> None:
            log(name)
            if broken:
                raise DatabaseRefused(why=why)

        return Tick(name, run, SOON)

    async with ticking(failing("a", "disk I/O error"), failing("b", "disk I/O error"), failing("c", "no such table")):
        for name in "abc":
            await log.has(name, 3)
        broken = False
        counts = {name: log.notes.count(name) for name in "abc"}
        for name in "abc":
            await log.has(name, counts[name] + 2)
        broken = True
        await until(lambda: len(caplog.records) >= 4)
    assert sorted({message.partition(": ")[2] for message in caplog.messages}) == [
        f"{DatabaseRefused(why=why)}" for why in ("disk I/O error", "no such table")
    ]
    assert len(caplog.messages) == 4
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("rate", ["fixed-rate", "fixed-delay"])
async def test_ticks_write_no_lines_into_the_log_of_an_application(
    rate: module.Rate, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)  # as `logging.basicConfig(level=logging.INFO)` does
    log = Log()
    async with ticking(Tick("often", lambda: log("run"), SOON, rate)):
        await log.has("run", 3)
    assert caplog.messages == []


async def test_a_stopped_tick_is_not_begun_again_by_the_end_of_its_last_run() -> None:
    log, gate = Log(), asyncio.Event()

    async def run() -> None:
        log("start")
        await gate.wait()
        log("end")

    async with ticking(Tick("stopped", run, SOON), Tick("other", lambda: log("other"), SOON)) as ticks:
        await log.has("start")
        ticks.stop("stopped")
        gate.set()
        await log.has("end")
        before = log.notes.count("other")
        await log.has("other", before + 5)
    assert log.notes.count("start") == 1


async def test_a_run_that_outlives_the_ticks_is_cancelled_without_a_log_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, ends = Log(), asyncio.Event()

    async def run() -> None:
        log("start")
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()

    ticks = Ticks([Tick("endless", run, NEVER)])
    ticks.start()
    await log.has("start")
    await ticks.shutdown(0.0)
    await ends.wait()
    await asyncio.sleep(0)  # the scheduler receives the end of the run
    await asyncio.sleep(0)
    assert caplog.records == []


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
@pytest.mark.parametrize("rate", ["fixed-rate", "fixed-delay"])
async def test_a_clock_step_reschedules_every_tick(
    rate: module.Rate, step: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY", SOON)
    armed: list[tuple[str, float]] = []
    arm = Ticks._arm

    def note(self: Ticks, tick: Tick, wait: float) -> None:
        armed.append((tick.name, wait))
        arm(self, tick, wait)

    monkeypatch.setattr(Ticks, "_arm", note)
    ahead = Ticks._wall_ahead()
    monkeypatch.setattr(Ticks, "_wall_ahead", staticmethod(lambda: ahead))
    async with ticking(Tick("rare", lambda: None, NEVER, rate, first=NEVER)):
        monkeypatch.setattr(Ticks, "_wall_ahead", staticmethod(lambda: ahead + step))
        await until(lambda: len(armed) == 2)
        assert armed == [("rare", NEVER), ("rare", NEVER)]
    assert any(f"moved by {step:.1f} s" in message for message in caplog.messages)


async def test_a_small_difference_of_the_clocks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WATCH_EVERY", SOON)
    ahead, looks = Ticks._wall_ahead(), 0

    def slewed() -> float:
        nonlocal looks
        looks += 1
        return ahead + 0.5

    async with ticking(Tick("rare", lambda: None, NEVER, first=NEVER)):
        monkeypatch.setattr(Ticks, "_wall_ahead", staticmethod(slewed))
        await until(lambda: looks >= 3)
    assert caplog.messages == []


async def test_a_wake_during_a_scan_is_not_lost(harness: Harness) -> None:
    done, surveyed, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @harness.handler("work")
    async def work() -> None:
        done.set()

    runner = harness.runner(poll_interval="1h", notify=False, sqlite_poll_interval="1h")
    survey = runner.claimer.survey.run

    async def survey_slowly(claimant: Claimant) -> None:
        await survey(claimant)
        surveyed.set()
        await gate.wait()

    runner.claimer.survey.run = survey_slowly  # type: ignore[method-assign]
    async with at_work(runner):
        await wait_for_event(surveyed)
        await harness.submit("work")  # the survey under way cannot have seen it
        runner.scans.soon()
        await runner.scans._scan_task
        assert not done.is_set()
        gate.set()
        await wait_for_event(done)


@pytest.mark.parametrize("mode", ["fixed-rate", "fixed-delay"])
async def test_a_runner_works_in_either_mode(harness: Harness, mode: str) -> None:
    @harness.handler("work")
    async def work() -> None: ...

    task = await harness.submit("work")
    await harness.work(poll_mode=mode)
    assert await harness.state(task) == "succeeded"
