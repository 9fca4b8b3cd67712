"""Process handlers: results, failures, crashes, kills, limits, notes and the end of their processes."""

import asyncio
import importlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from runner import Context, Dead, around_execute, handler
from runner.engine.processes import attempt as process_attempt
from runner.engine.processes.messages import Channel
from runner.engine.processes.pool import ProcessPool
from runner.engine.processes.remote import Requests
from runner.engine.resource_meter import resident_memory
from runner.errors import InvalidHandler
from runner.handlers import registry
from runner.handlers.hooks import LIFE_CYCLE
from runner.handlers.registry import REGISTRY, Handler, Options
from runner.logs import TaskFilter
from runner.model.task import DependsOn
from runner.operations.results import Actor, Target
from runner.operations.runner_command import send_command
from runner.operations.terminate import terminate
from tests.conftest import on_sqlite, sqlite_first
from tests.engine import process_handlers
from tests.engine.harness import Harness, until
from tests.programs import Program

ANA = Actor("ana", "desk", None)

NAMES = [name for name in REGISTRY if REGISTRY[name].function.__module__ == process_handlers.__name__]
HANDLERS = {name: REGISTRY._handlers.pop(name) for name in NAMES}
"""The handlers of the module; other tests of this process do not see them."""


@pytest.fixture(autouse=True)
def processes(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESS_FOLDER", str(tmp_path))
    harness.handlers |= HANDLERS


def is_dead(pid: int) -> bool:
    """True if a process has ended, or is a zombie of another process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def result(harness: Harness, task_id: int) -> Any:
    row = await harness.row(task_id)
    assert row.state == "succeeded", row.error
    return json.loads(row.result) if isinstance(row.result, str) else row.result


@pytest.mark.slow
@on_sqlite
async def test_a_process_is_reused_opens_its_resources_once_and_is_replaced_after_its_last_task(
    harness: Harness,
) -> None:
    ids = [await harness.submit("process.pid") for _ in range(3)]
    models = [await harness.submit("process.model", {"number": number}) for number in range(2)]
    await harness.work(processes=1, tasks_per_process=4)
    pids = [await result(harness, id) for id in ids]
    assert os.getpid() not in pids
    results = [await result(harness, id) for id in models]
    used = [*pids, *(None for _ in results)]
    assert len({pid for pid in used if pid}) <= 2
    assert [number for number, _, _ in results] == [0, 1]
    assert all(opened == 1 and injected for _, opened, injected in results)
    assert all(is_dead(pid) for pid in pids)


@pytest.mark.slow
@on_sqlite
async def test_exceptions_cross_with_their_traceback_and_meet_on_error(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [await harness.submit("process.fail", {"kind": kind}, max_attempts=2) for kind in ("key", "value", "dead")]
    none = await harness.submit("process.none")
    await harness.work(processes=2)
    (refused,) = await harness.attempts(none)
    assert (refused.message, refused.rule) == (
        "none on attempt 1 (None where a result of type int is declared)",
        "dead, by on_none of the handler",
    )
    attempts = [await harness.attempts(id) for id in ids]
    assert [len(rows) for rows in attempts] == [1, 2, 1]
    assert [rows[0].error_type for rows in attempts[:2]] == ["KeyError", "ValueError"]
    assert "process_handlers.py" in attempts[1][0].traceback
    assert "runner/engine" not in attempts[1][0].traceback
    assert any("in fail" in (record.exc_text or "") and record.exc_info is None for record in caplog.records)


@sqlite_first
async def test_a_crash_takes_only_its_task_and_names_the_signal(harness: Harness) -> None:
    crashes = [await harness.submit("process.crash", {"how": how}, max_attempts=1) for how in ("segfault", "exit")]
    others = [await harness.submit("process.pid") for _ in range(3)]
    await harness.work(processes=2)
    rows = [(await harness.attempts(id))[0] for id in crashes]
    assert [row.error_type for row in rows] == ["ProcessCrashed", "ProcessCrashed"]
    assert "killed by SIGSEGV" in rows[0].message
    assert "process_handlers.py" in rows[0].traceback
    assert "exited with code 3" in rows[1].message
    assert [await harness.state(id) for id in others] == ["succeeded"] * 3


@on_sqlite
async def test_an_attempt_whose_process_cannot_start_fails_and_names_the_reason(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    id = await harness.submit("process.pid", max_attempts=1)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "removed"))
    await harness.work(processes=1)
    (attempt,) = await harness.attempts(id)
    assert attempt.error_type == "ProcessNotStarted"
    assert "its process could not start: [Errno 2] No such file or directory" in attempt.message


IMPORT_IN_THE_RUNNER_ONLY = """
import os, time
from runner import handler

while os.getpid() != {runner}:
    time.sleep(0.05)

@handler("process.slow_import", executor="process")
def slow_import() -> None:
    pass
"""


@pytest.mark.slow
@on_sqlite
async def test_an_attempt_fails_if_the_import_of_its_module_does_not_end(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "slow_import.py").write_text(IMPORT_IN_THE_RUNNER_ONLY.format(runner=os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(process_attempt, "START_TIMEOUT", 1.0)
    importlib.import_module("slow_import")
    harness.handlers["process.slow_import"] = REGISTRY._handlers.pop("process.slow_import")
    id = await harness.submit("process.slow_import", max_attempts=1)
    await harness.work(processes=1)
    (attempt,) = await harness.attempts(id)
    assert (attempt.error_type, attempt.message) == (
        "ProcessNotStarted",
        "its process did not start within 1 s",
    )


@on_sqlite
async def test_a_timeout_kills_c_code_and_its_children(harness: Harness, tmp_path: Path) -> None:
    holding = await harness.submit("process.hold", max_attempts=1)
    slept = await harness.submit("process.async", max_attempts=1)
    await harness.work(processes=2, lease_timeout="60s")  # the lease outlasts the timeouts on a slow machine too
    assert [(await harness.attempts(id))[0].error_type for id in (holding, slept)] == ["Timeout", "Timeout"]
    child = int((tmp_path / "child").read_text())
    await until(lambda: is_dead(child))


@pytest.mark.slow
@on_sqlite
async def test_a_memory_limit_fails_the_attempt_with_this_reason(harness: Harness) -> None:
    task = await harness.submit("process.memory", max_attempts=1)
    after = await harness.submit("process.pid")
    await harness.work(processes=1)
    row = (await harness.attempts(task))[0]
    assert row.error_type == "MemoryLimit"
    assert "memory_limit of 256 MiB" in row.message
    assert "in memory" in row.traceback
    assert await harness.state(after) == "succeeded"


@pytest.mark.slow
@sqlite_first
async def test_a_terminate_lets_a_handler_clean_up_and_kills_another(harness: Harness, tmp_path: Path) -> None:
    tidy = await harness.submit("process.tidy", {"folder": str(tmp_path)})
    deaf = await harness.submit("process.wait", {"folder": str(tmp_path)})
    async with harness.running(processes=2):
        await until(lambda: (tmp_path / "started").exists() and (tmp_path / "pids").exists())
        await harness.database.write(terminate, [Target(tidy), Target(deaf)], ANA)
        await harness.wait_for(tidy, deaf)
        assert (tmp_path / "tidied").exists()
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        await until(lambda: all(map(is_dead, pids)))
    assert [await harness.state(id) for id in (tidy, deaf)] == ["cancelled", "cancelled"]


@pytest.mark.slow
async def test_a_stop_interrupts_without_costing_an_attempt_and_leaves_no_process(
    harness: Harness, tmp_path: Path
) -> None:
    task = await harness.submit("process.wait", {"folder": str(tmp_path)})
    async with harness.running(processes=1, drain_timeout="100ms"):
        await until((tmp_path / "pids").exists)
    row = await harness.row(task)
    assert (row.state, row.attempt, row.interruptions) == ("waiting", 0, 1)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    await until(lambda: all(map(is_dead, pids)))


async def test_a_pool_closes_though_a_process_of_the_application_inherited_its_pipes(harness: Harness) -> None:
    pool = ProcessPool(harness.runner().settings)
    pool._reaper.start()
    reaper = pool._reaper.process
    assert reaper is not None
    assert reaper.stdin is not None
    with subprocess.Popen(["/bin/sleep", "600"], pass_fds=(reaper.stdin.fileno(),)) as inherited:  # as after a fork
        try:
            await pool.close()
        finally:
            inherited.kill()
    assert reaper.poll() is not None


@pytest.mark.slow
@on_sqlite
async def test_a_killed_runner_leaves_no_process(harness: Harness, migrated_url: str, tmp_path: Path) -> None:
    await harness.submit("process.wait", {"folder": str(tmp_path)})
    arguments = ("work", "-H", process_handlers.__name__)
    environment = os.environ | {"TASKTUI_URL": migrated_url}
    log, directory = tmp_path / "log", Path(__file__).parent.parent.parent
    program = Program("runner", *arguments, log=log, directory=directory, environment=environment)
    try:
        await until((tmp_path / "pids").exists)
    finally:
        program.kill()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    await until(lambda: all(map(is_dead, pids)))


@pytest.mark.slow
@sqlite_first
async def test_notes_cross_and_survive_a_kill(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task = await harness.submit("process.notes", {"secret": "hunter2-hunter2"})
    await harness.work(processes=1)
    assert await result(harness, task) == [{"step": 5}, 2]
    log = harness.database.tables.log
    lines = await harness.rows(sa.select(log).where(log.c.task_id == task).order_by(log.c.fence, log.c.number))
    assert {row.attempt for row in lines} == {1, 2}
    assert "hunter2" not in "".join(row.line for row in lines)
    progress = (await harness.rows(sa.select(harness.database.tables.progress)))[0]
    assert (progress.done, progress.total) == (2.0, 4.0)
    assert any(record.name == "shop" and record.getMessage() == "a line of a library" for record in caplog.records)


@pytest.mark.slow
@on_sqlite
async def test_a_record_of_a_library_carries_the_task_that_runs_in_the_process(
    harness: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caplog.handler, "filters", [TaskFilter()])
    first = await harness.submit("process.pid", priority=9)
    task = await harness.submit("process.notes", {"secret": "-"})
    await harness.work(processes=1)
    assert await result(harness, first) > 0
    tasks = [vars(record)["task"] for record in caplog.records if record.getMessage() == "a line of a library"]
    assert tasks == [task, task]


@pytest.mark.slow
@sqlite_first
async def test_a_timeout_in_a_process_abandons_no_thread(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = await harness.submit("process.wait", {"folder": str(tmp_path)}, max_attempts=1, timeout=0.2)
    await harness.work(processes=1)
    assert [attempt.error_type for attempt in await harness.attempts(task)] == ["Timeout"]
    assert "abandon" not in caplog.text


@pytest.mark.slow
@on_sqlite
async def test_what_cannot_cross_is_refused_with_advice(harness: Harness) -> None:
    tasks = [await harness.submit(name, max_attempts=1) for name in ("process.transaction", "process.invalid")]
    await harness.work(processes=1)
    first, second = [(await harness.attempts(id))[0] for id in tasks]
    assert first.error_type == "runner.errors.TransactionInProcess"
    assert 'remove executor="process"' in first.message
    assert second.error_type == "runner.errors.InvalidCheckpoint"


@pytest.mark.slow
@sqlite_first
async def test_the_stack_of_each_executor_is_in_the_log_of_the_attempt(harness: Harness, tmp_path: Path) -> None:
    go_on, in_thread = asyncio.Event(), threading.Event()

    @harness.handler("async")
    async def waits() -> None:
        await inner(go_on)

    @harness.handler("thread")
    def blocks(ctx: Context, password: str) -> None:
        in_thread.wait()

    ids = [
        await harness.submit("async"),
        await harness.submit("thread", {"password": "hunter2"}),
        await harness.submit("process.wait", {"folder": str(tmp_path)}),
        await harness.submit("process.held", {"folder": str(tmp_path)}),
    ]
    async with harness.running(processes=2, drain_timeout="100ms") as runner:
        await until(lambda: (tmp_path / "pids").exists() and (tmp_path / "held").exists())
        await until(lambda: len(runner.worker.in_flight.started()) == len(ids))
        stacks = [await stack(harness, runner.lease.id, id) for id in ids]
        go_on.set()
        in_thread.set()
    assert "event loop of process" in stacks[0][0]
    assert [line.partition(" in ")[2] for line in stacks[0][1:3]] == [
        f"{waits.__qualname__}: await inner(go_on)",
        "inner: await event.wait()",
    ]
    assert "thread of process" in stacks[1][0]
    assert f"in {blocks.__qualname__}: in_thread.wait()" in stacks[1][1]
    pid = (tmp_path / "pids").read_text().split()[0]
    assert stacks[2][0].startswith(f"process {pid}, ")
    assert "process_handlers.py" in stacks[2][1]
    assert "probably C code holds the interpreter lock" in stacks[3][1]
    assert any("process_handlers.py" in line and "in hold_lock" in line for line in stacks[3])


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def stack(harness: Harness, runner_id: int, task_id: int) -> list[str]:
    """Ask a runner for a stack, and wait for its lines."""
    await harness.database.write(send_command, runner_id, f"stack={task_id}", ANA)
    log = harness.database.tables.log
    lines = sa.select(log.c.line).where(log.c.task_id == task_id, log.c.level == "stack").order_by(log.c.number)
    await until(lambda: has_rows(harness, lines))
    return [row.line for row in await harness.rows(lines)]


async def has_rows(harness: Harness, statement: Any) -> bool:
    return bool(await harness.rows(statement))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"executor": "a fork"}, 'use "async", "thread", "process" or a name of the setting executors'),
        ({"executor": "async"}, "define it with async def"),
        ({"memory_limit": 10**9}, 'memory_limit needs executor="process"'),
        ({"executor": "process", "memory_limit": 10**6}, "Python and this package need"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], reason: str) -> None:
    def work() -> None: ...

    with pytest.raises(InvalidHandler, match=reason):
        Handler("work", work, Options(**options))


def test_a_function_that_no_process_can_import_is_refused() -> None:
    def work() -> None: ...

    with pytest.raises(InvalidHandler, match="another process can import"):
        Handler("work", work, Options(executor="process")).require()
    with pytest.raises(InvalidHandler, match="512 potatoes"):
        handler("work", executor="process", memory_limit="512 potatoes")


@pytest.mark.slow
@on_sqlite
async def test_the_resources_of_a_runner_include_those_of_its_processes(harness: Harness) -> None:
    task = await harness.submit("process.hold", max_attempts=1)
    async with harness.running(processes=1, heartbeat_interval="1h", lease_timeout="2h") as runner:
        await until(lambda: len(runner.worker.executor.process_ids()) == 1)
        (pid,) = runner.worker.executor.process_ids()
        own, theirs = resident_memory(os.getpid()), resident_memory(pid)
        assert own
        assert theirs
        usage = runner.worker.meter.read()
        assert usage.memory is not None
        assert usage.memory > own + (resident_memory(pid) or 0) / 2
        assert usage.cpu is not None
        used = time.process_time()
        while time.process_time() < used + 0.2:
            sum(range(1000))
        cpu = runner.worker.meter.read().cpu
        assert cpu is not None
        assert 0 < cpu < 2 * (os.cpu_count() or 1)
        await harness.wait_for(task)


@on_sqlite
async def test_a_memory_limit_that_the_system_ignores_is_named_at_the_start(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.running():
        pass
    assert "memory_limit" not in caplog.text
    monkeypatch.setattr(registry, "LIMITS_MEMORY", False)
    async with harness.running():
        pass
    assert "memory_limit has no effect on " in caplog.text
    assert "process.memory may use all memory" in caplog.text


@pytest.mark.slow
async def test_the_results_of_the_parents_are_read_in_the_process(harness: Harness) -> None:
    @harness.handler("number")
    async def number(value: int) -> int:
        return value

    @harness.handler("number.bad", max_attempts=1)
    async def bad() -> int:
        raise ValueError("no number")

    numbers = [await harness.submit("number", {"value": value}) for value in (5, 3)]
    failed = await harness.submit("number.bad")
    plain_after = tuple(DependsOn(parent, "run") for parent in (numbers[0], failed))
    plain = await harness.submit("process.parents", after=plain_after)
    coroutine = await harness.submit("process.parents_async", after=tuple(DependsOn(parent) for parent in numbers))
    await harness.work(processes=1)
    first, error = await result(harness, plain)
    assert (first, "no number" in error) == ("5", True)
    assert await result(harness, coroutine) == [5, 3]


@pytest.mark.slow
@on_sqlite
async def test_middleware_wraps_a_handler_in_a_process(harness: Harness) -> None:
    results: list[Any] = []

    @around_execute
    async def watch(ctx: Context) -> AsyncIterator[None]:
        try:
            results.append((ctx.handler, (yield)))
        except KeyError as error:
            raise Dead("no such key") from error

    try:
        done = await harness.submit("process.model", {"number": 4})
        failed = await harness.submit("process.fail", {"kind": "key"})
        await harness.work(processes=1)
    finally:
        LIFE_CYCLE.clear()
    assert results == [("process.model", [4, 1, True])]
    assert (await result(harness, done))[0] == 4
    row = await harness.row(failed)
    assert (row.state, row.error) == ("dead", "KeyError: no such key ('bad input')")


@pytest.mark.slow
async def test_the_steps_of_a_killed_process_are_kept(harness: Harness) -> None:
    table = harness.database.tables.signal
    killed, refused = await harness.submit("process.steps"), await harness.submit("process.paid")
    await harness.change(sa.insert(table).values(task_id=killed, name="go", payload="7"))
    async with harness.running():
        await harness.wait_for(killed, refused)
    assert (await harness.row(killed)).result.replace(" ", "") == "[true,7]"
    assert (await harness.row(killed)).attempt == 2
    assert "TransactionInProcess" in (await harness.row(refused)).error


async def test_a_child_inherits_the_trace_of_the_process_task_that_calls_it(harness: Harness) -> None:
    traces = [f"00-{digit * 32}-{digit * 16}-01" for digit in "12"]
    tasks = [await harness.submit("process.call", headers=json.dumps({"traceparent": trace})) for trace in traces]
    await harness.work(processes=1)
    assert [json.loads((await harness.row(task)).result) for task in tasks] == traces


@pytest.mark.parametrize("error", [None, ValueError("late")])
async def test_a_reply_to_a_call_that_a_timeout_has_ended_is_ignored(error: ValueError | None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        requests = Requests(Channel(ours), asyncio.get_running_loop(), lambda _: None)
        call = asyncio.ensure_future(requests.ask("save", "{}"))
        assert (await asyncio.to_thread(Channel(theirs).receive))[:2] == ("save", 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        requests.reply(1, None, error)
        call = asyncio.ensure_future(requests.ask("save", "{}"))
        await asyncio.sleep(0)
        requests.reply(2, "stored", None)
        assert await call == "stored"
