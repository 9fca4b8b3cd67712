"""Hostile handlers: each costs its own attempt only; its runner and the handlers beside it go on.

One runner process executes most of them, one after the other, each beside healthy handlers in a coroutine, a thread and
a process.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.handlers.registry import REGISTRY
from tests.conftest import SqliteDatabases, on_postgresql
from tests.databases import database_at
from tests.engine import hostile_handlers
from tests.engine.harness import Harness, until
from tests.engine.hostile_handlers import ACTS
from tests.programs import Program

for _name in [name for name in REGISTRY if REGISTRY[name].function.__module__ == hostile_handlers.__name__]:
    REGISTRY._handlers.pop(_name)  # other tests of this process do not see them

SETTINGS = {
    "TASKTUI_POLL_INTERVAL": "100ms",
    "TASKTUI_SQLITE_POLL_INTERVAL": "50ms",
    "TASKTUI_SETTLE_INTERVAL": "1ms",
    "TASKTUI_HEARTBEAT_INTERVAL": "300ms",
    "TASKTUI_LEASE_TIMEOUT": "3s",
    "TASKTUI_DRAIN_TIMEOUT": "3s",
    "TASKTUI_PROCESSES": "2",
    "TASKTUI_LOG_FORMAT": "human",  # it reads the text of an exception itself
}

END_TIMEOUT = 30.0

FAILURES = {
    "cancel_self": "CancelledError: the handler's task was cancelled from inside, not by the runner",
    "cancel_self_later": "CancelledError: the handler's task was cancelled from inside, not by the runner",
    "cancel_self_and_raise": "ValueError: after its own cancellation",
    "await_cancelled": "CancelledError: the handler raised it, or awaited something that was cancelled",
    "cancel_all": "CancelledError: the handler's task was cancelled from inside, not by the runner",
    "stop_loop": "may not stop the event loop, which runs the other tasks of its runner too",
    "close_loop": "RuntimeError: Cannot close a running event loop",
    "run_loop": "RuntimeError: This event loop is already running",
    "run_asyncio": "RuntimeError: asyncio.run() cannot be called from a running event loop",
    "text_raises": "TextRaises: (message not readable)",
    "text_exits": "TextRaises: (message not readable)",
    "text_interrupts": "TextRaises: (message not readable)",
    "base_text_exits": "BaseTextRaises: (message not readable)",
    "text_raises_later": "TextRaisesLater: fine so far",
    "text_is_none": "TextIsNone: (message not readable)",
    "cause_exits": "ValueError: outer",
    "group_exits": "ExceptionGroup: several (2 sub-exceptions)",
    "unloadable": "Unloadable: x",
    "unpicklable": "Unpicklable: two arguments",
    "reduce_exits": "ReduceExits: x",
    "exit_process": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
    "stop_iteration": "StopIteration",
    "recursion": "RecursionError",
}
"""The failures by act; the attempts of the other acts succeed."""

FAILURES_IN_THREADS = dict.fromkeys(("ignore_signals", "default_signals"), "signal only works in main thread")
FAILURES_IN_THREADS["handle_signals"] = FAILURES_IN_THREADS["ignore_signals"]

CLOSES_ALL = {"close_all_descriptors", "close_all_descriptors_and_hold_interpreter"}
"""The acts after which a process has lost its runner."""

ENDS_RUNNER = {*CLOSES_ALL, "close_selector", "close_self_pipe", "exit_at_once"}
"""The acts after which no runner can go on."""

FOR_RUNNER = {"cancel_all_from_thread", "stop_loop_from_own_thread", "close_sockets", *ENDS_RUNNER}
"""The acts that concern the process of a runner only."""

IS_ASYNC = {name: asyncio.iscoroutinefunction(function) for name, function in ACTS.items()}

QUICK = {
    "hostile.async": {
        "cancel_self",
        "cancel_self_later",
        "cancel_all",
        "stop_loop",
        "ignore_signals",
        "text_exits",
        "fail_loop",
    },
    "hostile.thread": {"cancel_all_from_thread", "stop_loop_from_own_thread", "set_alarm", "lower_recursion_limit"},
    "hostile.process": {"unloadable", "reduce_exits", "text_exits", "print_much", "return_function"},
    "hostile.process_async": {"cancel_self", "cancel_all"},
}
"""The acts of the ordinary run; `-m slow` executes all."""


def _cases() -> Iterator[Any]:
    for act, is_async in IS_ASYNC.items():
        kinds = ["hostile.async"] if is_async else ["hostile.async", "hostile.thread"]
        kinds = [] if act in ENDS_RUNNER else kinds
        kinds += [] if act in FOR_RUNNER else ["hostile.process_async" if is_async else "hostile.process"]
        for kind in kinds:
            marks = () if act in QUICK[kind] else (pytest.mark.slow,)
            yield pytest.param(kind, act, marks=marks, id=f"{kind.removeprefix('hostile.')}-{act}")


class Deployment:
    """A database with a runner process of the hostile handlers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._log, self._count = folder / "log", 0
        self.program = self.start()

    def start(self) -> Program:
        """Start the runner."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
        environment |= SETTINGS | {"TASKTUI_URL": self.url}
        arguments = ("work", "-H", hostile_handlers.__name__)
        directory = Path(__file__).parents[2]
        self.program = Program("runner", *arguments, log=self._log, directory=directory, environment=environment)
        return self.program

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        """Stop the runner by SIGTERM, and return its exit code."""
        self.program.send_signal(signal.SIGTERM)
        return self.program.wait(END_TIMEOUT)

    def kill(self) -> None:
        self.program.kill()

    @asynccontextmanager
    async def trial(self) -> AsyncIterator["Trial"]:
        """Yield a trial in a folder of its own."""
        if self.program.poll() is not None:
            self.start()
        self._count += 1
        folder = self.folder / str(self._count)
        folder.mkdir()
        async with database_at(self.url) as database:
            yield Trial(Harness(database, self.url), folder, self)


class Trial:
    """One hostile handler beside its neighbours."""

    def __init__(self, harness: Harness, folder: Path, deployment: Deployment) -> None:
        self.harness, self.folder, self._deployment = harness, folder, deployment
        self.neighbours: list[int] = []

    async def begin(self, *, max_attempts: int = 1, processes: bool = True) -> None:
        """Start the neighbours."""
        kinds = ["async", "thread", "process"] if processes else ["async", "thread"]
        await self._start(kinds, max_attempts)
        await until(lambda: all(self.runs(kind) for kind in kinds))

    async def _start(self, kinds: list[str], max_attempts: int = 1, prefix: str = "") -> None:
        for kind in kinds:
            payload = {"folder": str(self.folder), "name": prefix + kind}
            handler = f"neighbour.{kind}"
            self.neighbours.append(await self.harness.submit(handler, payload, max_attempts=max_attempts))

    async def submit(self, kind: str, act: str) -> int:
        return await self.harness.submit(kind, {"act": act, "folder": str(self.folder)}, max_attempts=1)

    def runs(self, name: str) -> int:
        """The number of executions of a handler."""
        file = self.folder / name
        return len(file.read_text()) if file.exists() else 0

    async def end(self, *, processes: bool = True) -> list[tuple[str, int]]:
        """Let the neighbours end, with further ones that start now; return their states and attempts."""
        (self.folder / "go").touch()
        await self._start(["async", "thread", "process"] if processes else ["async", "thread"], prefix="later-")
        await self.harness.wait_for(*self.neighbours)
        rows = [await self.harness.row(id) for id in self.neighbours]
        return [(row.state, row.attempt) for row in rows]


@pytest.fixture(scope="module")
def deployment(sqlite: SqliteDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("hostile")
    deployment = Deployment(sqlite.migrated(folder), folder)
    try:
        yield deployment
        assert deployment.stop() == 0
    finally:
        deployment.kill()


@pytest.mark.representatives(6)
@pytest.mark.parametrize(("kind", "act"), [*_cases()])
async def test_a_hostile_handler_costs_its_own_attempt_only(deployment: Deployment, kind: str, act: str) -> None:
    async with deployment.trial() as trial:
        await trial.begin()
        pid = deployment.program.pid
        hostile = await trial.submit(kind, act)
        await trial.harness.wait_for(hostile)
        assert await trial.end() == [("succeeded", 1)] * 6
        row = await trial.harness.row(hostile)
        failure = FAILURES.get(act)
        if (kind, act) == ("hostile.async", "cancel_all_from_thread"):  # its own coroutine is one of them
            failure = FAILURES["cancel_all"]
        if not kind.endswith("async"):
            failure = FAILURES_IN_THREADS.get(act, failure)
        assert (row.state, row.attempt) == (("dead", 1) if failure else ("succeeded", 1)), row.error
        assert failure is None or failure in row.error or (kind == "hostile.async" and act == "stop_iteration")
        assert trial.runs("hostile") == 1
        # An asyncio task of a neighbour that another handler cancels takes its attempt along, which counts nothing.
        assert trial.runs("async") == 1 or act in ("cancel_all", "cancel_all_others", "cancel_all_from_thread")
        assert [trial.runs(name) for name in ("thread", "process", "later-async", "later-thread")] == [1, 1, 1, 1]
        assert (deployment.program.pid, deployment.program.poll()) == (pid, None), deployment.log
    assert "unexpected" not in deployment.log


SLOW_SIGNALS = ("default_signals", "handle_signals", "add_signal_handler", "block_signals", "set_all_timers")


@pytest.mark.parametrize("acts", [("ignore_signals",), pytest.param(SLOW_SIGNALS, marks=pytest.mark.slow)])
async def test_a_runner_drains_after_a_handler_has_changed_its_signals(
    sqlite: SqliteDatabases, tmp_path: Path, acts: tuple[str, ...]
) -> None:
    deployment = Deployment(sqlite.migrated(tmp_path), tmp_path)
    try:
        for act in acts:
            async with deployment.trial() as trial:
                hostile = await trial.submit("hostile.async", act)
                await trial.harness.wait_for(hostile)
                assert (await trial.harness.row(hostile)).state == "succeeded"
            cause = f"probably the cause: task {hostile} (hostile.async)"
            found = "a handler has changed the process of its runner, restored: "
            await until(lambda: deployment.log.count(found) >= acts.index(act) + 1)  # noqa: B023 - awaited here
            assert act == "block_signals" or cause in deployment.log
        assert deployment.stop() == 0
        assert "stopped: " in deployment.log
    finally:
        deployment.kill()


@pytest.mark.parametrize(
    ("kind", "act", "code", "line"),
    [
        ("hostile.async", "close_all_descriptors", 1, "has probably closed descriptors"),
        pytest.param("hostile.thread", "close_self_pipe", 1, "self-pipe, descriptor", marks=pytest.mark.slow),
        pytest.param("hostile.async", "close_selector", 1, "the event loop cannot go on", marks=pytest.mark.slow),
        pytest.param("hostile.async", "exit_at_once", 3, "", marks=pytest.mark.slow),
    ],
)
async def test_a_runner_that_cannot_go_on_exits_with_a_reason_and_its_tasks_are_rescued(
    sqlite: SqliteDatabases, tmp_path: Path, kind: str, act: str, code: int, line: str
) -> None:
    deployment = Deployment(sqlite.migrated(tmp_path), tmp_path)
    try:
        async with deployment.trial() as trial:
            await trial.begin(max_attempts=2, processes=False)
            hostile = await trial.submit(kind, act)
            assert await asyncio.to_thread(deployment.program.wait, END_TIMEOUT) == code
            assert line in deployment.log
            assert not line or "a handler has probably closed descriptors that it did not open" in deployment.log
            assert "Traceback" not in deployment.log
            deployment.start()
            (trial.folder / "go").touch()
            assert await trial.end(processes=False) == [("succeeded", 2)] * 2 + [("succeeded", 1)] * 2
            await trial.harness.wait_for(hostile)
            row = await trial.harness.row(hostile)
            # The outcome may have been written before the runner noticed that it had lost its descriptors.
            assert row.state == "succeeded" if row.error is None else "runner lost" in row.error
            assert trial.runs("hostile") == 1
        assert deployment.stop() == 0
    finally:
        deployment.kill()


@pytest.mark.parametrize("act", sorted(CLOSES_ALL))
async def test_a_process_handler_that_closes_all_descriptors_fails_at_once(deployment: Deployment, act: str) -> None:
    async with deployment.trial() as trial:
        await trial.begin()
        hostile = await trial.submit("hostile.process", act)
        await trial.harness.wait_for(hostile)
        row = await trial.harness.row(hostile)
        assert row.error == (
            "ProcessCrashed: its process has lost the socket to the runner, probably because the handler closed "
            "descriptors that it did not open"
        )
        assert await trial.end() == [("succeeded", 1)] * 6


@on_postgresql
async def test_closed_connections_to_the_database_are_an_outage_that_heals(migrated_url: str, tmp_path: Path) -> None:
    deployment = Deployment(migrated_url, tmp_path)
    try:
        async with deployment.trial() as trial:
            await trial.begin(processes=False)
            hostile = await trial.submit("hostile.thread", "close_sockets")
            await trial.harness.wait_for(hostile)
            assert await trial.end(processes=False) == [("succeeded", 1)] * 4
            assert (await trial.harness.row(hostile)).state == "succeeded"
        assert deployment.stop() == 0
    finally:
        deployment.kill()
