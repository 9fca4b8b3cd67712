"""The comparison with other systems: its contract, its tables, and a small run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.contract import Record, prepare, read, starts
from benchmarks.parts import Measurement, Sizes, parts
from benchmarks.systems import PEERS, SYSTEMS
from benchmarks.tables import COLUMNS, tables
from tests.pages import DOCS, table

PROJECT = PEERS.parent.parent


def test_a_worker_records_how_often_and_how_late_each_task_starts(tmp_path: Path) -> None:
    prepare(tmp_path / "file", 3)
    record = Record(tmp_path / "file")
    begin = time.monotonic()
    record.add(0, 0.0)
    record.add(2, begin - 5.0)
    record.add(2, begin - 7.0)
    assert starts(tmp_path / "file") == 3
    reading = read(tmp_path / "file")
    assert (reading.starts, [*reading.times], reading.latencies[0]) == (3, [1, 0, 2], 0.0)
    assert reading.latencies[2] >= 7.0
    assert reading.first >= begin


def test_the_tables_have_medians_ranges_ratios_and_lost_tasks() -> None:
    systems = [SYSTEMS["ours"], SYSTEMS["graphile"]]
    rates = {"ours": (300.0, 100.0, 200.0), "graphile": (100.0, 100.0, 400.0)}
    results = {
        (name, "drain1", rep): Measurement({"rate": rate}, lost=rep)
        for name, values in rates.items()
        for rep, rate in enumerate(values)
    }
    assert [*tables(systems, results, 3)] == [
        "| postgresql | one runner /s | lost, repeated |",
        "|---|---:|---:|",
        "| this project | 200 (100-300) | 3, 0 |",
        "| Graphile Worker | 100 (100-400) | 3, 0 |",
        "| to Graphile Worker | 1.00 (0.50-3.00) | |",
        "",
    ]


def test_each_column_and_each_documented_part_exists() -> None:
    known = {*parts(Sizes(1, 1))}
    assert {column.part for column in COLUMNS} <= known
    listed = [row[0] for row in table("part of the comparison", "## The comparison", DOCS / "performance-methods.md")]
    assert {name.strip(" `") for cell in listed for name in cell.split(",")} == known
    assert all((PEERS / system.script).exists() for system in SYSTEMS.values())


@pytest.mark.slow
def test_a_small_run_loses_no_task() -> None:
    command = [sys.executable, "-m", "benchmarks", "--systems", "ours-sqlite", "--tasks", "40", "--reps", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKTUI_")}
    done = subprocess.run(
        [*command, "--parts", "one,drain2,latency,pinned"],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "| this project, SQLite |" in done.stdout
    assert "| 0, 0 |" in done.stdout
