"""Signals of terminals, shells and supervisors."""

import os
import signal

import pytest

from tests.deploy.conftest import WAIT_SECONDS, Deployment, until

pytestmark = pytest.mark.one_database


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_drains(deployment: Deployment, number: signal.Signals) -> None:
    deployment.submit("hold")
    process = deployment.start("exec runner work --log-format human")
    deployment.await_start()
    process.send_signal(number)
    until(lambda: f"{number.name}: draining" in deployment.text(), deployment)
    assert process.poll() is None
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}
    assert "stopped: 1 succeeded" in deployment.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"), [("SIGHUP", "SIGHUP"), ("SIGTERM", "SIGHUP"), ("SIGINT", "SIGINT"), ("SIGTERM", "SIGTERM")]
)
def test_a_second_signal_ends_it_at_once(deployment: Deployment, first: str, second: str) -> None:
    (task,) = deployment.submit("hold")
    process = deployment.start("exec runner work --log-format human")
    deployment.await_start()
    process.send_signal(signal.Signals[first])
    until(lambda: "draining" in deployment.text(), deployment)
    again = signal.Signals[second]

    def ended() -> bool:
        process.send_signal(again)
        return process.poll() is not None

    until(ended, deployment)
    assert process.returncode == 130
    assert f"task {task}" in deployment.text()
    assert "Traceback" not in deployment.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_during_the_imports_ends_it_with_code_0(deployment: Deployment, number: signal.Signals) -> None:
    loading = deployment.folder / "loading"
    (deployment.folder / "handlers.py").write_text(f"import time; open({str(loading)!r}, 'w').close(); time.sleep(60)")
    process = deployment.start("exec runner work")
    until(loading.exists, deployment)
    process.send_signal(number)
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.text() == f"runner: {number.name} before the start: no task was claimed\n"


SLOW_START = """
import sys, time
from importlib.abc import MetaPathFinder
from pathlib import Path

class Waiting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "runner":
            Path("loading").touch()
            while not Path("go").exists():
                time.sleep(0.02)

sys.meta_path.insert(0, Waiting())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_before_the_first_import_ends_it_with_code_0(deployment: Deployment, number: signal.Signals) -> None:
    (deployment.folder / "sitecustomize.py").write_text(SLOW_START)
    process = deployment.start("exec runner work", environment={"PYTHONPATH": str(deployment.folder)})
    until((deployment.folder / "loading").exists, deployment)
    process.send_signal(number)
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.text() == f"runner: {number.name} before the start: no task was claimed\n"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["nohup runner work --until-idle", "trap '' HUP; exec runner work --until-idle"])
def test_a_hangup_that_its_starter_ignores_stays_ignored(deployment: Deployment, start: str) -> None:
    deployment.submit("hold")
    process = deployment.start(start)
    (pid,) = deployment.await_start()
    os.kill(pid, signal.SIGHUP)
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}
    assert "draining" not in deployment.text()


@pytest.mark.slow
def test_a_hangup_of_the_reloading_supervisor_drains_its_runner(deployment: Deployment) -> None:
    deployment.submit("hold")
    process = deployment.start("exec runner work --reload --log-format human")
    deployment.await_start()
    process.send_signal(signal.SIGHUP)
    until(lambda: "draining" in deployment.text(), deployment)
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [("timeout 60 runner work --until-idle", 0), ("setsid -w runner work --until-idle", 0)],
)
def test_wrappers_of_a_command_pass_its_exit_code(deployment: Deployment, script: str, code: int) -> None:
    deployment.submit("quick")
    assert deployment.run(script) == code
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGQUIT, -signal.SIGQUIT), (signal.SIGPIPE, None)])
def test_quit_ends_it_and_a_broken_pipe_does_not(
    deployment: Deployment, number: signal.Signals, code: int | None
) -> None:
    deployment.submit("hold")
    process = deployment.start("ulimit -c 0; exec runner work --until-idle")
    deployment.await_start()
    process.send_signal(number)
    if code is None:
        deployment.release()
    assert process.wait(WAIT_SECONDS) == (code or 0)
    assert "Traceback" not in deployment.text()
