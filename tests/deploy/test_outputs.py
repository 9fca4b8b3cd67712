"""Readers of the outputs that stand still, go away or refuse."""

import os
import signal

import pytest

from tests.deploy.conftest import WAIT_SECONDS, Deployment, until

pytestmark = pytest.mark.one_database

WORK = "exec runner work --until-idle --log-format human"


@pytest.mark.slow
def test_a_reader_of_the_log_that_stands_still_stops_nothing(deployment: Deployment) -> None:
    reader, writer = os.pipe()
    (task,) = deployment.submit("chatter", '{"lines": 3000}')
    deployment.submit("on_loop", count=20)
    process = deployment.start(WORK, stderr=writer, stdout=writer)
    os.close(writer)
    deployment.await_start()  # behind 300 KB of lines, and a pipe holds 64
    until(lambda: sum(row.state == "succeeded" for row in deployment.rows().values()) == 20, deployment)
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}
    with os.fdopen(reader, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    numbers = [int(line.split(" line ")[1].split()[0]) for line in lines if " line " in line and line.endswith("]")]
    assert numbers == list(range(len(numbers)))
    assert f"task {task}" in "".join(lines)


@pytest.mark.slow
def test_dropped_lines_are_counted_when_the_reader_goes_on(deployment: Deployment) -> None:
    reader, writer = os.pipe()
    deployment.submit("chatter", '{"lines": 30000}')
    process = deployment.start(WORK, stderr=writer)
    os.close(writer)
    deployment.await_start()
    received = bytearray()
    os.set_blocking(reader, False)

    def read() -> bool:
        try:
            received.extend(os.read(reader, 65_536))
        except BlockingIOError:
            return False
        return b"log lines dropped: stderr did not accept them" in received

    until(read, deployment)
    deployment.release()
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as pipe:
        text = (received + pipe.read()).decode()
    assert process.wait(WAIT_SECONDS) == 0
    reports = [line for line in text.splitlines() if "log lines dropped" in line]
    count = sum(int(line.split(" warning: ")[1].split()[0].replace(",", "")) for line in reports)
    written = sum(" line " in line for line in text.splitlines())
    assert 0 <= 30_000 + 20 - count - written <= 20  # the runner logs a few lines of its own


@pytest.mark.slow
def test_a_second_signal_ends_a_runner_whose_log_is_not_read(deployment: Deployment) -> None:
    reader, writer = os.pipe()
    deployment.submit("chatter", '{"lines": 3000}')
    process = deployment.start(WORK, stderr=writer)
    os.close(writer)
    deployment.await_start()
    process.send_signal(signal.SIGTERM)

    def ended() -> bool:
        process.send_signal(signal.SIGTERM)
        return process.poll() is not None

    until(ended, deployment)
    assert process.returncode == 130
    os.close(reader)


@pytest.mark.slow
@pytest.mark.parametrize("configured", ["", "import logging; logging.basicConfig(level='INFO')\n"])
def test_a_reader_that_has_gone_away_ends_nothing(deployment: Deployment, configured: str) -> None:
    path = deployment.folder / "handlers.py"
    path.write_text(configured + path.read_text())
    deployment.submit("chatter", '{"lines": 300}')
    deployment.submit("on_loop", count=5)
    reader, writer = os.pipe()
    process = deployment.start(WORK, stderr=writer)
    os.close(writer)
    os.close(reader)
    deployment.await_start()
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
def test_the_logging_of_an_application_does_not_wait_for_its_reader(deployment: Deployment) -> None:
    path = deployment.folder / "handlers.py"
    path.write_text("import logging; logging.basicConfig(level='INFO')\n" + path.read_text())
    reader, writer = os.pipe()
    deployment.submit("chatter", '{"lines": 3000}')
    process = deployment.start(WORK, stderr=writer)
    os.close(writer)
    deployment.await_start()
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}
    os.close(reader)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["2>/dev/full", ">/dev/full", ">/dev/full 2>&1"])
def test_a_full_disk_of_the_log_stops_nothing(deployment: Deployment, outputs: str) -> None:
    path = deployment.folder / "handlers.py"
    path.write_text(path.read_text().replace('"Grüße", flush=True', '"Grüße"'))
    deployment.submit("prints")
    deployment.submit("chatter", '{"lines": 30}')
    process = deployment.start(f"{WORK} {outputs}")
    deployment.await_start()
    deployment.release()
    assert process.wait(WAIT_SECONDS) == 0
    assert deployment.states() == {"succeeded"}
    assert "Traceback" not in deployment.text()
    if outputs == ">/dev/full":
        assert "the last lines that handlers printed are lost: standard output: No space left" in deployment.text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "closed",
    ["<&- >&- 2>&-", *(pytest.param(one, marks=pytest.mark.slow) for one in ("<&-", ">&-", "2>&-", ">&- 2>&-"))],
)
def test_closed_descriptors_stop_nothing(deployment: Deployment, closed: str) -> None:
    deployment.submit("quick", count=3)
    deployment.submit("process")
    assert deployment.run(f"{WORK} {closed}") == 0
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"LANG": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"},
        {"TERM": None},
        {"TERM": "dumb"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONDEVMODE": "1"},
        {"TZ": "Nowhere/Missing"},
        {"TZ": "EST5EDT,M3.2.0,M11.1.0"},
        {"TZ": ""},
        {"COLUMNS": "1", "LINES": "0"},
        {"TMPDIR": "/nonexistent"},
        {"PYTHONHASHSEED": "0", "PYTHONSAFEPATH": "1", "PYTHONPATH": "."},
    ],
    ids=str,
)
def test_environments_of_hosts_change_nothing(deployment: Deployment, environment: dict[str, str | None]) -> None:
    deployment.submit("prints")
    deployment.submit("process")
    deployment.submit("on_loop")
    code = deployment.run(WORK, environment=environment)
    assert (code, deployment.states()) == (0, {"succeeded"}), deployment.text()
    assert "Traceback" not in deployment.text()
    assert "Gr" in deployment.text("out")
