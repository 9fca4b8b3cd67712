"""A wall clock that is wrong, or steps while a runner works."""

import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from tests.deploy.conftest import WAIT_SECONDS, Deployment, until

COMPILER = shutil.which("cc")

pytestmark = [
    pytest.mark.one_database,
    pytest.mark.skipif(COMPILER is None, reason="needs a C compiler for a library that shifts the clock"),
]

HOUR = 3_600
DAY = 24 * HOUR


class Clock:
    """The wall clock of processes that are started with its environment.

    Args:
        folder: the folder of its library and its file.
    """

    def __init__(self, folder: Path) -> None:
        library, self._file = folder / "clock.so", folder / "clock"
        command = [str(COMPILER), "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("clock.c"))]
        subprocess.run(command, check=True)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK": str(self._file)}
        self.set(0)

    def set(self, seconds: int) -> None:
        """Set the difference to the clock of the system."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.mark.parametrize("seconds", [-HOUR, pytest.param(DAY, marks=pytest.mark.slow)])
def test_a_step_of_the_clock_costs_no_attempt_and_delays_no_task(
    deployment: Deployment, clock: Clock, seconds: int
) -> None:
    (held,) = deployment.submit("hold")
    process = deployment.start("exec runner work --log-format human", environment=clock.environment)
    deployment.await_start()
    clock.set(seconds)
    assert deployment.run("exec runner submit quick", environment=clock.environment) == 0
    until(lambda: "succeeded" in deployment.states(), deployment)
    deployment.release()
    until(lambda: deployment.states() == {"succeeded"}, deployment)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.rows()[held].attempt == 1
    assert "stopped: 2 succeeded" in deployment.text()
    assert "Traceback" not in deployment.text()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [-400 * DAY, 20_000 * DAY])
def test_a_wrong_clock_runs_the_tasks_that_were_submitted_by_it(
    deployment: Deployment, clock: Clock, seconds: int
) -> None:
    clock.set(seconds)
    script = "runner submit quick && runner submit process && exec runner work --until-idle"
    assert deployment.run(script, environment=clock.environment) == 0, deployment.text()
    assert deployment.states() == {"succeeded"}
    assert "Traceback" not in deployment.text()
