"""Faults one by one, with real processes: what is killed, frozen or cut off breaks no promise."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos.drafts import draft
from tests.chaos.fleet import Fleet
from tests.chaos.site import Site
from tests.conftest import on_postgresql
from tests.postgres import Server

Report = Callable[[str, object], None]


def opened(gate: Path, attempt: int) -> None:
    """Let an attempt end that waits for it."""
    Path(f"{gate}.{attempt}").touch()


def started(site: Site, task: int, attempt: int = 1) -> bool:
    return site.fleet.happened("start", task=task, attempt=attempt) != []


def test_the_work_of_a_killed_runner_is_taken_over(site: Site, tmp_path: Path, report: Report) -> None:
    fleet, gate = site.fleet, tmp_path / "gate"
    victim = fleet.start_runner()
    fleet.start_runner()
    # More than one of them can hold, so that both have some; the gate lets none end before.
    tasks = site.submit(*(draft("wait", str(number), gate=str(gate)) for number in range(30)))
    fleet.until(lambda: len(fleet.happened("start")) == len(tasks))
    lost = [event.data["task"] for event in fleet.happened("start") if event.pid == victim.pid]
    fleet.kill(victim)
    opened(gate, 1)
    opened(gate, 2)
    fleet.until(lambda: site.ended(*tasks))
    assert 0 < len(lost) < len(tasks)
    assert site.violations() == []
    again = [row.id for row in site.dump().ended if (row.state, row.attempt, row.rescues) == ("succeeded", 2, 1)]
    assert sorted(again) == sorted(lost)
    report("seconds until the work was taken back:", (min(site.recoveries()), max(site.recoveries())))


def test_killed_runners_leave_both_payment_and_ended_task_or_neither(site: Site) -> None:
    fleet, kinds = site.fleet, ("pay", "pay_thread")
    tasks = site.submit(*(draft(kind, f"{kind}-{number}", seconds=0.02) for kind in kinds for number in range(60)))
    for paid in (5, 15, 25):
        victim = fleet.start_runner()
        fleet.until(partial(site.has_paid, paid))
        fleet.kill(victim)
    assert not site.ended(*tasks), "each was killed in the midst of it"
    fleet.start_runner()
    fleet.until(lambda: site.ended(*tasks))
    assert site.violations() == []
    assert sorted(site.dump().paid) == sorted(tasks)


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
    fleet.start_runner()
    fleet.until(lambda: site.ended(killer, *others), meanwhile=fleet.revive)
    assert site.violations() == []
    row = site.row(killer)
    assert (row.state, row.attempt, row.rescues) == ("dead", 3, 3)
    assert len(fleet.happened("start", task=killer)) == 3
    assert {site.row(task).state for task in others} == {"succeeded"}
    report("seconds until the work was taken back:", site.recoveries())


@on_postgresql
def test_submitters_killed_anywhere_leave_both_task_and_order_or_neither(site: Site) -> None:
    fleet = site.fleet
    hesitant = fleet.start_submitter("plain", 1, pause=3600)
    fleet.until(lambda: fleet.happened("pause") != [])
    fleet.kill(hesitant)
    assert (site.orders(), site.dump().rows) == (0, ())
    busy = fleet.start_submitter("plain", 2)
    fleet.until(lambda: len(acknowledged(fleet, busy.pid)) > 20)
    fleet.kill(busy)
    assert len(site.dump().rows) == site.orders() > 20
    fleet.start_runner()
    fleet.until(site.at_rest)
    assert site.violations() == []


def acknowledged(fleet: Fleet, pid: int) -> list[object]:
    return [event for event in fleet.happened("submit", answer="ok") if event.pid == pid]


def test_crashes_of_postgresql_under_load_lose_nothing(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with Site(crashing_url, tmp_path) as site:
        fleet = site.fleet
        fleet.start_runner()
        fleet.start_runner()
        submitter = fleet.start_submitter("gentle", 1)
        for crash in (crashing_server.kill9, lambda: crashing_server.stop("immediate")):
            seen = len(fleet.happened("end"))
            fleet.until(lambda: len(fleet.happened("end")) > seen + 50)  # noqa: B023 - called at once
            crash()
            crashing_server.start()
        seen = len(fleet.happened("end"))
        fleet.until(lambda: len(fleet.happened("end")) > seen + 50)
        fleet.kill(submitter)
        fleet.until(site.at_rest)
        assert site.violations() == []
        report("tasks, of which taken back:", (len(site.dump().ended), len(site.recoveries())))
