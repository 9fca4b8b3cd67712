"""Limits with several real runners: no instant has more running tasks, also when runners are killed."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from runner.db.database import Database
from runner.operations.limit import LimitEdit, set_limits
from runner.operations.pause import PauseKind, PauseTarget
from runner.operations.results import Actor
from tests.chaos.deployment import Deployment
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Event
from tests.chaos.workload import PlannedTask, plan

RUNNERS, FEW_RUNNERS, LIMIT, TENANTS = 8, 4, 5, 4
ALL = ""


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(migrated_url, tmp_path, concurrency="20", lease_timeout="2s", poll_interval="200ms") as deployment:
        yield deployment


def limit(url: str, **values: str) -> None:
    async def change() -> None:
        database = Database.open(url)
        edit = LimitEdit({name.replace("_", "-"): value for name, value in values.items()}, new=True)
        await database.write(set_limits, PauseTarget(PauseKind.HANDLER, "chaos.work"), edit, Actor("ana", "desk"))
        await database.dispose()

    asyncio.run(change())


def tasks(number: int, seconds: float) -> list[PlannedTask]:
    """Tasks of all tenants; the token of each begins with its tenant."""
    planned = [plan("work", f"t{index % TENANTS}-{index}", seconds=seconds) for index in range(number)]
    return [each._replace(task=each.task._replace(tenant=tenant_of(each.token))) for each in planned]


def tenant_of(token: str) -> str:
    return token.partition("-")[0]


def peak(history: Sequence[Event], group: Callable[[str], str]) -> dict[str, int]:
    """The greatest number of tasks that ran at the same time, by group; a killed process runs nothing."""
    running: dict[tuple[int, int, int], str] = {}
    killed: set[int] = set()
    most: dict[str, int] = {}
    for event in history:
        if event.what == "kill":
            killed.add(event.pid)
            running = {claim: name for claim, name in running.items() if claim[0] != event.pid}
        elif event.what in ("start", "end") and event.pid not in killed:
            claim = (event.pid, event.data["task"], event.data["fence"])
            if event.what == "end":
                running.pop(claim, None)
                continue
            running[claim] = group(event.data["token"])
            now = sum(name == running[claim] for name in running.values())
            most[running[claim]] = max(now, most.get(running[claim], 0))
    return most


def check(fleet: Fleet, per_tenant: int) -> None:
    history = fleet.history()
    assert peak(history, lambda _: ALL) == {ALL: LIMIT}
    assert max(peak(history, tenant_of).values()) <= per_tenant


@pytest.mark.slow
def test_no_instant_exceeds_a_limit_while_runners_are_killed(deployment: Deployment, migrated_url: str) -> None:
    limit(migrated_url, concurrency=str(LIMIT), per_tenant="2")
    ids = deployment.submit(*tasks(60, 0.02))
    fleet = deployment.fleet
    for _ in range(FEW_RUNNERS):
        fleet.start_runner()
    for number in (10, 30):
        fleet.until(lambda: len(fleet.happened("end")) >= number)  # noqa: B023 - called at once
        alive = {each.pid: each for each in fleet.runners}
        fleet.kill(next(alive[event.pid] for event in reversed(fleet.happened("start")) if event.pid in alive))
    fleet.until(lambda: deployment.has_finished(*ids))
    check(fleet, 2)
    assert deployment.violations() == []


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2])
def test_limits_hold_for_minutes_of_kills(deployment: Deployment, migrated_url: str, seed: int) -> None:
    draw, fleet = random.Random(seed), deployment.fleet
    limit(migrated_url, concurrency=str(LIMIT), per_tenant="2")
    ids = deployment.submit(*tasks(4_000, 0.02))
    for _ in range(RUNNERS):
        fleet.start_runner()
    end = time.monotonic() + 60
    while time.monotonic() < end and not deployment.has_finished(*ids):
        time.sleep(draw.uniform(0.3, 1.5))
        fleet.kill(draw.choice(fleet.runners))
        fleet.start_runner()
    fleet.until(lambda: deployment.has_finished(*ids), between=fleet.revive, timeout=300)
    check(fleet, 2)
    assert deployment.violations() == []


def test_the_check_finds_one_task_too_many() -> None:
    starts = [Event("start", at, pid, {"task": pid, "fence": 1, "token": "t0-1"}) for at, pid in ((1, 1), (2, 2))]
    end, killed = Event("end", 3, 1, {"task": 1, "fence": 1}), Event("kill", 1.5, 1)
    assert peak([*starts, end], tenant_of) == {"t0": 2}
    assert peak([starts[0], killed, starts[1]], tenant_of) == {"t0": 1}
