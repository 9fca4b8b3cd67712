"""A runner as process 1 of a container without an init."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.deploy.conftest import WAIT_SECONDS, Deployment, until

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _is_allowed() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.one_database,
    pytest.mark.skipif(not _is_allowed(), reason="this system does not allow PID namespaces"),
]

CONTAINER = f"exec {' '.join(NAMESPACE)} runner work --log-format human"


def children(pid: int) -> dict[int, str]:
    """The states of the children of a process by their ids."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found[int(status.parent.name)] = fields[0]
    return found


@pytest.mark.slow
def test_process_1_forwards_signals_reaps_orphans_and_takes_no_exit_codes(deployment: Deployment) -> None:
    deployment.submit("orphan", count=5)
    (ends,) = deployment.submit("children")
    deployment.submit("process")
    process = deployment.start(CONTAINER)
    until(lambda: deployment.states() == {"succeeded"}, deployment)
    (first,) = children(process.pid)
    until(lambda: "Z" not in children(first).values(), deployment)
    assert len(children(first)) == 1
    deployment.submit("hold")
    deployment.await_start()
    os.kill(first, signal.SIGTERM)
    until(lambda: "SIGTERM: draining" in deployment.text(), deployment)
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.result(ends) == [0, 1, 2, 3, 4, 7]
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_process_1_ends_with_the_code_of_a_second_signal(deployment: Deployment, name: str) -> None:
    deployment.submit("hold")
    process = deployment.start(CONTAINER)
    deployment.await_start()
    (first,) = children(process.pid)

    def ended() -> bool:
        try:
            os.kill(first, signal.Signals[name])
        except ProcessLookupError:
            return True
        return process.poll() is not None

    until(ended, deployment)
    assert process.wait(WAIT_SECONDS) == 130


@pytest.mark.slow
def test_a_signal_during_the_imports_ends_process_1(deployment: Deployment) -> None:
    path = deployment.folder / "handlers.py"
    path.write_text("import time\nfrom pathlib import Path\nPath('started-1').touch()\ntime.sleep(60)\n")
    process = deployment.start(CONTAINER)
    deployment.await_start()
    (first,) = children(process.pid)
    os.kill(first, signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0  # It has no tasks to drain.


@pytest.mark.slow
def test_an_error_of_the_command_is_the_exit_code_of_process_1(deployment: Deployment) -> None:
    assert deployment.run(f"exec {' '.join(NAMESPACE)} runner work -H missing_module") == 3
    assert "missing_module" in deployment.text()
    assert "Traceback" not in deployment.text()


@pytest.mark.slow
def test_a_second_container_takes_the_tasks_of_a_killed_one(deployment: Deployment) -> None:
    (task,) = deployment.submit("hold")
    process = deployment.start(f"{CONTAINER} --lease-timeout 2s")
    deployment.await_start()
    (first,) = children(process.pid)
    os.kill(first, signal.SIGKILL)
    process.wait(WAIT_SECONDS)
    deployment.release()
    again = deployment.start(f"{CONTAINER} --lease-timeout 2s --until-idle")
    assert again.wait(WAIT_SECONDS) == 0
    row = deployment.rows()[task]
    assert (row.state, row.attempt) == ("succeeded", 2)
