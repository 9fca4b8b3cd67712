"""Storms of a minute and more: `pytest -m chaos`.

CHAOS_SECONDS sets the duration, and CHAOS_SEED repeats the choices of an earlier storm.
"""

import os
import random
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.policy.suspicion import Proof
from tests.chaos.check import Recovery, duplicates
from tests.chaos.site import Site
from tests.chaos.storm import Storm
from tests.conftest import SqliteDatabases
from tests.postgres import Server

pytestmark = pytest.mark.chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().getrandbits(32)))

Report = Callable[[str, object], None]


def test_a_storm_on_sqlite_breaks_no_promise(sqlite: SqliteDatabases, tmp_path: Path, report: Report) -> None:
    with Site(sqlite.migrated(tmp_path), tmp_path) as site:
        weather(site, None, report)


def test_a_storm_on_postgresql_breaks_no_promise(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with Site(crashing_url, tmp_path) as site:
        weather(site, crashing_server, report)


RECOVERY = Recovery(lease=1.5, scan=0.2, proof=Proof(group=0.3, alone=1.5), longest=0.5, slots=4, restart=15.0)
"""As `site.QUICK` sets it; a runner starts slowly on a busy machine, and the slots for plain functions are fewest."""


def spread(times: list[float]) -> str:
    """The median, the 99th percentile and the greatest of some times."""
    if len(times) < 2:
        return str(times)
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return f"{cuts[49]:.2f} / {cuts[98]:.2f} / {max(times):.2f}"


def weather(site: Site, server: Server | None, report: Report) -> None:
    """Run a storm on a site, report its faults, and check the history."""
    report("command", f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS:g} pytest -m chaos tests/chaos")
    storm = Storm(site, SEED, server)
    storm.rage(SECONDS)
    violations = site.violations(recovery=RECOVERY)
    ended, took = site.dump().ended, site.recoveries()
    report("faults survived", dict(storm.survived))
    report("tasks run", len(ended))
    report("lost", sum(violation.promise == 1 for violation in violations))
    report("violations", len(violations))
    report("effects that happened again", duplicates(site.fleet.history()))
    report("runs taken back", len(took))
    report("seconds from a fault until its tasks were taken back, p50 / p99 / max", spread(took))
    again = site.restarts()
    report("seconds from a fault to the next start, p50 / p99 / max", spread([restart.seconds for restart in again]))
    report("the same from the last fault, p50 / p99 / max", spread([restart.calm for restart in again]))
    idle = [restart for restart in again if not restart.ran]
    report("attempts of bystanders that had not started", len(idle))
    report("attempts that lost runners cost one task, at most", max(Counter(r.task for r in again).values(), default=0))
    assert violations == []
    assert len(ended) > 0
