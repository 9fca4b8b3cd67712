"""Slices and breakers with several real runners, while members are killed, frozen and restarted."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.model.task import BUCKETS
from tests.chaos import claim_log
from tests.chaos.claim_log import Entry
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.handlers import OUTAGE
from tests.chaos.strategies import Slices, check_strategies
from tests.chaos.work import HOST
from tests.chaos.workload import plan
from tests.conftest import postgresql_first
from tests.programs import Program

MEMBERS = 5
LEASE, HEARTBEAT = 5.0, 0.3
STEP_TIMEOUT = 300.0
"""Seconds for a step of a test: none of them takes a tenth of it on an idle machine."""

SLOW = 10.0
"""Seconds by which a busy machine may delay a member: its heartbeats, or the start of a new process."""

BRITTLE = "chaos.brittle"


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(
        migrated_url, tmp_path, lease_timeout=f"{LEASE}s", heartbeat_interval=f"{HEARTBEAT}s"
    ) as deployment:
        deployment.do(claim_log.install)
        yield deployment


def log_of(deployment: Deployment) -> list[Entry]:
    return deployment.do(claim_log.read)


def state_of(deployment: Deployment) -> Slices:
    """The members at the end of the log."""
    slices = Slices()
    for entry in log_of(deployment):
        slices.apply(entry)
    return slices


def shares(deployment: Deployment) -> dict[int, frozenset[int]]:
    """The buckets of each member by process id, without those that are lost."""
    slices = state_of(deployment)
    return {row["pid"]: buckets for id, buckets in slices.members(0.0).items() for row in [slices.rows[id]]}


def divided(deployment: Deployment, members: Sequence[Program]) -> bool:
    """True if each of these members, and no other one, has a share of all buckets."""
    parts = shares(deployment)
    is_complete = all(parts.values()) and sum(map(len, parts.values())) == BUCKETS
    return is_complete and parts.keys() == {member.pid for member in members}


class Gap(NamedTuple):
    """A time in which a bucket belonged to no live member."""

    bucket: int
    seconds: float


def longest_gap(log: Sequence[Entry], since: float) -> Gap:
    """The longest time without an owner of any bucket; a lease that ends unrenewed ends the share of its member."""
    slices, free = Slices(), dict.fromkeys(range(BUCKETS), since)
    longest = Gap(0, 0.0)
    for entry in log:
        slices.apply(entry)
        if entry.at < since or entry.kind not in ("buckets", "lease", "left", "runner"):
            continue
        owned = frozenset().union(*slices.members(entry.at).values())
        for bucket in owned & free.keys():
            longest = max(longest, Gap(bucket, entry.at - free.pop(bucket)), key=lambda gap: gap.seconds)
        free |= dict.fromkeys(frozenset(range(BUCKETS)) - owned - free.keys(), entry.at)
    return longest


@pytest.mark.slow
@postgresql_first
def test_live_slices_move_only_the_share_of_a_member_that_is_killed_or_joins(
    deployment: Deployment, report: Report
) -> None:
    fleet = deployment.fleet
    fleet.draw_settings = lambda: {"TASKTUI_SLICE": "live", HOST: f"h{len(fleet.runners)}"}
    for _ in range(MEMBERS):
        fleet.start_runner()
    fleet.until(lambda: divided(deployment, fleet.runners), timeout=STEP_TIMEOUT)
    before, divided_at = shares(deployment), log_of(deployment)[-1].at
    fleet.start_submitter("plain", 1, interval=0.05, size=5)

    # Frozen for less than a lease: nothing moves.
    victim = fleet.runners[0]
    deployment.freeze(victim)
    fleet.thaw(victim)
    # A member that flaps comes back on the same host within a lease, and gets its buckets back.
    flapping = fleet.runners[2]
    fleet.kill(flapping)
    back = fleet.start_runner(**{HOST: "h2"})
    same = {back.pid if pid == flapping.pid else pid: buckets for pid, buckets in before.items()}
    fleet.until(lambda: shares(deployment) == same, timeout=STEP_TIMEOUT)

    # Killed for good: only its share moves.
    before = shares(deployment)
    first_runner = fleet.runners[0]
    fleet.kill(first_runner)

    def has_gone() -> bool:
        after = shares(deployment)
        return divided(deployment, fleet.runners) and all(after[pid] > before[pid] for pid in after)

    fleet.until(has_gone, timeout=STEP_TIMEOUT)  # each of the others takes a part of it, and has lost nothing

    # A newcomer takes an equal part of each.
    before = shares(deployment)
    newcomer = fleet.start_runner(**{HOST: "new"})

    def has_joined() -> bool:
        after = shares(deployment)
        return divided(deployment, fleet.runners) and all(after[pid] < before[pid] for pid in before)

    fleet.until(has_joined, timeout=STEP_TIMEOUT)
    after = shares(deployment)
    assert after[newcomer.pid] == frozenset(range(BUCKETS)).difference(*(after[pid] for pid in before))

    for process in [*fleet.others]:
        fleet.kill(process)
    fleet.until(deployment.at_rest, fleet.revive, STEP_TIMEOUT)
    log = log_of(deployment)
    assert check_strategies(log, {}, frozenset()) == []
    assert deployment.violations() == []
    gap = longest_gap(log, divided_at)
    report("longest time of a bucket without a member, s", round(gap.seconds, 2))
    assert gap.seconds < LEASE + SLOW


@pytest.mark.slow
@postgresql_first
def test_a_breaker_survives_the_kill_of_its_opener_and_of_its_prober(deployment: Deployment) -> None:
    fleet, outage = deployment.fleet, deployment.fleet.home / OUTAGE
    outage.touch()
    for _ in range(MEMBERS):
        fleet.start_runner()
    ids = deployment.submit(*(plan("brittle", f"b{number}") for number in range(60)))
    fleet.until(lambda: opened(deployment) >= 1)
    opener = fleet.happened("start")[-1].pid
    fleet.kill(next(member for member in fleet.runners if member.pid == opener))
    fleet.until(lambda: opened(deployment) >= 2, fleet.revive)  # a probe failed
    spent = starts(deployment)
    prober = fleet.happened("start")[-1].pid
    for member in [member for member in fleet.runners if member.pid == prober]:
        deployment.freeze(member)
        fleet.kill(member)
    fleet.until(lambda: opened(deployment) >= 4, fleet.revive)  # others probe on
    assert starts(deployment) - spent <= opened(deployment), "waiting tasks spend no attempts"
    outage.unlink()
    fleet.until(lambda: deployment.has_finished(*ids), fleet.revive)
    breaches = check_strategies(log_of(deployment), {}, frozenset())
    assert breaches == []
    assert deployment.violations() == []
    assert {row.state for row in deployment.dump().history} == {"succeeded"}


def opened(deployment: Deployment) -> int:
    """The number of times at which the log has the breaker opened, or kept open after a probe."""
    return sum(entry.kind == "breaker" and entry.data["breaker_probes"] is not None for entry in log_of(deployment))


def starts(deployment: Deployment) -> int:
    return sum(entry.kind == "claim" for entry in log_of(deployment))
