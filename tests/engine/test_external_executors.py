"""Handlers run in the workers of external executors: a pool of concurrent.futures, and a Dask cluster."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from runner.engine.runner import Engine
from runner.errors import InvalidHandler, InvalidSettings, UnknownExecutor
from runner.handlers.registry import REGISTRY, Handler, Options
from runner.model.task import State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.executor_spec import parse_executors
from runner.queries.runners import runners
from runner.queries.why.why import why
from runner.settings import Settings
from tests.engine import external_handlers
from tests.engine.harness import Harness, until
from tests.ports import free_port

POOL = f"far={external_handlers.__name__}:processes"
FOLDER = Path(__file__).parents[2]


NAMES = [name for name in REGISTRY if REGISTRY[name].function.__module__ == external_handlers.__name__]
HANDLERS = {name: REGISTRY._handlers.pop(name) for name in NAMES}


@pytest.fixture
def far(harness: Harness) -> Harness:
    """A harness whose handlers run in an external executor."""
    harness.handlers |= HANDLERS
    return harness


@contextmanager
def dask_cluster(workers: int = 2, port: int = 0) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and workers, each with one thread, as processes: the address, and the processes."""
    port = port or free_port()
    address, environment = f"tcp://127.0.0.1:{port}", os.environ | {"PYTHONPATH": str(FOLDER)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    processes = [subprocess.Popen([*command, "--no-dashboard"], **quiet)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny"]
    worker += ["--nthreads", "1"]
    processes += [subprocess.Popen(worker, **quiet) for _ in range(workers)]
    try:
        yield address, processes
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


async def result(harness: Harness, id: int) -> Any:
    row = await harness.row(id)
    return None if row.result is None else json.loads(row.result) if isinstance(row.result, str) else row.result


async def begun(harness: Harness, id: int) -> bool:
    """True if the handler has sent its progress."""
    table = harness.database.tables.progress
    return await harness.count(table, table.c.task_id == id) == 1


async def test_functions_and_coroutines_run_in_other_processes_with_their_resources(far: Harness) -> None:
    added = await far.submit("far.add", {"a": 1, "b": 2})
    seen = await far.submit("far.seen")
    greeted = [await far.submit("far.greet", {"name": "hello"}) for _ in range(4)]
    async with far.running(executors=[POOL]):
        await far.wait_for(added, seen, *greeted)
    assert await result(far, seen) is True, "the functions of @around_process run in the worker"
    total, pid = await result(far, added)
    assert total == 3
    assert pid != os.getpid()
    texts = {await result(far, id) for id in greeted}
    assert all(re.fullmatch(r"hello from \d+", text) for text in texts)
    assert len(texts) <= 2, "a worker opens a resource once"


@pytest.mark.slow
async def test_failures_outcomes_notes_and_timeouts_come_back(far: Harness) -> None:
    failed, refused = await far.submit("far.fail"), await far.submit("far.refuse")
    noted, slept = await far.submit("far.notes"), await far.submit("far.sleep")
    local = await far.submit("far.local")
    async with far.running(executors=[POOL], retry="1ms"):
        await far.wait_for(failed, refused, noted, slept, local)
    (failure,) = await far.attempts(failed)
    assert (failure.error_type, failure.message) == ("ValueError", "no luck")
    assert "in fail" in failure.traceback
    assert "not today" in (await far.attempts(refused))[0].message
    assert await result(far, noted) == 7, "the second attempt continues from the checkpoint"
    assert (await far.attempts(slept))[0].error_type == "Timeout"
    assert "ctx.transaction() is not available" in (await far.attempts(local))[0].message
    log = far.database.tables.log
    lines = await far.rows(log.select().where(log.c.task_id == noted).order_by(log.c.fence, log.c.number))
    assert [line.line for line in lines] == ["attempt 1 here", "attempt 2 here"]


@pytest.mark.slow
async def test_a_terminate_reaches_the_handler(far: Harness) -> None:
    ids = [await far.submit("far.wait"), await far.submit("far.loop")]
    async with far.running(executors=[POOL]):
        for id in ids:
            await until(lambda id=id: begun(far, id))  # type: ignore[misc]
            await far.database.write(terminate, [Target(id)], Actor("ana", "desk", "no longer needed"))
        await far.wait_for(*ids)
    assert [await far.state(id) for id in ids] == [State.CANCELLED, State.SUCCEEDED], "a result decides"


@pytest.mark.slow
async def test_a_lost_worker_costs_its_task_an_attempt_and_the_others_none(far: Harness) -> None:
    waiting = await far.submit("far.wait")
    async with far.running(executors=[POOL], retry="1h") as runner:
        await until(lambda: begun(far, waiting))
        dying = await far.submit("far.die")
        await far.wait_for(dying)
        await until(lambda: runner.worker.in_flight.external["far"].size == 2)
        assert (await far.row(waiting)).attempt <= 1
    (attempt,) = (each for each in await far.attempts(dying) if each.verb != "interrupt")
    assert (attempt.error_type, attempt.verb) == ("WorkerLost", "die")
    assert "its worker process ended before the task" in attempt.message
    verbs = {each.verb for each in await far.attempts(waiting)}
    assert verbs <= {"interrupt"}, "its attempts do not count"


@pytest.mark.slow
async def test_an_executor_that_is_not_available_has_no_slots_and_why_names_it(
    far: Harness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.external.dask.CONNECT_TIMEOUT", 0.2)
    id = await far.submit("far.add", {"a": 1, "b": 2})
    async with far.running(executors=["far=dask:tcp://127.0.0.1:9"], heartbeat_interval="50ms"):
        await until(lambda: "executor far (dask:tcp://127.0.0.1:9) is not available" in caplog.text)
        (row,) = await far.database.read(runners)
        assert row.sizes["far"] == 0
        assert row.pool_of("far.add") == "far"
        explained = await far.database.read(why, id, UTC)
    assert any("executor far is not connected, or has no workers" in cause.text for cause in explained.causes)
    assert (await far.row(id)).attempt == 0


async def test_the_slots_of_an_executor_are_those_of_the_runner(far: Harness) -> None:
    async with far.running(executors=[POOL], concurrency=3, threads=2) as runner:
        await until(lambda: _has_slots(far, 2))
        (row,) = await far.database.read(runners)
    assert row.sizes == {"threads": 2, "processes": 0, "far": 2, "slots": 3}
    assert runner.worker.in_flight.capacity == 7


async def _has_slots(harness: Harness, number: int) -> bool:
    return [row.sizes["far"] for row in await harness.database.read(runners)] == [number]


@pytest.mark.slow
async def test_a_dask_cluster_runs_handlers_and_a_lost_worker_is_a_lost_attempt(far: Harness) -> None:
    with dask_cluster() as (address, _):
        added, noted = await far.submit("far.add", {"a": 1, "b": 2}), await far.submit("far.notes")
        stopped, dying = await far.submit("far.loop"), await far.submit("far.die")
        large = await far.submit("far.greet", {"name": "x" * 20_000})
        async with far.running(executors=[f"far=dask:{address}"], retry="1ms", poll_interval="50ms"):
            await until(lambda: begun(far, stopped))
            await far.database.write(terminate, [Target(stopped)], Actor("ana", "desk", "no longer needed"))
            await far.wait_for(added, noted, stopped, dying, large)
            assert await result(far, added) != 3
            assert (await result(far, large)).startswith("x" * 20_000), "no message of Dask carries it"
            assert await result(far, noted) == 7
            assert await far.state(stopped) == State.SUCCEEDED
            (attempt,) = await far.attempts(dying)
            assert attempt.error_type == "WorkerLost"
            assert "has left the cluster" in attempt.message
            await until(lambda: _has_slots(far, 1))


@pytest.mark.slow
async def test_a_lost_dask_cluster_hands_the_tasks_back_and_a_new_one_takes_them(far: Harness) -> None:
    with dask_cluster(workers=1) as (address, processes):
        waiting = await far.submit("far.wait")
        async with far.running(executors=[f"far=dask:{address}"], retry="1h", max_interruptions=None):
            await until(lambda: begun(far, waiting))
            for process in processes:
                process.send_signal(signal.SIGKILL)
            await until(lambda: _is(far, waiting, State.WAITING))
            assert (await far.row(waiting)).attempt == 0
            await until(lambda: _has_slots(far, 0))
            with dask_cluster(workers=1, port=int(address.rpartition(":")[2])):
                added = await far.submit("far.add", {"a": 1, "b": 2}, priority=9)
                await far.wait_for(added)


async def _is(harness: Harness, id: int, state: State) -> bool:
    return await harness.state(id) == state


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("far", "does not begin with a new name and ="),
        ("process=dask:tcp://a:1", "does not begin with a new name and ="),
        ("Far=dask:tcp://a:1", "does not begin with a new name and ="),
        ("far=nonsense", "'nonsense' is no engine: use dask:ADDRESS, ray:ADDRESS, or package.module:function"),
        ("far=dask:", "'dask:' is no engine"),
    ],
)
def test_a_setting_that_is_not_valid_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(why)):
        parse_executors([text])


def test_a_runner_refuses_an_executor_that_it_does_not_have_at_its_start() -> None:
    handlers = {"far.add": HANDLERS["far.add"]}
    with pytest.raises(UnknownExecutor, match=r"not in the setting executors\. Known are async, thread, process"):
        Engine(Settings(), handlers)
    with pytest.raises(InvalidSettings, match=r"far \(tests\.engine\.nowhere:pool\): ModuleNotFoundError"):
        Engine(Settings(executors=("far=tests.engine.nowhere:pool",)), handlers)


async def test_a_function_that_returns_no_executor_is_named(far: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async with far.running(executors=[f"far={external_handlers.__name__}:not_an_executor"]):
        await until(
            lambda: "the function returned a value of type object, not a concurrent.futures.Executor" in caplog.text
        )


def test_a_function_that_no_worker_can_import_is_refused() -> None:
    def nested() -> None: ...

    with pytest.raises(InvalidHandler, match='executor="far" needs a function that another process can import'):
        Handler("a.b", nested, Options(executor="far")).require()
