"""Checkpoints with real runners: no attempt starts behind an acknowledged one, and no fenced attempt writes one."""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.model.task import NewTask
from runner.store.submit import submit_many
from tests.chaos.boundary import BOUNDARIES, KILL
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Event
from tests.conftest import sqlite_first

if TYPE_CHECKING:
    from tests.programs import Program

STEP_TIMEOUT = 600.0
"""Seconds for a step of a test: none of them takes a tenth of it on an idle machine."""

RUNNERS = 5
ROUNDS = 3
LAST = 2 * ROUNDS + 1

KILLS = [(boundary, number + (boundary == "answer")) for number in range(1, LAST, 2) for boundary in BOUNDARIES]
"""Three kills at one checkpoint, and the fourth at the one after it, because the third one is stored."""

RESUMED = [0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5, 6]
"""The state at the start of each attempt: that of the last commit."""


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(migrated_url, tmp_path, processes="2") as deployment:
        yield deployment


def submit(deployment: Deployment, *kinds: str, **payload: Any) -> list[int]:
    """Submit tasks that count."""
    tasks = [NewTask(f"chaos.{kind}", json.dumps(payload), max_attempts=1_000) for kind in kinds]
    return deployment.do(lambda database: database.write(submit_many, tasks))


def breaches(history: Sequence[Event], checkpoints: Sequence[tuple[int, int, int]]) -> list[str]:
    """Compare the attempts with the acknowledged checkpoints; the stored ones are task, number and fence."""
    starts = [event.data for event in history if event.what == "resume"]
    answers = [event.data for event in history if event.what == "acknowledge"]
    behind = [
        f"{start} is behind {answer}"
        for start in starts
        for answer in answers
        if start["task"] == answer["task"] and start["fence"] > answer["fence"] and start["state"] < answer["number"]
    ]
    counts = Counter((answer["task"], answer["number"]) for answer in answers)
    twice = [f"{number} of task {task} was acknowledged twice" for (task, number), n in counts.items() if n > 1]
    fenced = [
        f"{later} was written by a fenced attempt, after {earlier}"
        for earlier, later in pairwise(sorted(checkpoints))
        if earlier[0] == later[0] and earlier[2] > later[2]
    ]
    return behind + twice + fenced


def stored(deployment: Deployment) -> list[tuple[int, int, int]]:
    """The checkpoints that the live tasks keep."""

    async def read(database: Database) -> list[tuple[int, int, int]]:
        row = database.tables.checkpoint.c
        async with database.reading() as tx:
            return [tuple(each) for each in await tx.rows(sa.select(row.task_id, row.number, row.fence))]

    return deployment.do(read)


def expire_leases(deployment: Deployment) -> None:
    """Let the leases of dead runners expire."""

    async def expire(database: Database) -> None:
        async with database.writing() as tx:
            await tx.execute(sa.update(tx.tables.runner).values(lease_until=db_later(db_now(), -1)))

    deployment.do(expire)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        pytest.param("count", KILLS[2:3], marks=pytest.mark.slow, id="once"),
        pytest.param("count", KILLS, marks=pytest.mark.slow, id="async"),
        pytest.param("count_thread", KILLS, marks=pytest.mark.slow, id="thread"),
        pytest.param("count_process", KILLS, marks=pytest.mark.slow, id="process"),
    ],
)
@sqlite_first
def test_a_runner_that_is_killed_at_a_boundary_of_a_checkpoint_loses_no_acknowledged_one(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, kind: str, kills: Sequence[tuple[str, int]]
) -> None:
    (task,) = submit(deployment, kind, last=LAST if kills is KILLS else 2)
    fleet = deployment.fleet
    for boundary, number in kills:
        monkeypatch.setenv(KILL, f"{boundary} {number}")
        runner = fleet.start_runner()
        fleet.until(lambda: runner.poll() is not None, timeout=STEP_TIMEOUT)  # noqa: B023 - called at once
        fleet.runners.remove(runner)
        expire_leases(deployment)
    monkeypatch.delenv(KILL)
    fleet.start_runner()
    fleet.until(lambda: deployment.has_finished(task), timeout=STEP_TIMEOUT)
    assert deployment.row(task).state == "succeeded"
    states = [event.data["state"] for event in fleet.happened("resume")]
    assert states == (RESUMED if kills is KILLS else [0, 1])
    assert breaches(fleet.history(), ()) == []


def answered(fleet: Fleet) -> int:
    """The number of acknowledged checkpoints."""
    return len(fleet.happened("acknowledge"))


def storm(deployment: Deployment, runners: int, tasks: int, last: int, seed: int) -> Counter[str]:
    """Let runners count while they are killed and frozen, and return the number of events by kind."""
    draw, fleet = random.Random(seed), deployment.fleet
    kinds = ("count", "count_thread", "count_process")
    ids = submit(deployment, *(kinds[number % 3] for number in range(tasks)), last=last, seconds=0.05)
    for _ in range(runners):
        fleet.start_runner()
    frozen: list[Program] = []

    answers = 0
    while not deployment.has_finished(*ids):
        enough = answers + last
        fleet.until(lambda: deployment.at_rest() or answered(fleet) > enough, timeout=STEP_TIMEOUT)  # noqa: B023
        answers = answered(fleet)
        assert breaches(fleet.history(), stored(deployment)) == []
        while frozen:
            fleet.thaw(frozen.pop())
        victim = draw.choice(fleet.runners)
        if draw.random() < 0.5:
            fleet.kill(victim)
            fleet.start_runner()
        else:
            deployment.freeze(victim)
            frozen.append(victim)
            fleet.until(lambda: deployment.is_lost(victim) or deployment.at_rest(), timeout=STEP_TIMEOUT)  # noqa: B023
    for program in frozen:
        fleet.thaw(program)
    assert breaches(fleet.history(), ()) == []
    assert {deployment.row(task).state for task in ids} == {"succeeded"}
    fleet.stop()
    return Counter(event.what for event in fleet.history())


@pytest.mark.chaos
def test_checkpoints_under_kills_and_freezes(deployment: Deployment, report: Report) -> None:
    report("events", dict(storm(deployment, RUNNERS, tasks=30, last=100, seed=3)))


def test_the_check_finds_each_breach() -> None:
    def event(what: str, **data: int) -> Event:
        return Event(what, 0.0, 1, {"task": 1} | data)

    answer, behind = event("acknowledge", fence=1, number=3), event("resume", fence=2, state=2)
    assert breaches([answer, event("resume", fence=2, state=3)], [(1, 1, 1), (1, 2, 2)]) == []
    assert len(breaches([answer, behind], ())) == 1
    assert len(breaches([answer, answer], ())) == 1
    assert len(breaches([], [(1, 1, 2), (1, 2, 1)])) == 1
