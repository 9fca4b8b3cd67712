"""Handlers run in the workers of a Ray cluster."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runner.errors import InvalidSettings
from runner.model.task import State
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from runner.policy.executor_spec import parse_executors
from tests.engine import external_handlers
from tests.engine.harness import Harness, until
from tests.engine.test_external_executors import HANDLERS, begun, result
from tests.ports import free_port

FOLDER = Path(external_handlers.__file__).parents[2]


def test_a_process_connects_to_one_cluster_of_ray() -> None:
    assert parse_executors(["far=ray:auto"])["far"].engine == "ray"
    with pytest.raises(InvalidSettings, match="is a second cluster of Ray: a process can connect to one"):
        parse_executors(["far=ray:auto", "away=ray:head:10001"])


class Cluster:
    """A head node of Ray with two processors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0

    async def start(self) -> None:
        """Start the head node, on the ports of the last start."""
        ports = [free_port() for _ in range(2)]
        self.port = self.port or ports[0]
        command = ["start", "--head", "--num-cpus=2", f"--port={ports[1]}", f"--ray-client-server-port={self.port}"]
        options = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={self._folder}"]
        await self._run(*command, *options, "--min-worker-port=0", "--max-worker-port=0")

    async def stop(self) -> None:
        """Kill all processes of the cluster."""
        await self._run("stop", "--force")

    def freeze(self, name: bytes) -> None:
        """Stop the process with a text in its command line, so that it answers no more."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                environment = Path(f"/proc/{parent}/environ").read_bytes()  # a title overwrites that of a worker
                if name in (folder / "cmdline").read_bytes() and f"CLUSTER={self._folder}".encode() in environment:
                    os.kill(int(folder.name), signal.SIGSTOP)
                    return
        raise LookupError(name)

    async def _run(self, *arguments: str) -> None:
        own = {"PYTHONPATH": str(FOLDER), "RAY_USAGE_STATS_ENABLED": "0", "CLUSTER": str(self._folder)}
        environment = os.environ | own
        program = Path(sys.executable).with_name("ray")
        quiet = subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(program, *arguments, env=environment, stdout=quiet, stderr=quiet)
        assert await process.wait() == 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    pytest.importorskip("ray", reason="Ray is large: uv run --extra ray pytest -m slow tests/engine/test_ray.py")
    cluster = Cluster(Path("/tmp") / f"ray-{tmp_path.name}"[:40])
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


@pytest.fixture
def far(harness: Harness) -> Harness:
    harness.handlers |= HANDLERS
    return harness


@pytest.mark.slow
@pytest.mark.both_databases
async def test_a_ray_cluster_runs_the_tasks_and_the_loss_of_a_worker_costs_one_attempt(
    far: Harness, cluster: Cluster
) -> None:
    added, greeted = await far.submit("far.add", {"a": 1, "b": 2}), await far.submit("far.greet", {"name": "hello"})
    failed, noted = await far.submit("far.fail"), await far.submit("far.notes")
    async with far.running(executors=[f"far=ray:127.0.0.1:{cluster.port}"], retry="1ms"):
        await far.wait_for(added, greeted, failed, noted)
        total, pid = await result(far, added)
        assert total == 3
        assert pid != os.getpid()
        assert re.fullmatch(r"hello from \d+", await result(far, greeted))
        assert (await far.attempts(failed))[0].message == "no luck"
        assert await result(far, noted) == 7, "the second attempt continues from the checkpoint"
        waiting = await far.submit("far.wait")
        await until(lambda: begun(far, waiting))
        await far.database.write(terminate, [Target(waiting)], Actor("ana", "desk", "no longer needed"))
        await far.wait_for(waiting)
        assert await far.state(waiting) == State.CANCELLED
        died = await far.submit("far.die")
        await far.wait_for(died)
        assert [each.error_type for each in await far.attempts(died)] == ["WorkerLost"]


@pytest.mark.slow
async def test_tasks_are_handed_back_when_the_cluster_is_gone_and_run_when_it_is_back(
    far: Harness, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with far.running(executors=[f"far=ray:127.0.0.1:{cluster.port}"], retry="1ms"):
        waiting = await far.submit("far.wait")
        await until(lambda: begun(far, waiting))
        await cluster.stop()
        async with asyncio.timeout(150):
            while "is lost" not in caplog.text:
                await asyncio.sleep(0.1)
        added = await far.submit("far.add", {"a": 1, "b": 2})
        await cluster.start()
        await far.wait_for(added)
        await far.database.write(terminate, [Target(waiting)], Actor("ana", "desk", "no longer needed"))
        await far.wait_for(waiting)


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"specific-server", b"ray::Relay"], ids=["client server", "relay"])
async def test_a_part_of_the_cluster_that_answers_no_more_costs_a_connection(
    far: Harness, cluster: Cluster, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.external.ray.ANSWER", 2.0)
    async with far.running(executors=[f"far=ray:127.0.0.1:{cluster.port}"], retry="1ms"):
        first = await far.submit("far.add", {"a": 1, "b": 2})
        await far.wait_for(first)
        cluster.freeze(name)
        second = await far.submit("far.add", {"a": 1, "b": 2})
        async with asyncio.timeout(150):
            while await far.state(second) != State.SUCCEEDED:
                await asyncio.sleep(0.1)
