"""The bench laboratory: its parts, their figures, and the stopwatch."""

import asyncio
import inspect
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli.bench.plan import BenchPlan, BenchReport, Measurement
from runner.cli.bench.verb import read_parts
from runner.cli.exit_codes import Exit
from tests.bench.laboratory import GROUPS, HISTORY_WORK, LAB_UNITS, PLAIN, main, parts
from tests.bench.stopwatch import PROFILED, STEPS, Stopwatch, WorkerStep
from tests.bench.strategies import STRATEGIES, TRACES, markdown
from tests.conftest import on_postgresql

TINY = ("--tasks", "30", "--seconds", "0.3")
FIGURES = {
    "pinned": ["rate", "cpu_us", "ratio"],
    "idle": ["cpu_share"],
    "schedules": ["cpu_share"],
    "ticks": ["p50_ms", "p99_ms"],
    "checkpoint": ["save_ms", "per_update"],
    "profile": ["rate", "cpu_us"],
}
WAIT_SECONDS = 120.0


@pytest.fixture
def measured(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, Any]]:
    """The report of a successful run, without the user's settings."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def measured(url: str, *options: str) -> dict[str, Any]:
        code = asyncio.run(main(["--url", url, "--json", *TINY, *options]))
        done = capsys.readouterr()
        assert code == Exit.OK, done.err
        report: dict[str, Any] = json.loads(done.out)
        assert report["exactly_once"] is True
        return report

    return measured


def figures(report: dict[str, Any]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for item in report["figures"]:
        names.setdefault(item["part"], []).append(item["figure"])
    return names


@pytest.mark.slow
def test_a_drain_is_measured_beside_an_old_transaction(
    sqlite: Any, tmp_path: Path, measured: Callable[..., dict[str, Any]]
) -> None:
    report = measured(sqlite.empty(tmp_path), "--parts", "pinned,checkpoint")
    assert figures(report) == {part: FIGURES[part] for part in ("pinned", "checkpoint")}


@pytest.mark.slow
@pytest.mark.both_databases
def test_every_plain_part_is_measured(database_url: str, measured: Callable[..., dict[str, Any]]) -> None:
    assert figures(measured(database_url, "--parts", ",".join(PLAIN))) == FIGURES


SLEEPERS_FIGURES = {
    f"{name}_{rows}{unit}" for name, unit in (("idle", ""), ("wake", "_ms")) for rows in ("few", "many")
}
SLEEPERS_FIGURES |= {"rate", "ratio", "cpu_us", "cpu_ratio"}
RATIOS = ["ratio_1", "ratio_2"]
GROWN = ["once_us", "twice_us", "growth"]
BESIDE_HISTORY = [f"{name}_{figure}" for name in HISTORY_WORK for figure in GROWN]


@pytest.mark.slow
def test_growth_compares_twice_the_rows(sqlite: Any, tmp_path: Path, measured: Callable[..., dict[str, Any]]) -> None:
    assert read_parts("growth,idle", parts(1.0), GROUPS) == ("idle", *GROUPS["growth"])
    report = measured(sqlite.empty(tmp_path), "--parts", "paused", "--scale", "0.0001")
    assert figures(report) == {"paused": GROWN}
    (paused,) = report["measurements"]
    assert paused["figures"]["growth"] == paused["figures"]["twice_us"] / paused["figures"]["once_us"]
    assert (paused["proof"]["tasks"], paused["proof"]["hits"]) == (60, 60)


@pytest.mark.slow
@pytest.mark.both_databases
def test_sleeping_tasks_are_measured_beside_a_runner(
    database_url: str, measured: Callable[..., dict[str, Any]]
) -> None:
    report = measured(database_url, "--parts", "sleepers", "--scale", "0.0003")
    assert set(figures(report)["sleepers"]) == SLEEPERS_FIGURES
    assert report["measurements"][0]["proof"]["ended"] == 2 * (2 * 100 + 30)


@pytest.mark.slow
@pytest.mark.both_databases
def test_every_growth_part_is_measured(database_url: str, measured: Callable[..., dict[str, Any]]) -> None:
    report = measured(database_url, "--parts", "growth", "--scale", "0.0005", "--runners", "3")
    assert figures(report) == dict.fromkeys(GROUPS["growth"], GROWN) | {"history": GROWN + BESIDE_HISTORY}
    (of_runners,) = (each for each in report["measurements"] if each["part"] == "runners")
    assert of_runners["runners"] == 2


@pytest.mark.slow
@pytest.mark.both_databases
def test_the_cost_of_each_strategy_is_measured(database_url: str, measured: Callable[..., dict[str, Any]]) -> None:
    report = measured(database_url, "--parts", ",".join(["strategies", *TRACES]))
    assert figures(report) == dict.fromkeys(STRATEGIES | TRACES, RATIOS)
    assert {item["proof"]["ended"] for item in report["measurements"]} == {4 * 30}


def test_the_costs_of_strategies_become_a_table_of_the_documentation() -> None:
    figures = [{"ratio_1": 0.9, "ratio_2": 0.5}, {"ratio_1": 0.7, "ratio_2": 0.75}, {"ratio_1": 0.8, "ratio_2": 0.6}]
    measurements = [Measurement(each, 80, part="hosts", repetition=number) for number, each in enumerate(figures, 1)]
    report = BenchReport("here", BenchPlan(parts=("drain", "hosts"), reps=3), {}, measurements)
    assert [*markdown(report)][1:] == ["|---|---:|---:|", "| hosts | 0.80 | 0.60 |"]
    page = re.sub(r"\[([^]]+)\]\(\S+\)", r"\1", (Path(__file__).parents[2] / "docs" / "strategies.md").read_text())
    assert [strategy.words for strategy in STRATEGIES.values() if f"\n| {strategy.words} |" not in page] == []


@pytest.mark.slow
@on_postgresql
def test_a_drain_is_measured_by_steps(database_url: str, measured: Callable[..., dict[str, Any]]) -> None:
    report = measured(database_url, "--parts", "profile", "--runners", "2")
    assert figures(report) == {"profile": FIGURES["profile"]}
    costs = report["measurements"][-1]["costs"]
    assert [cost["what"] for cost in costs if not cost["calls"]] == ["rest", "threads"]
    assert {cost["what"] for cost in costs if "PostgreSQL" in cost["words"]} == {"claim", "settle"}


def test_every_figure_has_a_unit() -> None:
    own = {figure for names in FIGURES.values() for figure in names} | SLEEPERS_FIGURES
    assert own | {*GROWN, *RATIOS, *BESIDE_HISTORY} <= LAB_UNITS.keys()


def test_the_runner_has_every_profiled_function() -> None:
    for function in PROFILED:
        found = getattr(function.owner, function.name, None)
        assert found is not None, f"{function.owner.__name__} has no {function.name}"
        assert inspect.iscoroutinefunction(found) == function.waits, function
    assert {function.step for function in PROFILED} == set(STEPS)


async def test_a_nested_step_does_not_count_for_the_outer_one() -> None:
    ticking = itertools.count()
    watch = Stopwatch(lambda: float(next(ticking)))  # each reading of the clock advances it by a second
    outer, inner = WorkerStep(), WorkerStep()
    within = watch.wrap(inner, lambda: None)

    async def work() -> str:
        within()
        await asyncio.sleep(0)
        within()
        return "done"

    assert await watch.wrap_async(outer, work)() == "done"
    assert (inner.calls, inner.cpu) == (2, 2.0)
    assert (outer.calls, outer.cpu) == (1, 4.0)


async def test_a_measured_coroutine_fails_and_is_cancelled_as_usual() -> None:
    async def fail() -> None:
        try:
            await asyncio.sleep(WAIT_SECONDS)
        except asyncio.CancelledError:
            raise KeyError("its own") from None

    running = asyncio.ensure_future(Stopwatch().wrap_async(WorkerStep(), fail)())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(KeyError):
        await running
