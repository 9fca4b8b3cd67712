"""Storms: `pytest -m chaos` runs one on each database; the normal suite runs short ones.

Environment variables: CHAOS_SECONDS is the duration (60), CHAOS_RATE the tasks per second that are offered (500),
CHAOS_SEED repeats the choices of an earlier storm, and CHAOS_REPORT is the folder for the reports.
"""

import os
import random
import time
from pathlib import Path

import pytest

from runner.policy.suspicion import Proof
from tests.chaos.conftest import Report
from tests.chaos.deployment import Deployment
from tests.chaos.proxy import Proxy
from tests.chaos.recovery import Recovery
from tests.chaos.storm import PostgresFaults, Storm
from tests.chaos.storm_report import BYSTANDERS, StormReport
from tests.conftest import SqliteDatabases
from tests.postgres import Server

SECONDS = float(os.environ.get("CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("CHAOS_SEED", random.SystemRandom().getrandbits(32)))

RECOVERY = Recovery(lease=1.5, scan=0.2, proof=Proof(group=0.3, alone=1.5), longest=0.5, slots=4, restart=13.0)
"""The settings in deployment.QUICK. A runner starts slowly on a busy machine; plain functions have the fewest slots."""


def offered(rate: int) -> float:
    """The tasks per second that submitters offer."""
    return float(os.environ.get("CHAOS_RATE", rate))


RATE = offered(500)


@pytest.mark.chaos
def test_a_storm_on_sqlite_breaks_no_promise(sqlite: SqliteDatabases, tmp_path: Path, report: Report) -> None:
    with Deployment(sqlite.migrated(tmp_path), tmp_path) as deployment:
        run_storm("SQLite", deployment, None, report)


@pytest.mark.chaos
def test_a_storm_on_postgresql_breaks_no_promise(
    crashing_server: Server, crashing_url: str, tmp_path: Path, report: Report
) -> None:
    with (
        Proxy(crashing_url, SEED) as proxy,
        Deployment(crashing_url, tmp_path, proxy.url) as deployment,
    ):
        proxy.on_fault = lambda _: deployment.fleet.journal.write("outage")
        run_storm("PostgreSQL", deployment, PostgresFaults(crashing_server, proxy), report)


def run_storm(
    database: str,
    deployment: Deployment,
    postgres: PostgresFaults | None,
    report: Report,
    seconds: float = SECONDS,
    rate: float = RATE,
) -> None:
    """Run a storm, publish its report, and require that no promise was broken."""
    command = f"CHAOS_SECONDS={seconds:g} CHAOS_RATE={rate:g} CHAOS_SEED={SEED} uv run pytest -m chaos tests/chaos"
    storm = Storm(deployment, SEED, rate, postgres)
    started = time.monotonic()
    storm.run(seconds)
    duration = time.monotonic() - started
    deployment.fleet.stop()
    faults = dict(storm.injected)
    if postgres is not None:
        faults |= {f"connections: {name}": count for name, count in sorted(postgres.proxy.faults.items())}
    history, dump = deployment.fleet.history(), deployment.dump()
    result = StormReport.of(database, command, faults, history, dump, RECOVERY, duration)
    if folder := os.environ.get("CHAOS_REPORT"):
        result.write(Path(folder))
    report("report", "\n" + result.markdown())
    assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end; {result.violations}"
    assert result.violations == []
    assert result.figures[BYSTANDERS] == 0
    assert dump.history
