"""The bench command: its report, and its clean-up in every case."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runner.cli.app import run
from runner.cli.bench.load import TaskCounts
from runner.cli.bench.plan import UNITS, BenchPlan, BenchReport, Measurement
from runner.cli.bench.verb import GROUPS, PARTS, read_parts
from runner.cli.exit_codes import Exit, exit_code_of
from runner.errors import InvalidInput
from tests.conftest import on_postgresql

PROGRAM = Path(sys.executable).with_name("runner")
WAIT_SECONDS = 120.0
TINY = ("--tasks", "30", "--seconds", "0.3")
FIGURES = {
    "one": ["rate"],
    "bulk": ["rate"],
    "coalesced": ["rate", "threads"],
    "drain": ["rate", "cpu_us"],
    "latency": ["p50_ms", "p99_ms"],
    "load": ["rate", "first", "last"],
}
IF_TIME_ALLOWS = "flat"
"""Compares two thirds of a time that may be too short for one task in each of them."""


@pytest.fixture
def scratch(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the bench's temporary files, without the user's settings."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("COLUMNS", "80")
    return folder


def command(url: str, *options: str) -> list[str]:
    return [str(PROGRAM), "bench", "--url", url, *options]


def all_tables(url: str) -> list[str]:
    """The tables of a database: none before and after a bench."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return [str(path) for path in file.parent.glob(f"{file.name}*")]
    statement = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'tasktui%' UNION ALL SELECT tablename::text"
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute(f"{statement} FROM pg_tables WHERE schemaname = 'public'")]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def measured(scratch: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """The report of a successful bench that left nothing behind."""

    def measured(url: str, *options: str) -> dict[str, Any]:
        code = exit_code_of(lambda: run(["bench", "--url", url, "--json", *TINY, *options]))
        done = capsys.readouterr()
        assert code == Exit.OK, done.err
        report: dict[str, Any] = json.loads(done.out)
        assert report["database"] in done.err
        assert report["exactly_once"] is True
        assert all_tables(url) == []
        assert list(scratch.iterdir()) == []
        return report

    return measured


def figures(report: dict[str, Any]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for item in report["figures"]:
        if item["figure"] != IF_TIME_ALLOWS:
            names.setdefault(item["part"], []).append(item["figure"])
    return names


@pytest.mark.slow
def test_some_parts_are_measured(sqlite: Any, tmp_path: Path, measured: Callable[..., dict[str, Any]]) -> None:
    report = measured(sqlite.empty(tmp_path), "--parts", "one,bulk,drain")
    assert figures(report) == {part: FIGURES[part] for part in ("one", "bulk", "drain")}


@pytest.mark.slow
def test_tasks_that_the_retention_deletes_at_their_end_are_counted(
    sqlite: Any, tmp_path: Path, measured: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_RETENTION_SUCCEEDED", "0s")
    assert figures(measured(sqlite.empty(tmp_path), "--parts", "drain")) == {"drain": FIGURES["drain"]}


@pytest.mark.slow
def test_every_part_is_measured(sqlite: Any, tmp_path: Path, measured: Callable[..., dict[str, Any]]) -> None:
    report = measured(sqlite.empty(tmp_path))
    assert figures(report) == FIGURES
    assert {"cpus", "system", "python", "database", "disk", "packages", "settings"} == set(report["machine"])


@pytest.mark.slow
@on_postgresql
def test_every_part_is_measured_on_postgresql(database_url: str, measured: Callable[..., dict[str, Any]]) -> None:
    assert figures(measured(database_url, "--runners", "2")) == FIGURES


@contextmanager
def endless(url: str, scratch: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A bench of unlimited duration, with its runner at work, and the runner's process id."""
    options = ("--parts", "load", "--seconds", "600")
    with subprocess.Popen(command(url, *options), stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: any(_hits(file) for file in scratch.glob("*/runner0")), "no task was started")
            yield process, _child(process.pid)
        finally:
            process.kill()


def _hits(probe: Path) -> int:
    return int.from_bytes(probe.read_bytes()[:8], sys.byteorder)


def _child(pid: int) -> int:
    """The only child of a process, from /proc or, without it, from `ps`."""
    if Path("/proc/self/stat").exists():
        fields = [_fields(stat) for stat in Path("/proc").glob("[0-9]*/stat")]
        (child,) = (int(own) for own, _, parent in fields if parent == str(pid))
        return child
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    (child,) = (int(own) for own, parent in map(str.split, listed.stdout.splitlines()) if parent == str(pid))
    return child


def _fields(stat: Path) -> tuple[str, str, str]:
    """Id, state and parent of a process; nothing for one that has just ended."""
    try:
        state, parent, *_ = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return stat.parent.name, "Z", ""
    return stat.parent.name, state, parent


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.parent.parent.is_mount() or _fields(stat)[1] != "Z"


@pytest.mark.slow
@on_postgresql
def test_ctrl_c_stops_the_bench_and_removes_everything(database_url: str, scratch: Path) -> None:
    with endless(database_url, scratch) as (bench, runner):
        bench.send_signal(signal.SIGINT)
        _, errors = bench.communicate(timeout=WAIT_SECONDS)
    assert bench.returncode == Exit.INTERRUPTED
    assert "Traceback" not in errors
    assert not _is_alive(runner)
    assert all_tables(database_url) == []
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_a_crashed_runner_fails_the_bench_and_everything_is_removed(sqlite: Any, tmp_path: Path, scratch: Path) -> None:
    with endless(sqlite.empty(tmp_path), scratch) as (bench, runner):
        os.kill(runner, signal.SIGKILL)
        _, errors = bench.communicate(timeout=WAIT_SECONDS)
    assert bench.returncode == Exit.ERROR
    assert "a runner exited" in errors
    assert list(scratch.iterdir()) == []


@pytest.mark.slow
def test_no_runner_outlives_a_killed_bench(sqlite: Any, tmp_path: Path, scratch: Path) -> None:
    with endless(sqlite.empty(tmp_path), scratch) as (bench, runner):
        bench.send_signal(signal.SIGKILL)
        wait_until(lambda: not _is_alive(runner), "it lives on")


@pytest.mark.slow
def test_the_report_fits_a_terminal(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(lambda: run(["bench", *TINY, "--parts", "bulk,drain"])) == Exit.OK
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "Each of the 30 tasks finished exactly once." in printed


def test_a_production_database_is_rejected(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKTUI_PRODUCTION", "true")
    assert exit_code_of(lambda: run(["bench", *TINY])) == Exit.CONFIGURATION
    assert "name another one" in capsys.readouterr().err
    assert list(scratch.iterdir()) == []


def test_parts_are_measured_in_a_fixed_order() -> None:
    assert read_parts("drain, bulk", PARTS, GROUPS) == ("bulk", "drain")
    assert read_parts("", PARTS, GROUPS) == tuple(PARTS)
    assert read_parts("load,submit", PARTS, GROUPS) == ("one", "bulk", "coalesced", "load")


def test_a_misspelled_part_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'latency'"):
        read_parts("latencie", PARTS, GROUPS)


@pytest.mark.parametrize(
    "proof",
    [
        TaskCounts(10, 9, 10, 0),
        TaskCounts(10, 11, 10, 0),
        TaskCounts(10, 10, 9, 1),
        TaskCounts(10, 10, 9, 0),
        TaskCounts(10, 10, 10, 1),
    ],
)
def test_a_task_that_did_not_finish_exactly_once_is_reported(proof: TaskCounts) -> None:
    whole = Measurement({"rate": 1.0}, 10, 1, TaskCounts(10, 10, 10, 0), part="drain")
    broken = Measurement({"rate": 1.0}, 10, 1, proof, part="drain")
    assert BenchReport("", BenchPlan(), {}, [whole, broken]).broken == [broken]


def test_repetitions_are_summarized_by_their_median() -> None:
    rates = [Measurement({"rate": rate}, 10, part="bulk") for rate in (3.0, 1.0, 2.0)]
    (summary,) = BenchReport("", BenchPlan(parts=("bulk",)), {}, rates).summaries
    assert (summary.median, summary.lowest, summary.highest) == (2.0, 1.0, 3.0)


def test_every_figure_has_a_unit() -> None:
    assert {figure for figures in FIGURES.values() for figure in figures} | {IF_TIME_ALLOWS} == set(UNITS)
