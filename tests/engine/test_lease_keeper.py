"""The lease of a runner outlasts C code that holds the interpreter lock, but no stopped or dead process."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner.db.types import db_later, db_now
from runner.engine.lease import lease_keeper, watchdog
from runner.engine.lease.watchdog import KeeperProcess
from runner.model.task import State
from runner.queries.runners import runners
from runner.settings import Settings
from runner.store.registration import Identity, register
from runner.urls import parse_url
from tests.conftest import on_sqlite
from tests.engine.harness import Harness, until
from tests.programs import Program

LEASE = 60.0
"""More seconds than a keeper needs to renew or to end a lease on a busy machine, which was 11."""

HANDLERS = """
import asyncio, ctypes, os, pathlib, sqlite3, runner

LIBC = ctypes.PyDLL(None)  # keeps the interpreter lock during each call
DONE = asyncio.Event()

@runner.handler("waits", max_attempts=1)
async def waits() -> None:
    await DONE.wait()

@runner.handler("holds", max_attempts=1)
async def holds(folder: str) -> None:
    file = os.open(f"{folder}/fifo", os.O_RDWR)
    await asyncio.sleep(0.3)
    if (url := os.environ["TASKTUI_URL"]).startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=0)
        while connection.in_transaction is False:  # until no thread of this process is writing
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # the event loop must end that transaction
                await asyncio.sleep(0.01)
        connection.execute("ROLLBACK")
    pathlib.Path(folder, "held").touch()
    LIBC.read(file, ctypes.create_string_buffer(1), 1)
    DONE.set()
"""


@contextmanager
def process(url: str, folder: Path) -> Iterator[Program]:
    """A runner process that logs to the file `log`."""
    (folder / "held_handlers.py").write_text(HANDLERS)
    settings = {"TASKTUI_URL": url, "TASKTUI_LEASE_TIMEOUT": f"{LEASE}s", "TASKTUI_HEARTBEAT_INTERVAL": "500ms"}
    runner = Program(
        "runner", "work", "-H", "held_handlers",
        log=folder / "log", directory=folder, environment=os.environ | settings,
    )  # fmt: skip
    try:
        yield runner
    finally:
        runner.kill()
        runner.wait()


def children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


async def lease(harness: Harness) -> Any:
    """The last heartbeat of the only runner in seconds, and whether its lease is over."""
    runner = harness.database.tables.runner.c
    rows = await harness.rows(sa.select(runner.heartbeat_at, (runner.lease_until < db_now()).label("is_over")))
    return rows[0] if rows else None


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the keeper in /proc")
async def test_a_held_interpreter_lock_does_not_cost_the_lease_and_a_stop_does(
    harness: Harness, migrated_url: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    neighbour = await harness.submit("waits")
    with process(migrated_url, tmp_path) as runner:
        await until(lambda: is_running(harness, neighbour))
        task = await harness.submit("holds", {"folder": str(tmp_path)})
        await until((tmp_path / "held").exists)
        (keeper,) = children(runner.pid)
        beats: set[Any] = set()

        async def renewed() -> bool:
            row = await lease(harness)
            assert not row.is_over
            beats.add(row.heartbeat_at)
            return len(beats) > 2  # the first change may be by a heartbeat that was on its way

        await until(renewed)
        (row,) = await harness.database.read(runners)
        assert row.block is not None
        assert row.block.locked
        assert row.block.fact.startswith("its thread ")
        assert row.culprit == f"one of holds (task {task}), waits (task {neighbour})"
        assert row.blocked_for > 1

        runner.send_signal(signal.SIGSTOP)
        table = harness.database.tables.runner
        await harness.change(sa.update(table).values(lease_until=db_later(db_now(), 2.0)))
        await until(lambda: is_over(harness))
        runner.send_signal(signal.SIGCONT)
        (tmp_path / "fifo").write_bytes(b"x")
        await harness.wait_for(task, neighbour)
        await until(lambda: "lease keeper renewed the lease" in (tmp_path / "log").read_text())
        await until(lambda: children(runner.pid) not in ([], [keeper]))  # a new one
        runner.send_signal(signal.SIGTERM)
        assert runner.wait() == 0
    for id in (task, neighbour):
        row = await harness.row(id)
        assert (row.state, row.attempt, row.rescues) == ("succeeded", 1, 0)
    lines = (tmp_path / "log").read_text().splitlines()
    assert any("no Python code ran" in line and f"task {task} (holds)" in line for line in lines)


async def is_running(harness: Harness, task: int) -> bool:
    return await harness.state(task) == State.RUNNING.value


async def is_over(harness: Harness) -> bool:
    return bool((await lease(harness)).is_over)


@pytest.mark.both_databases
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the keeper in /proc")
async def test_the_keeper_ends_with_a_killed_runner_and_ends_its_lease(
    harness: Harness, migrated_url: str, tmp_path: Path
) -> None:
    neighbour = await harness.submit("waits")
    with process(migrated_url, tmp_path) as runner:
        await until(lambda: is_running(harness, neighbour))
        (keeper,) = children(runner.pid)
        os.kill(keeper, signal.SIGTERM)  # sent to the whole group on shutdown
        runner.kill()
        runner.wait()
        await until(lambda: not Path(f"/proc/{keeper}").exists())
    table = harness.database.tables.runner.c
    (row,) = await harness.rows(sa.select(table.lease_until, table.heartbeat_at))
    assert (row.lease_until - row.heartbeat_at).total_seconds() < LEASE - 1


@pytest.mark.parametrize("has_proc", [True, False], ids=["proc", "ps"])
def test_a_stopped_process_is_not_busy(has_proc: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_proc:  # as on macOS
        monkeypatch.setattr("builtins.open", no_proc)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            assert not lease_keeper.is_stopped(child.pid)
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert lease_keeper.is_stopped(child.pid)
            child.send_signal(signal.SIGCONT)
            os.waitid(os.P_PID, child.pid, os.WCONTINUED)
            assert not lease_keeper.is_stopped(child.pid)
        finally:
            child.kill()
    assert lease_keeper.is_stopped(child.pid)


def no_proc(path: str, *args: Any) -> Any:
    raise FileNotFoundError(path)


@on_sqlite
@pytest.mark.slow
async def test_a_keeper_that_cannot_renew_reports_why(
    harness: Harness, migrated_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(
        url=parse_url(migrated_url + "-gone/file.db"),
        lease_timeout=timedelta(seconds=0.9),
        heartbeat_interval=timedelta(seconds=0.1),
    )
    keeper = KeeperProcess(settings, 0.1, 300.0)
    try:

        async def reported() -> bool:
            keeper.ping(1, 0.0)
            await asyncio.sleep(0.5)  # a silence, after which the keeper renews
            return "lease keeper could not renew" in caplog.text

        await until(reported)
    finally:
        keeper.stop()
    assert "unable to open database file" in caplog.text


@pytest.mark.slow
@on_sqlite
async def test_the_keeper_renews_only_within_the_limit(harness: Harness, migrated_url: str) -> None:
    settings = Settings(
        url=parse_url(migrated_url), lease_timeout=timedelta(hours=1), heartbeat_interval=timedelta(seconds=0.1)
    )
    who = Identity("here", 1, "1", ["work"], 1)
    within, beyond = [await harness.database.write(register, who, 3600.0) for _ in range(2)]
    first = await heartbeats(harness)
    idle, *busy = [KeeperProcess(settings, 0.1, 300.0) for _ in range(3)]
    try:
        idle.ping(beyond, 300.0)
        for keeper in busy:  # one after the other, which gives the idle one more than enough time
            before = (await heartbeats(harness))[within]
            keeper.ping(within, 290.0)

            async def renewed(before: Any = before) -> bool:
                return bool((await heartbeats(harness))[within] > before)

            await until(renewed)
    finally:
        for keeper in (idle, *busy):
            keeper.stop()
    assert (await heartbeats(harness))[beyond] == first[beyond]


async def heartbeats(harness: Harness) -> dict[int, Any]:
    runner = harness.database.tables.runner.c
    return {row.id: row.heartbeat_at for row in await harness.rows(sa.select(runner.id, runner.heartbeat_at))}


@on_sqlite
async def test_c_code_in_the_thread_of_a_plain_function_is_named(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "runner")
    monkeypatch.setattr(watchdog, "EVERY", 0.05)
    monkeypatch.setattr(watchdog, "STALL", 0.1)

    @harness.handler("burns")
    def burns(size: int) -> int:
        return max(range(size))

    async with harness.running() as runner:
        size = 10_000_000
        while "running then: task " not in caplog.text:
            assert size < 1e9
            task = await harness.submit("burns", {"size": size})
            await harness.wait_for(task)
            size *= 2
        assert runner.lease.is_valid
    assert f"running then: task {task} (burns)" in caplog.text


async def test_a_keeper_that_cannot_start_does_not_stop_the_watchdog(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    keeper = KeeperProcess(Settings(), 1.0, 300.0)
    for _ in range(2):
        keeper.ping(1, 0.0)
    keeper.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "/nowhere/python: No such file or directory (errno 2): could not start the lease keeper, trying again in 60 s"
    ]
