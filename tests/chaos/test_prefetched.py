"""Prefetched tasks with real processes: a runner that dies takes no attempt of the tasks that it never started."""

import time
from pathlib import Path

import pytest

from tests.chaos.drafts import Draft, draft
from tests.chaos.site import Site
from tests.programs import Program

SLOTS = 4
QUICK = 600
"""Quick tasks that let a runner prefetch; the ones behind them are slow."""

SLOW = 240.0
"""Seconds that five runners may take, one after the other."""

RUNNING = "running"


@pytest.fixture
def site(migrated_url: str, tmp_path: Path) -> Site:
    return Site(migrated_url, tmp_path, concurrency=str(SLOTS), lease_timeout="3s")


def behind_quick_ones(site: Site, *drafts: Draft) -> list[int]:
    quick = [draft("work", f"quick-{number}") for number in range(QUICK)]
    return site.submit(*quick, *drafts)[QUICK:]


def frozen_with_prefetched(site: Site) -> Program:
    """Start a runner and freeze it while its slots are taken by marked tasks, and more wait behind them."""
    runner = site.fleet.start_runner()
    site.fleet.until(lambda: len(site.fleet.happened("end")) >= QUICK)
    site.fleet.until(lambda: site.marked() == SLOTS)
    site.freeze(runner)
    return runner


def test_tasks_that_never_started_spend_no_attempt_when_their_runner_is_killed(site: Site, tmp_path: Path) -> None:
    with site:
        fleet, gate = site.fleet, tmp_path / "gate"
        slow = behind_quick_ones(
            site, *(draft("wait", f"slow-{number}", max_attempts=1, gate=str(gate)) for number in range(60))
        )
        victim = frozen_with_prefetched(site)
        begun = {event.data["task"] for event in fleet.happened("start") if event.data["task"] in slow}
        prefetched = {row.id for row in site.dump().live if row.state == RUNNING} - begun
        assert len(begun) == SLOTS
        assert prefetched, "nothing waited for a slot"
        fleet.kill(victim)
        Path(f"{gate}.1").touch()
        fleet.start_runner()
        fleet.until(lambda: site.ended(*slow))
        assert site.violations() == []
        ends = {row.id: (row.state, row.attempt) for row in site.dump().ended}
        assert {ends[task] for task in begun} == {("dead", 1)}
        assert {ends[task] for task in set(slow) - begun} == {("succeeded", 1)}
        assert {site.row(task).rescues for task in prefetched} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 3])
def test_a_prefetched_task_that_kills_its_runner_is_dead_after_its_attempts_and_two_more(site: Site, most: int) -> None:
    with site:
        fleet = site.fleet
        neighbours = [draft("work", f"n-{number}", seconds=0.2) for number in range(8)]
        killer, *others = behind_quick_ones(site, draft("kill", "k", max_attempts=most), *neighbours)
        fleet.start_runner()
        fleet.until(lambda: site.ended(killer, *others), meanwhile=fleet.revive, patience=SLOW)
        assert site.violations() == []
        row = site.row(killer)
        assert (row.state, row.attempt) == ("dead", most)
        assert most <= len(fleet.happened("start", task=killer)) <= most + 2
        assert {site.row(task).state for task in others} == {"succeeded"}


def test_a_thawed_runner_starts_nothing_that_others_may_have(site: Site) -> None:
    with site:
        fleet = site.fleet
        tasks = site.submit(*(draft("work", f"t-{number}", seconds=0.01) for number in range(QUICK)))
        frozen = fleet.start_runner()
        fleet.until(lambda: len(fleet.happened("start")) > QUICK // 4)
        site.freeze(frozen)
        started_before = len(fleet.happened("start"))
        assert started_before < QUICK
        fleet.start_runner()
        fleet.until(lambda: site.ended(*tasks) or site.dump().live == ())
        fleet.thaw(frozen)
        fleet.until(lambda: "was declared lost" in fleet.log())
        assert stale_starts(site, frozen) == []
        assert site.violations() == []


def stale_starts(site: Site, runner: Program) -> list[object]:
    """Starts of a runner under a fence that another one has followed by then."""
    starts = site.fleet.happened("start")
    mine = [event for event in starts if event.pid == runner.pid]
    return [
        (event.data, time.ctime(event.at))
        for event in mine
        for later in starts
        if later.data["task"] == event.data["task"]
        and later.data["fence"] > event.data["fence"]
        and later.at < event.at
    ]
