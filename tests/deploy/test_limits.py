"""Limits of the system on descriptors, threads, processes and memory."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cli.exit_codes import Exit
from tests.conftest import on_sqlite
from tests.deploy.conftest import WAIT_SECONDS, Deployment, until
from tests.deploy.namespaces import in_namespace, needs_namespaces

pytestmark = pytest.mark.one_database

WORK = "exec runner work --until-idle --log-format"
PIDS = Path("/sys/fs/cgroup/pids")

OWN_USER = 100_000 + os.getpid()
"""A user of this process alone: RLIMIT_NPROC counts all processes of a user."""

NO_THREADS = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
resource.setrlimit(resource.RLIMIT_STACK, (1 << 35, resource.RLIM_INFINITY))
"""
"""Code of a runner whose child processes have no address space for the stack of a thread."""


def require_lines(text: str, limit: str) -> None:
    assert "Traceback" not in text
    assert "ExceptionGroup" not in text
    assert limit in text


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A control group that allows 15 threads and processes."""
    version_2 = PIDS.parent / "cgroup.controllers"
    path = (PIDS if not version_2.exists() else PIDS.parent) / f"tasktui-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "pids.max").write_text("15")
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"this user may not make a control group with pids.max: {error}")
    yield path
    path.rmdir()


@pytest.mark.slow
def test_a_runner_without_descriptors_names_the_limit_and_waits(deployment: Deployment) -> None:
    require_wait(deployment, "-n 12", "RLIMIT_NOFILE is 12")


@pytest.mark.slow
@on_sqlite
def test_a_runner_without_descriptors_to_see_that_it_is_idle_names_the_limit(deployment: Deployment) -> None:
    require_wait(deployment, "-n 30", "RLIMIT_NOFILE is 30")


@pytest.mark.slow
@on_sqlite
def test_a_runner_without_address_space_names_the_limit_and_waits(deployment: Deployment) -> None:
    require_wait(deployment, "-v 300000", "RLIMIT_AS is 293 MiB")


def require_wait(deployment: Deployment, limit: str, name: str) -> None:
    deployment.submit("quick")
    process = deployment.start(f"ulimit {limit}; {WORK} json")
    until(lambda: name in deployment.text() or process.poll() is not None, deployment)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) in (0, 1, -signal.SIGTERM)
    require_lines(deployment.text(), name)
    assert deployment.run(f"{WORK} json") == 0
    assert deployment.states() == {"succeeded"}


@pytest.mark.parametrize(
    ("handler", "limit", "name"),
    [
        ("files", "-n 64", "RLIMIT_NOFILE is 64"),
        pytest.param("memory", "-v 4000000", "RLIMIT_AS is 3,906 MiB", marks=pytest.mark.slow),
    ],
)
def test_an_attempt_that_reaches_a_limit_has_it_as_its_reason_and_the_runner_goes_on(
    deployment: Deployment, handler: str, limit: str, name: str
) -> None:
    (task,) = deployment.submit(handler)
    deployment.submit("quick", count=5)
    assert deployment.run(f"ulimit {limit}; {WORK} human") == 0
    row = deployment.rows().pop(task)
    assert (row.state, name in row.error) == ("dead", True)
    assert {other.state for other in deployment.rows().values() if other.id != task} == {"succeeded"}
    require_lines(deployment.text(), name)


@pytest.mark.slow
def test_functions_share_the_threads_that_the_system_allows(deployment: Deployment, group: Path) -> None:
    deployment.submit("short", count=10)
    deployment.submit("on_loop", count=5)
    assert deployment.run(f"echo $$ > {group}/cgroup.procs; {WORK} human") == 0
    assert deployment.states() == {"succeeded"}
    require_lines(deployment.text(), "pids.max is 15")


NO_STACKS = """
import resource, threading
from runner.resource_limits import reached_limit, require_threads

used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_AS, (used + (68 << 20),) * 2)
try:
    require_threads(9)
except RuntimeError as error:
    while threading.active_count() > 1:
        pass
    print(reached_limit(error))
"""


def test_threads_without_memory_for_their_stacks_name_it_also_once_others_have_ended() -> None:
    done = subprocess.run([sys.executable, "-c", NO_STACKS], capture_output=True, text=True, check=True)
    assert "RLIMIT_AS is " in done.stdout


@pytest.mark.slow
@needs_namespaces
def test_a_runner_without_threads_names_the_limit_and_ends_on_request(deployment: Deployment) -> None:
    (task,) = deployment.submit("quick")
    script = "exec prlimit --nproc=6 runner work --log-format human"
    process = deployment.start(in_namespace(deployment, script, user=OWN_USER))
    until(lambda: "RLIMIT_NPROC is 6" in deployment.text() or process.poll() is not None, deployment)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) in (0, 1, -signal.SIGTERM)
    require_lines(deployment.text(), "RLIMIT_NPROC is 6")
    row = deployment.rows()[task]
    assert row.attempt == 0 or "RLIMIT_NPROC is 6" in row.error  # An attempt that reaches the limit itself names it.


@pytest.mark.slow
@needs_namespaces
def test_a_runner_without_threads_for_its_outcomes_ends_with_the_limit(deployment: Deployment) -> None:
    deployment.submit("short", count=10)
    script = "exec prlimit --nproc=12 runner work --until-idle --lease-timeout 3s --drain-timeout 1s --log-format human"
    process = deployment.start(in_namespace(deployment, script, user=OWN_USER))
    code = process.wait(WAIT_SECONDS)
    if code == 0:  # threads were enough
        assert deployment.states() == {"succeeded"}
    else:
        last = deployment.text().splitlines()[-1]
        assert (code, "RLIMIT_NPROC is 12" in last) == (Exit.DATABASE, True)
        require_lines(deployment.text(), "RLIMIT_NPROC is 12")


@pytest.mark.slow
def test_a_process_without_threads_fails_its_own_attempt_with_the_limit(deployment: Deployment) -> None:
    path = deployment.folder / "handlers.py"
    path.write_text(NO_THREADS + path.read_text().replace('"process", executor', '"process", max_attempts=1, executor'))
    (task,) = deployment.submit("process")
    deployment.submit("quick", count=3)
    assert deployment.run(f"{WORK} human") == 0
    row = deployment.rows().pop(task)
    assert row.state == "dead"
    assert "its process could not start" in row.error
    assert {other.state for other in deployment.rows().values() if other.id != task} == {"succeeded"}
    require_lines(deployment.text(), "RLIMIT_AS is 16,384 MiB")


@pytest.mark.slow
@needs_namespaces
def test_a_runner_with_few_threads_runs_functions_and_starts_no_process(deployment: Deployment) -> None:
    tasks = deployment.submit("short", count=10)
    (process,) = deployment.submit("process")
    script = "exec prlimit --nproc=14 runner work --log-format human"
    runner = deployment.start(in_namespace(deployment, script, user=OWN_USER))

    def attempted() -> bool:
        rows = deployment.rows()
        return bool(rows[process].attempt and rows[process].state == "waiting" and rows[tasks[-1]].attempt)

    until(attempted, deployment)
    runner.send_signal(signal.SIGTERM)
    assert runner.wait(WAIT_SECONDS) == 0
    require_lines(deployment.text(), "RLIMIT_NPROC is 14")
    assert "its process could not start" in deployment.rows()[process].error
    assert "could not deregister" not in deployment.text()
