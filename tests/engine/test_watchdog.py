"""A handler that blocks the event loop does not cost its runner the lease, and the log names it."""

import asyncio
import json
import logging
import threading
import time

import pytest
import sqlalchemy as sa

from runner.engine.lease import watchdog
from runner.engine.lease.watchdog import KeeperProcess
from runner.queries.runners import runners
from runner.store.heartbeat import LoopBlock, Renewal
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until, wait_for_event


async def test_a_lease_outlasts_a_blocked_event_loop(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "EVERY", 0.1)
    caplog.set_level(logging.WARNING, "runner")
    begun, renewed = threading.Event(), threading.Event()

    @harness.handler("blocks")
    async def blocks(token: str) -> bool:
        assert token
        begun.set()
        return renewed.wait(WAIT_SECONDS)

    task = await harness.submit("blocks", {"token": "geheim"})
    runner = harness.runner(lease_timeout="5s", heartbeat_interval="2s")
    own = runner.lease.note_renewal
    answers: list[tuple[bool, bool]] = []

    def note(runner_id: int, started: float, alive: bool, late: bool) -> None:
        own(runner_id, started, alive, late)
        if begun.is_set():
            answers.append((alive, late))
        if len(answers) == 2:
            renewed.set()

    monkeypatch.setattr(runner.lease, "note_renewal", note)
    await asyncio.wait_for(_run_until_ended(harness, runner, task), 2 * WAIT_SECONDS)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.result) == ("succeeded", 1, "true")
    assert answers[:2] == [(True, False)] * 2
    lines = [record.getMessage() for record in caplog.records if f"by task {task}" in record.getMessage()]
    assert len(lines) == 1
    assert f"by task {task} (blocks) at {__file__}:{blocks.__code__.co_firstlineno + 4}:" in lines[0]
    assert "geheim" not in caplog.text


async def test_the_row_of_a_blocked_runner_names_the_handler_until_its_next_heartbeat(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "EVERY", 0.1)
    renewed, blocks = threading.Event(), list[dict[str, object]]()

    @harness.handler("reports.render")
    async def render() -> bool:
        return renewed.wait(WAIT_SECONDS)

    runner = harness.runner(lease_timeout="20s", heartbeat_interval="500ms")
    renewal = runner.watchdog._renewal
    own = renewal.renew

    def renew(runner_id: int, block: LoopBlock) -> Renewal:
        answer = own(runner_id, block)
        with renewal._open() as tx:
            stored = tx.connection.execute(sa.select(tx.tables.runner.c.stall)).scalar_one()
        named = json.loads(stored) if isinstance(stored, str) else stored
        # The start blocks the loop too on a slow machine, and a heartbeat that was on its way may clear the row.
        if named is not None and named["tasks"]:
            blocks.append(named)
            renewed.set()
        return answer

    monkeypatch.setattr(renewal, "renew", renew)
    async with at_work(runner):
        task = await harness.submit("reports.render")
        await harness.wait_for(task)
        assert (blocks[0]["tasks"], blocks[0]["locked"]) == ([[task, "reports.render"]], False)
        assert blocks[0]["place"] == f"{__file__}:{render.__code__.co_firstlineno + 2}"

        async def over() -> bool:
            (row,) = await harness.database.read(runners)
            return row.block is None and row.memory is not None and row.cpu is not None

        await until(over)


async def _run_until_ended(harness: Harness, runner: object, task: int) -> None:
    life = asyncio.ensure_future(runner.run())  # type: ignore[attr-defined]
    await harness.wait_for(task)
    runner.stop()  # type: ignore[attr-defined]
    await life


async def test_a_runner_declared_lost_while_blocked_has_no_valid_lease(harness: Harness) -> None:
    begun, _ = harness.held_handler("waits")
    await harness.submit("waits")
    async with harness.running(heartbeat_interval="2s", drain_timeout="0s") as runner:
        await wait_for_event(begun)
        struck = runner.lease.id
        await harness.change(sa.delete(harness.database.tables.runner))
        await asyncio.to_thread(runner.watchdog._renew, LoopBlock(1.0))
        assert not runner.lease.is_valid
        await until(lambda: runner.lease.id != struck and runner.lease.is_valid)


class PingRecorder(KeeperProcess):
    """A keeper without a process; it records the ids of the runner."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def ping(self, runner_id: int, blocked: float) -> None:
        self.ids.append(runner_id)

    def stop(self) -> None:
        pass


async def test_the_keeper_knows_each_registration_before_the_first_task(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "EVERY", 600.0)
    keeper = PingRecorder()
    last_pings: list[tuple[int, int]] = []

    @harness.handler("work")
    async def work() -> None:
        last_pings.append((keeper.ids[-1], runner.lease.id))

    runner = harness.runner(heartbeat_interval="500ms", drain_timeout="0s")
    runner.watchdog.keeper = keeper
    async with at_work(runner):
        await harness.wait_for(await harness.submit("work"))
        await harness.change(sa.delete(harness.database.tables.runner))
        await until(lambda: runner.lease.id != last_pings[0][1] and runner.lease.is_valid)
        await harness.wait_for(await harness.submit("work"))
    (first, own), (second, new) = last_pings
    assert (first, second) == (own, new)
    assert own != new


@pytest.mark.slow
async def test_a_renewal_beside_the_heartbeat_gives_other_runners_time_if_it_was_late(harness: Harness) -> None:
    async with harness.running(heartbeat_interval="2s") as runner:
        await until(lambda: runner.lease.may_rescue)
        table = harness.database.tables.runner
        await harness.change(sa.update(table).values(lease_until=sa.text("'2020-01-01 00:00:00+00'")))
        await asyncio.to_thread(runner.watchdog._renew, LoopBlock(1.0))
        assert runner.lease.is_valid
        assert not runner.lease.may_rescue


async def test_a_runner_that_is_blocked_for_too_long_loses_its_lease(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "runner")
    monkeypatch.setattr(watchdog, "LONGEST_BLOCK", 0.0)
    async with harness.running(heartbeat_interval="2s") as runner:
        await until(lambda: runner.lease.is_valid)
        before = runner.lease._renewed
        runner.watchdog._renew_for_loop(time.monotonic())
        assert runner.lease._renewed == before
    assert "the lease expires" in caplog.text
