"""The bench as people call it: what it reports, and that it leaves nothing behind, however it ends."""

import asyncio
import itertools
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

from runner.bench.load import Proof
from runner.bench.orders import Step
from runner.bench.plan import PARTS, Plan, read_parts
from runner.bench.report import UNITS, Measurement, Report
from runner.bench.stopwatch import Stopwatch
from runner.cli.app import run
from runner.cli.ending import Exit, ended
from runner.errors import InvalidInput
from tests.conftest import on_postgresql

PROGRAM = Path(sys.executable).with_name("runner")
PATIENCE = 120.0
TINY = ("--tasks", "30", "--seconds", "0.3")
FIGURES = {
    "one": ["rate"],
    "bulk": ["rate"],
    "coalesced": ["rate", "threads"],
    "drain": ["rate", "cpu_us"],
    "latency": ["p50_ms", "p99_ms"],
    "pinned": ["rate", "cpu_us", "ratio"],
    "sustained": ["rate", "first", "last"],
    "idle": ["cpu_share"],
    "profile": ["rate", "cpu_us"],
}
IF_TIME_ALLOWS = "flat"
"""Compares two thirds of a time that may be too short for a task in each of them."""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that takes the bench's temporary files; nobody's settings reach it."""
    for name in os.environ:
        if name.startswith("RUNNER_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return folder


def command(url: str, *options: str) -> list[str]:
    return [str(PROGRAM), "bench", "--url", url, *options]


def tables_of_anybody(url: str) -> list[str]:
    """What there is in a database: before a bench nothing, and after it nothing again."""
    if url.startswith("sqlite"):
        file = Path(url.removeprefix("sqlite:///"))
        return [str(found) for found in file.parent.glob(f"{file.name}*")]
    found = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'tasktui%' UNION ALL SELECT tablename::text"
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute(f"{found} FROM pg_tables WHERE schemaname = 'public'")]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def measured(url: str, scratch: Path, *options: str) -> dict[str, Any]:
    """What a bench reports that went well, and left nothing behind."""
    done = subprocess.run(
        command(url, "--json", *TINY, *options), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["place"] in done.stderr
    assert report["exactly_once"] is True
    assert tables_of_anybody(url) == []
    assert list(scratch.iterdir()) == []
    return report


def figures(report: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in report["figures"]:
        if item["figure"] != IF_TIME_ALLOWS:
            found.setdefault(item["part"], []).append(item["figure"])
    return found


def test_every_part_is_measured(sqlite: Any, tmp_path: Path, scratch: Path) -> None:
    report = measured(sqlite.empty(tmp_path), scratch)
    assert figures(report) == FIGURES
    assert {"cpus", "system", "python", "database", "disk", "packages", "settings"} == set(report["machine"])


@on_postgresql
def test_a_drain_is_measured_and_taken_to_pieces(database_url: str, scratch: Path) -> None:
    parts = ("bulk", "drain", "pinned", "profile")
    report = measured(database_url, scratch, "--parts", ",".join(parts), "--runners", "2")
    assert figures(report) == {part: FIGURES[part] for part in parts}
    costs = report["measurements"][-1]["costs"]
    assert [cost["what"] for cost in costs if not cost["calls"]] == ["rest", "threads"]
    assert {cost["what"] for cost in costs if "PostgreSQL" in cost["words"]} == {"claim", "settle"}


@contextmanager
def sustained(url: str, scratch: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A bench that lasts, with its runner at work, and that runner's process id."""
    options = ("--parts", "sustained", "--seconds", "600")
    with subprocess.Popen(command(url, *options), stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: any(_hits(file) for file in scratch.glob("*/runner0")), "no task was started")
            yield process, _child(process.pid)
        finally:
            process.kill()


def _hits(probe: Path) -> int:
    return int.from_bytes(probe.read_bytes()[:8], sys.byteorder)


def _child(pid: int) -> int:
    """The only child of a process; `ps` is not everywhere where there is a /proc."""
    if Path("/proc/self/stat").exists():
        fields = [_fields(stat) for stat in Path("/proc").glob("[0-9]*/stat")]
        (child,) = (int(own) for own, _, parent in fields if parent == str(pid))
        return child
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    (child,) = (int(own) for own, parent in map(str.split, listed.stdout.splitlines()) if parent == str(pid))
    return child


def _fields(stat: Path) -> tuple[str, str, str]:
    """Number, state and parent of a process; of one that has just ended, nothing."""
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


@on_postgresql
def test_ctrl_c_ends_it_and_everything_is_removed(database_url: str, scratch: Path) -> None:
    with sustained(database_url, scratch) as (bench, runner):
        bench.send_signal(signal.SIGINT)
        _, said = bench.communicate(timeout=PATIENCE)
    assert bench.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    assert not _is_alive(runner)
    assert tables_of_anybody(database_url) == []
    assert list(scratch.iterdir()) == []


def test_a_runner_that_dies_fails_the_bench_and_everything_is_removed(
    sqlite: Any, tmp_path: Path, scratch: Path
) -> None:
    with sustained(sqlite.empty(tmp_path), scratch) as (bench, runner):
        os.kill(runner, signal.SIGKILL)
        _, said = bench.communicate(timeout=PATIENCE)
    assert bench.returncode == Exit.ERROR
    assert "a runner ended" in said
    assert list(scratch.iterdir()) == []


def test_no_runner_outlives_a_bench_that_was_killed(sqlite: Any, tmp_path: Path, scratch: Path) -> None:
    with sustained(sqlite.empty(tmp_path), scratch) as (bench, runner):
        bench.send_signal(signal.SIGKILL)
        wait_until(lambda: not _is_alive(runner), "it lives on")


def test_what_it_prints_is_no_wider_than_a_terminal(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: run(["bench", *TINY, "--parts", "bulk,profile"])) == Exit.OK
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "Each of the 30 tasks that were run ended exactly once." in printed


def test_a_database_of_production_is_refused(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNER_PRODUCTION", "true")
    assert ended(lambda: run(["bench", *TINY])) == Exit.CONFIGURATION
    assert "name another one" in capsys.readouterr().err
    assert list(scratch.iterdir()) == []


def test_parts_are_measured_in_their_own_order_whatever_was_typed() -> None:
    assert read_parts("drain, bulk") == ("bulk", "drain")
    assert read_parts("") == tuple(PARTS)


def test_a_mistyped_part_is_refused_with_what_may_be_meant() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'latency'"):
        read_parts("latencie")


@pytest.mark.parametrize(
    "proof",
    [Proof(10, 9, 10, 0), Proof(10, 11, 10, 0), Proof(10, 10, 9, 1), Proof(10, 10, 9, 0), Proof(10, 10, 10, 1)],
)
def test_a_task_that_did_not_end_exactly_once_is_reported(proof: Proof) -> None:
    whole = Measurement({"rate": 1.0}, 10, 1, Proof(10, 10, 10, 0), part="drain")
    broken = Measurement({"rate": 1.0}, 10, 1, proof, part="drain")
    assert Report("", Plan(), {}, [whole, broken]).broken == [broken]


def test_repetitions_are_summed_up_by_their_median() -> None:
    rates = [Measurement({"rate": rate}, 10, part="bulk") for rate in (3.0, 1.0, 2.0)]
    (summary,) = Report("", Plan(), {}, rates).summaries
    assert (summary.median, summary.lowest, summary.highest) == (2.0, 1.0, 3.0)


def test_every_figure_has_a_unit() -> None:
    assert {figure for figures in FIGURES.values() for figure in figures} | {IF_TIME_ALLOWS} == set(UNITS)


async def test_a_step_within_another_counts_for_itself_alone() -> None:
    ticking = itertools.count()
    watch = Stopwatch(lambda: float(next(ticking)))  # each look at the clock takes a second
    outer, inner = Step(), Step()
    within = watch.around(inner, lambda: None)

    async def work() -> str:
        within()
        await asyncio.sleep(0)
        within()
        return "done"

    assert await watch.around_waiting(outer, work)() == "done"
    assert (inner.calls, inner.cpu) == (2, 2.0)
    assert (outer.calls, outer.cpu) == (1, 4.0)


async def test_a_watched_coroutine_fails_and_is_cancelled_as_if_nobody_watched() -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise KeyError("its own") from None

    running = asyncio.ensure_future(Stopwatch().around_waiting(Step(), fail)())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(KeyError):
        await running
