"""Faults one by one, with real processes: what is killed, frozen or cut off breaks no promise."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.drafts import draft
from tests.chaos.fleet import Fleet
from tests.chaos.site import Site
from tests.postgres import Server

Report = Callable[[str, object], None]


def opened(gate: Path, attempt: int) -> None:
    """Let an attempt end that waits for it."""
    Path(f"{gate}.{attempt}").touch()


def started(site: Site, task: int, attempt: int = 1) -> bool:
    return site.fleet.happened("start", task=task, attempt=attempt) != []


def test_the_work_of_a_killed_runner_is_taken_over(site: Site, tmp_path: Path, report: Report) -> None:
    fleet, gate = site.fleet, tmp_path / "gate"
    (task,) = site.submit(draft("wait", "a", gate=str(gate)))
    victim = fleet.start_runner()
    fleet.until(lambda: started(site, task))
    fleet.start_runner()
    fleet.until(lambda: fleet.log().count(" at work on ") == 2)
    fleet.kill(victim)
    fleet.runners.remove(victim)
    opened(gate, 2)
    fleet.until(lambda: site.ended(task))
    assert site.violations() == []
    row = site.row(task)
    assert (row.state, row.attempt, row.rescues) == ("succeeded", 2, 1)
    report("seconds until the work was taken back:", site.recoveries())


def test_a_runner_frozen_beyond_its_lease_is_fenced_out(site: Site, tmp_path: Path, report: Report) -> None:
    fleet, gate = site.fleet, tmp_path / "gate"
    (task,) = site.submit(draft("wait", "a", gate=str(gate)))
    frozen = fleet.start_runner()
    fleet.until(lambda: started(site, task))
    fleet.freeze(frozen)
    fleet.start_runner()
    fleet.until(lambda: started(site, task, 2))
    opened(gate, 1)
    fleet.thaw(frozen)
    fleet.until(lambda: "fenced out, its outcome is not written" in fleet.log())
    assert site.row(task).state == "running", "the late settle changed nothing"
    opened(gate, 2)
    fleet.until(lambda: site.ended(task))
    assert site.violations() == []
    row = site.row(task)
    assert (row.state, row.attempt, row.rescues) == ("succeeded", 2, 1)
    report("seconds until the work was taken back:", site.recoveries())


def test_a_task_that_kills_its_runner_dies_and_its_neighbours_do_not(site: Site, report: Report) -> None:
    fleet = site.fleet
    neighbours = [draft("work", f"n{number}", seconds=0.2) for number in range(8)]
    killer, *others = site.submit(draft("kill", "k"), *neighbours)
    fleet.start_runner()
    fleet.until(lambda: site.ended(killer, *others), meanwhile=fleet.revive)
    assert site.violations() == []
    row = site.row(killer)
    assert (row.state, row.attempt, row.rescues) == ("dead", 3, 3)
    assert len(fleet.happened("start", task=killer)) == 3
    assert {site.row(task).state for task in others} == {"succeeded"}
    report("seconds until the work was taken back:", site.recoveries())


def test_two_runners_on_one_database_run_each_task_once(site: Site) -> None:
    fleet = site.fleet
    fleet.start_runner()
    fleet.start_runner()
    fleet.until(lambda: fleet.log().count(" at work on ") == 2)
    tasks = site.submit(*(draft("work", str(number), seconds=0.01) for number in range(200)))
    fleet.until(site.at_rest)
    assert site.violations() == []
    starts = fleet.happened("start")
    assert sorted(event.data["task"] for event in starts) == sorted(tasks)
    assert len({event.pid for event in starts}) == 2


def test_a_submitter_killed_before_its_commit_leaves_neither_task_nor_order(site: Site) -> None:
    fleet = site.fleet
    submitter = fleet.start_submitter("plain", "1", "1", "3600")
    fleet.until(lambda: fleet.happened("pause") != [])
    fleet.kill(submitter)
    assert site.orders() == 0
    assert site.dump().rows == ()
    assert site.violations() == []


def test_a_submitter_killed_anywhere_leaves_both_task_and_order_or_neither(site: Site) -> None:
    fleet = site.fleet
    submitters = [fleet.start_submitter("plain", "100000", str(seed), "0") for seed in range(2)]
    for number, submitter in enumerate(submitters):
        fleet.until(lambda: len(acknowledged(fleet, submitter.pid)) > 20 + 10 * number)  # noqa: B023 - called at once
        fleet.kill(submitter)
    rows = site.dump().rows
    assert len(rows) == site.orders()
    fleet.start_runner()
    fleet.until(site.at_rest)
    assert site.violations() == []


def acknowledged(fleet: Fleet, pid: int) -> list[object]:
    return [event for event in fleet.happened("submit", answer="ok") if event.pid == pid]


@pytest.mark.parametrize("how", ["immediate", "kill -9"])
def test_a_crash_of_postgresql_under_load_loses_nothing(
    crashing_server: Server, crashing_url: str, tmp_path: Path, how: str, report: Report
) -> None:
    with Site(crashing_url, tmp_path) as site:
        fleet = site.fleet
        fleet.start_runner()
        fleet.start_runner()
        submitter = fleet.start_submitter("gentle", "100000", "1", "0")
        fleet.until(lambda: len(fleet.happened("end")) > 50)
        crashing_server.kill9() if how == "kill -9" else crashing_server.stop("immediate")
        seen = len(fleet.happened("end"))
        crashing_server.start()
        fleet.until(lambda: len(fleet.happened("end")) > seen + 50)
        submitter.send_signal(signal.SIGKILL)
        submitter.wait()
        fleet.until(site.at_rest)
        assert site.violations() == []
        report("tasks, rescued:", (len(site.dump().ended), len(site.recoveries())))
