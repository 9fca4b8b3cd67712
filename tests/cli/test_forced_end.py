"""A runner that was told to stop ends, whatever its handlers do."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.store.rescue import Rescued, Rescuer, rescue
from tests.cli.conftest import Call, CallResult, Store
from tests.conftest import on_sqlite
from tests.programs import Program
from tests.store.runners import Runner

HANDLERS = """
import asyncio, time
from pathlib import Path
from runner import handler

@handler("stubborn.swallows")
async def swallows():
    print("started", flush=True)
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass

@handler("stubborn.blocks")
async def blocks():
    print("started", flush=True)
    while True:
        time.sleep(0.01)

@handler("stubborn.thread")
def thread():
    print("started", flush=True)
    while True:
        time.sleep(0.01)

@handler("stubborn.waits")
async def waits():
    print("started", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.01)

@handler("stubborn.leaves")
async def leaves():
    async def swallows():
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
    asyncio.get_running_loop().left = asyncio.create_task(swallows())
    print("started", flush=True)

@handler("stubborn.transaction")
async def transaction(ctx):
    async with ctx.transaction():
        print("started", flush=True)
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
"""


EXIT_SECONDS = 60.0
"""Ten times the limits of a drain of 100 ms: interrupt, last writes and the slack of the process."""


class Stubborn:
    """A `runner work` process whose only task has begun, and does not end.

    Args:
        task: id of the task.
        process: the process.
        home: folder with its output.
    """

    def __init__(self, task: int, process: Program, home: Path) -> None:
        self.task = task
        self.process = process
        self._home = home

    def stop(self, number: signal.Signals, *, repeated: bool = False) -> CallResult:
        """Send a signal, repeat it until the process ends if asked, and return its exit code and output."""
        self.process.send_signal(number)
        if repeated:
            until(lambda: self._ends_on(number))
        code = self.process.wait(EXIT_SECONDS)
        return CallResult(code, self._text("out"), self.errors)

    @property
    def errors(self) -> str:
        """The text of its log."""
        return self._text("err")

    def _ends_on(self, number: signal.Signals) -> bool:
        self.process.send_signal(number)
        return self.process.poll() is not None

    def _text(self, name: str) -> str:
        return (self._home / name).read_text()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + EXIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def work(cli: Call, tmp_path: Path) -> Iterator[Callable[..., Stubborn]]:
    """Start a runner with one task of a handler in HANDLERS, and wait until the task has begun."""
    started: list[Program] = []

    def start(handler: str, drain_timeout: str = "100ms") -> Stubborn:
        Path("stubborn.py").write_text(HANDLERS)
        task = cli("submit", handler, "-H", "stubborn", "--max-attempts", 2, "--json").document["id"]
        arguments = ("work", "-H", "stubborn", "--drain-timeout", drain_timeout, "--log-format", "human")
        out, err = tmp_path / "out", tmp_path / "err"
        program = Program("runner", *arguments, log=out, errors=err, directory=tmp_path, environment=os.environ)
        started.append(program)
        until(lambda: out.exists() and out.read_text() == "started\n")
        return Stubborn(task, program, tmp_path)

    yield start
    for program in started:
        program.kill()


@on_sqlite
@pytest.mark.parametrize(
    "kind", ["swallows", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("blocks", "transaction"))]
)
def test_a_coroutine_that_does_not_end_is_named_and_ends_with_the_process(
    cli: Call, store: Store, work: Callable[[str], Stubborn], kind: str
) -> None:
    runner = work(f"stubborn.{kind}")
    answer = runner.stop(signal.SIGTERM)
    assert answer.code == 1, answer.err
    assert f"task {runner.task} (stubborn.{kind}) ignored its interrupt" in answer.err
    assert "Traceback" not in answer.err
    assert_counted_as_crash(cli, store, runner.task)


@on_sqlite
@pytest.mark.parametrize("kind", [pytest.param("swallows", marks=pytest.mark.slow), "blocks"])
def test_a_second_sigterm_ends_the_process_and_names_its_task(
    cli: Call, store: Store, work: Callable[[str], Stubborn], kind: str
) -> None:
    runner = work(f"stubborn.{kind}")
    answer = runner.stop(signal.SIGTERM, repeated=True)
    assert answer.code == 130, answer.err
    named = f"exiting immediately: 1 task will be rescued; running: task {runner.task} (stubborn.{kind})"
    assert named in answer.err
    assert "drain timeout" not in answer.err
    assert_counted_as_crash(cli, store, runner.task)


@on_sqlite
def test_the_first_signal_during_a_drain_by_command_lets_the_task_end(
    cli: Call, work: Callable[..., Stubborn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_HEARTBEAT_INTERVAL", "50ms")
    runner = work("stubborn.waits", drain_timeout="90s")
    (row,) = cli("runners", "--json").document["runners"]
    assert cli("runners", "drain", row["id"], "--reason", "deploy").code == 0
    until(lambda: "draining: 1 task running" in runner.errors)
    runner.process.send_signal(signal.SIGTERM)
    until(lambda: "SIGTERM: draining" in runner.errors)
    Path("go").touch()
    assert runner.process.wait(EXIT_SECONDS) == 0, runner.errors
    assert "exiting immediately" not in runner.errors
    assert cli("show", runner.task, "--json").document["state"] == "succeeded"


def assert_counted_as_crash(cli: Call, store: Store, task: int) -> None:
    """Its lease remains; when it expires, the task is rescued and its attempt counts."""
    assert len(cli("runners", "--json").document["runners"]) == 1
    rescued = store.use(rescue_after_lease)
    assert {id: (end.verb, end.attempt) for id, end in rescued.items()} == {task: ("rescue", 1)}
    (row,) = store.tasks()
    assert (row["state"], row["attempt"], row["rescues"], row["interruptions"]) == ("waiting", 1, 1, 0)


async def rescue_after_lease(database: Database) -> dict[int, Rescued]:
    table = database.tables.runner
    async with database.writing() as tx:
        await tx.execute(sa.update(table).values(lease_until=datetime.now(UTC) - timedelta(seconds=1)))
    rescuer = await Runner.enter(database, "stubborn")
    return await database.write(rescue, Rescuer(rescuer.id, 0.0), 1.0)


@pytest.mark.slow
@on_sqlite
def test_a_thread_that_does_not_end_is_named_and_ends_with_the_process(
    cli: Call, work: Callable[[str], Stubborn]
) -> None:
    answer = work("stubborn.thread").stop(signal.SIGTERM)
    assert answer.code == 0, answer.err
    assert "(stubborn.thread) does not end: abandoning its thread" in answer.err
    assert cli("runners", "--json").document["runners"] == []


@pytest.mark.slow
@on_sqlite
def test_a_coroutine_that_a_handler_left_behind_does_not_keep_the_process(
    cli: Call, work: Callable[[str], Stubborn]
) -> None:
    answer = work("stubborn.leaves").stop(signal.SIGTERM)
    assert answer.code == 0, answer.err
    assert cli("runners", "--json").document["runners"] == []
