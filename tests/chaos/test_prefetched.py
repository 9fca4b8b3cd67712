"""Prefetched tasks with real processes: a runner that dies takes no attempt of the tasks that it never started."""

import time
from pathlib import Path

import pytest

from tests.chaos.deployment import Deployment
from tests.chaos.workload import PlannedTask, plan
from tests.conftest import postgresql_first, sqlite_first
from tests.programs import Program

SLOTS = 4
QUICK = 600
"""Quick tasks that let a runner prefetch; the ones behind them are slow."""

SLOW = 240.0
"""Seconds that five runners may take, one after the other."""

RUNNING = "running"


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Deployment:
    return Deployment(migrated_url, tmp_path, concurrency=str(SLOTS), lease_timeout="3s")


def behind_quick_ones(deployment: Deployment, *tasks: PlannedTask) -> list[int]:
    quick = [plan("work", f"quick-{number}") for number in range(QUICK)]
    return deployment.submit(*quick, *tasks)[QUICK:]


def frozen_with_prefetched(deployment: Deployment) -> Program:
    """Start a runner and freeze it while its slots are taken by marked tasks, and more wait behind them."""
    runner = deployment.fleet.start_runner()
    deployment.fleet.until(lambda: len(deployment.fleet.happened("end")) >= QUICK)
    deployment.fleet.until(lambda: deployment.marked() == SLOTS)
    deployment.freeze(runner)
    return runner


@pytest.mark.slow
@postgresql_first
def test_tasks_that_never_started_spend_no_attempt_when_their_runner_is_killed(
    deployment: Deployment, tmp_path: Path
) -> None:
    with deployment:
        fleet, gate = deployment.fleet, tmp_path / "gate"
        slow = behind_quick_ones(
            deployment, *(plan("wait", f"slow-{number}", max_attempts=1, gate=str(gate)) for number in range(60))
        )
        victim = frozen_with_prefetched(deployment)
        begun = {event.data["task"] for event in fleet.happened("start") if event.data["task"] in slow}
        prefetched = {row.id for row in deployment.dump().live if row.state == RUNNING} - begun
        assert len(begun) == SLOTS
        assert prefetched, "nothing waited for a slot"
        fleet.kill(victim)
        Path(f"{gate}.1").touch()
        fleet.start_runner()
        fleet.until(lambda: deployment.has_finished(*slow))
        assert deployment.violations() == []
        ends = {row.id: (row.state, row.attempt) for row in deployment.dump().history}
        assert {ends[task] for task in begun} == {("dead", 1)}
        assert {ends[task] for task in set(slow) - begun} == {("succeeded", 1)}
        assert {deployment.row(task).rescues for task in prefetched} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3])
def test_a_prefetched_task_that_kills_its_runner_is_dead_after_its_attempts_and_two_more(
    deployment: Deployment, most: int
) -> None:
    with deployment:
        fleet = deployment.fleet
        neighbours = [plan("work", f"n-{number}", seconds=0.2) for number in range(8)]
        killer, *others = behind_quick_ones(deployment, plan("kill", "k", max_attempts=most), *neighbours)
        fleet.start_runner()
        fleet.until(lambda: deployment.has_finished(killer, *others), between=fleet.revive, timeout=SLOW)
        assert deployment.violations() == []
        row = deployment.row(killer)
        assert (row.state, row.attempt) == ("dead", most)
        assert most <= len(fleet.happened("start", task=killer)) <= most + 2
        assert {deployment.row(task).state for task in others} == {"succeeded"}


@pytest.mark.slow
@sqlite_first
def test_a_thawed_runner_starts_nothing_that_others_may_have(deployment: Deployment) -> None:
    with deployment:
        fleet = deployment.fleet
        tasks = deployment.submit(*(plan("work", f"t-{number}", seconds=0.01) for number in range(QUICK)))
        frozen = fleet.start_runner()
        fleet.until(lambda: len(fleet.happened("start")) > QUICK // 4)
        deployment.freeze(frozen)
        started_before = len(fleet.happened("start"))
        assert started_before < QUICK
        fleet.start_runner()
        fleet.until(lambda: deployment.has_finished(*tasks) or deployment.dump().live == ())
        fleet.thaw(frozen)
        fleet.until(lambda: "was declared lost" in fleet.log())
        # The freeze may fall between the check of the lease and the first line of one body.
        assert len(stale_starts(deployment, frozen)) <= 1
        assert deployment.violations() == []


def stale_starts(deployment: Deployment, runner: Program) -> list[object]:
    """Starts of a runner under a fence that another one has followed by then."""
    starts = deployment.fleet.happened("start")
    mine = [event for event in starts if event.pid == runner.pid]
    return [
        (event.data, time.ctime(event.at))
        for event in mine
        for later in starts
        if later.data["task"] == event.data["task"]
        and later.data["fence"] > event.data["fence"]
        and later.at < event.at
    ]
