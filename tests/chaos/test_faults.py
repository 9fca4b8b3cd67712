"""Single faults with real processes: kills, freezes and lost connections break no promise."""

import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from runner.policy.suspicion import WIDTHS
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Event
from tests.chaos.workload import plan
from tests.conftest import on_postgresql, postgresql_first, sqlite_first
from tests.postgres import Server


def opened(gate: Path, attempt: int) -> None:
    """Let an attempt end that waits for it."""
    Path(f"{gate}.{attempt}").touch()


def started(deployment: Deployment, task: int, attempt: int = 1) -> bool:
    return deployment.fleet.happened("start", task=task, attempt=attempt) != []


def test_the_work_of_a_killed_runner_is_rescued(deployment: Deployment, tmp_path: Path, report: Report) -> None:
    fleet, gate = deployment.fleet, tmp_path / "gate"
    victim = fleet.start_runner()
    fleet.start_runner()
    # More than one of them can hold, so that both have some; the gate lets none end before.
    tasks = deployment.submit(*(plan("wait", str(number), gate=str(gate)) for number in range(30)))
    fleet.until(lambda: len(fleet.happened("start")) == len(tasks))
    lost = [event.data["task"] for event in fleet.happened("start") if event.pid == victim.pid]
    fleet.kill(victim)
    opened(gate, 1)
    opened(gate, 2)
    fleet.until(lambda: deployment.has_finished(*tasks))
    assert 0 < len(lost) < len(tasks)
    assert deployment.violations() == []
    again = [
        row.id for row in deployment.dump().history if (row.state, row.attempt, row.rescues) == ("succeeded", 2, 1)
    ]
    assert sorted(again) == sorted(lost)
    report("seconds until the rescue:", (min(deployment.recoveries()), max(deployment.recoveries())))


@pytest.mark.slow
@postgresql_first
def test_killed_runners_leave_both_payment_and_ended_task_or_neither(deployment: Deployment) -> None:
    fleet, kinds = deployment.fleet, ("pay", "pay_thread")
    tasks = deployment.submit(*(plan(kind, f"{kind}-{number}", seconds=0.02) for kind in kinds for number in range(60)))
    for paid in (5, 15, 25):
        victim = fleet.start_runner()
        fleet.until(partial(deployment.has_paid, paid))
        fleet.kill(victim)
    assert not deployment.has_finished(*tasks), "each was killed in the midst of it"
    fleet.start_runner()
    fleet.until(lambda: deployment.has_finished(*tasks))
    assert deployment.violations() == []
    assert sorted(deployment.dump().paid) == sorted(tasks)


@sqlite_first
@pytest.mark.slow
def test_a_runner_frozen_beyond_its_lease_is_fenced_out(deployment: Deployment, tmp_path: Path, report: Report) -> None:
    fleet, gate = deployment.fleet, tmp_path / "gate"
    (task,) = deployment.submit(plan("wait", "a", gate=str(gate)))
    frozen = fleet.start_runner()
    fleet.until(lambda: started(deployment, task))
    deployment.freeze(frozen)
    fleet.start_runner()
    fleet.until(lambda: started(deployment, task, 2))
    opened(gate, 1)
    fleet.thaw(frozen)
    fleet.until(lambda: "was fenced out: its outcome is discarded" in fleet.log())
    assert deployment.row(task).state == "running", "the late settle changed nothing"
    opened(gate, 2)
    fleet.until(lambda: deployment.has_finished(task))
    assert deployment.violations() == []
    row = deployment.row(task)
    assert (row.state, row.attempt, row.rescues) == ("succeeded", 2, 1)
    report("seconds until the rescue:", deployment.recoveries())


@pytest.mark.slow
@sqlite_first
def test_a_newcomer_after_an_outage_takes_nothing_from_runners_that_renew_later(
    migrated_url: str, tmp_path: Path
) -> None:
    """Runners frozen beyond their lease represent runners without a database."""
    with Deployment(migrated_url, tmp_path, lease_timeout="4s", heartbeat_interval="800ms") as deployment:
        fleet, gate = deployment.fleet, tmp_path / "gate"
        healthy = [fleet.start_runner(), fleet.start_runner()]
        tasks = deployment.submit(*(plan("wait", str(number), gate=str(gate)) for number in range(40)))
        fleet.until(lambda: len(fleet.happened("start")) == len(tasks))
        for process in healthy:
            deployment.freeze(process)
        fleet.until(deployment.leases_expired)
        fleet.start_runner()
        (probe,) = deployment.submit(plan("work", "probe"))
        fleet.until(lambda: deployment.has_finished(probe))
        for process in healthy:
            fleet.thaw(process)
        opened(gate, 1)
        fleet.until(lambda: deployment.has_finished(*tasks))
        assert deployment.violations() == []
        assert {(row.state, row.attempt, row.rescues) for row in deployment.dump().history} == {("succeeded", 1, 0)}


@contextmanager
def no_writes(url: str) -> Iterator[None]:
    """Another program keeps every runner from writing, as a long transaction of it does."""
    with closing(connect_to(url)) as connection:
        connection.execute(
            "BEGIN IMMEDIATE"
            if url.startswith("sqlite")
            else "LOCK TABLE task, task_runner IN SHARE ROW EXCLUSIVE MODE"
        )
        yield


def connect_to(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(urlsplit(url).path, isolation_level=None, timeout=30)
    return psycopg.connect(url)


@pytest.mark.slow
@sqlite_first
def test_a_write_lock_held_beyond_every_lease_spends_no_attempt(migrated_url: str, tmp_path: Path) -> None:
    """No runner can renew, and none can judge the others; on release all renew, and a newcomer waits one lease."""
    with Deployment(
        migrated_url, tmp_path, lease_timeout="3s", heartbeat_interval="600ms", concurrency="4"
    ) as deployment:
        fleet, gate = deployment.fleet, tmp_path / "gate"
        runners = [fleet.start_runner(), fleet.start_runner()]
        quick = [plan("work", f"quick-{number}") for number in range(300)]  # so that runners prefetch the others
        tasks = deployment.submit(*quick, *(plan("wait", str(number), gate=str(gate)) for number in range(60)))
        fleet.until(lambda: len(fleet.happened("start")) == len(quick) + 4 * len(runners))
        with no_writes(migrated_url):
            fleet.until(deployment.leases_expired)
            expired = time.time()
            fleet.start_runner()
            opened(gate, 1)
            fleet.until(lambda: len(fleet.happened("end")) == len(fleet.happened("start")))
            fleet.until(lambda: "could not renew the lease" in fleet.log() or time.time() > expired + 3)
            released = time.time()
        fleet.until(lambda: deployment.has_finished(*tasks))
        assert deployment.violations() == []
        assert {(row.state, row.attempt, row.rescues) for row in deployment.dump().history} == {("succeeded", 1, 0)}
        late = [event for event in fleet.happened("start") if expired < event.at < released]
        assert late == [], "a body started although the lease of its runner was over"


@pytest.mark.slow
@sqlite_first
def test_a_runner_that_is_alone_rescues_its_own_work_one_lease_after_its_restart(
    deployment: Deployment, tmp_path: Path
) -> None:
    fleet, gate = deployment.fleet, tmp_path / "gate"
    victim = fleet.start_runner()
    tasks = deployment.submit(*(plan("wait", str(number), gate=str(gate)) for number in range(3)))
    fleet.until(lambda: len(fleet.happened("start")) == len(tasks))
    fleet.kill(victim)
    opened(gate, 2)
    fleet.start_runner()
    fleet.until(lambda: deployment.has_finished(*tasks))
    assert {(row.state, row.attempt, row.rescues) for row in deployment.dump().history} == {("succeeded", 2, 1)}
    registered = deployment.registered_at()
    assert all(attempt.ended_at - registered >= 1.5 for attempt in deployment.dump().attempts)
    assert deployment.violations() == []


@pytest.mark.slow
@sqlite_first
def test_a_task_that_kills_its_runner_dies_and_its_neighbours_do_not(deployment: Deployment, report: Report) -> None:
    fleet = deployment.fleet
    neighbours = [plan("work", f"n{number}", seconds=0.2) for number in range(8)]
    killer, *others = deployment.submit(plan("kill", "k"), *neighbours)
    fleet.start_runner()
    fleet.start_runner()
    fleet.until(lambda: deployment.has_finished(killer, *others), between=fleet.revive)
    assert deployment.violations() == []
    row = deployment.row(killer)
    assert (row.state, row.attempt, row.rescues) == ("dead", 3, 3)
    assert len(fleet.happened("start", task=killer)) == 3
    assert {deployment.row(task).state for task in others} == {"succeeded"}
    report("seconds until the rescue:", deployment.recoveries())


@pytest.mark.slow
def test_sixty_tasks_that_lost_two_runners_run_in_groups_and_only_the_killer_dies(
    migrated_url: str, tmp_path: Path, report: Report
) -> None:
    # A suspect that runs for a heartbeat interval makes room for others. A kill takes a fifth of a second, and several
    # times as long on a busy machine.
    with Deployment(
        migrated_url, tmp_path, concurrency="60", lease_timeout="6s", heartbeat_interval="2s"
    ) as deployment:
        fleet = deployment.fleet
        innocents = [plan("innocent", f"n{number}") for number in range(59)]
        killer, *others = deployment.submit(plan("late_kill", "k"), *innocents)
        for attempt in (1, 2):
            victim = fleet.start_runner()
            fleet.until(lambda: len(fleet.happened("start", attempt=attempt)) == 60)  # noqa: B023 - called immediately
            fleet.kill(victim)
        fleet.start_runner()
        fleet.until(lambda: deployment.has_finished(killer, *others), between=fleet.revive, timeout=240.0)
        assert deployment.violations() == []
        assert (deployment.row(killer).state, deployment.row(killer).attempt) == ("dead", 5)
        assert {deployment.row(task).state for task in others} == {"succeeded"}
        lost = Counter(deployment.row(task).rescues for task in others)
        assert lost[3] + lost[4] <= WIDTHS[0] - 1, "they ran in the group of 16 with the killer"
        assert lost[4] <= WIDTHS[1] - 1, "they ran in the group of 4 with the killer"
        assert set(lost) <= {2, 3, 4}
        groups = most_together(fleet.history())
        assert {attempt: most for attempt, most in groups.items() if attempt > 2} == {
            attempt: most for attempt, most in groups.items() if attempt > 2 and most <= WIDTHS[attempt - 3]
        }
        report("most together by attempt, innocents by lost runners:", (groups, dict(lost)))


def most_together(history: list[Event]) -> dict[int, int]:
    """Maximum number of parallel tasks by attempt: a kill ends all tasks of its process."""
    running: dict[tuple[int, int], tuple[int, int]] = {}
    most: Counter[int] = Counter()
    for event in history:
        if event.what == "start":
            running[event.data["task"], event.data["fence"]] = event.pid, event.data["attempt"]
            attempts = Counter(attempt for _, attempt in running.values())
            most |= Counter({event.data["attempt"]: attempts[event.data["attempt"]]})
        elif event.what == "end":
            running.pop((event.data["task"], event.data["fence"]), None)
        elif event.what == "kill":
            running = {run: owner for run, owner in running.items() if owner[0] != event.pid}
    return dict(most)


@pytest.mark.slow
@on_postgresql
def test_submitters_killed_anywhere_leave_both_task_and_order_or_neither(deployment: Deployment) -> None:
    fleet = deployment.fleet
    hesitant = fleet.start_submitter("plain", 1, pause=3600)
    fleet.until(lambda: fleet.happened("pause") != [])
    fleet.kill(hesitant)
    assert (deployment.orders(), deployment.dump().rows) == (0, ())
    busy = fleet.start_submitter("plain", 2)
    fleet.until(lambda: len(acknowledged(fleet, busy.pid)) > 20)
    fleet.kill(busy)
    assert len(deployment.dump().rows) == deployment.orders() > 20
    fleet.start_runner()
    fleet.until(deployment.at_rest)
    assert deployment.violations() == []


def acknowledged(fleet: Fleet, pid: int) -> list[object]:
    return [event for event in fleet.happened("submit", answer="ok") if event.pid == pid]


@pytest.mark.slow
def test_crashes_of_postgresql_under_load_lose_nothing(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with Deployment(crashing_url, tmp_path) as deployment:
        fleet = deployment.fleet
        fleet.start_runner()
        fleet.start_runner()
        submitter = fleet.start_submitter("gentle", 1)
        for crash in (crashing_server.kill9, lambda: crashing_server.stop("immediate")):
            before = len(fleet.happened("end"))
            fleet.until(lambda: len(fleet.happened("end")) > before + 50)  # noqa: B023 - called immediately
            crash()
            crashing_server.start()
        before = len(fleet.happened("end"))
        fleet.until(lambda: len(fleet.happened("end")) > before + 50)
        fleet.kill(submitter)
        fleet.until(deployment.at_rest)
        assert deployment.violations() == []
        report("tasks, of which rescued:", (len(deployment.dump().history), len(deployment.recoveries())))
