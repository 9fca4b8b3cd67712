"""Storms on HTTP executors, a Dask cluster and a node of Ray: `pytest -m chaos` runs each of them on each database.

Ray is large: uv run --extra ray pytest -n 0 -m chaos -k ray tests/chaos/test_executor_storms.py

See test_storm.py for the environment variables.
"""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.chaos.check import check
from tests.chaos.cluster_storm import ClusterStorm, RayStorm
from tests.chaos.conftest import Report
from tests.chaos.dask_fleet import DaskDeployment
from tests.chaos.deployment import Deployment
from tests.chaos.http_fleet import HttpDeployment
from tests.chaos.http_storm import HttpStorm
from tests.chaos.proxy import Proxy
from tests.chaos.ray_fleet import RayDeployment
from tests.chaos.storm import PostgresFaults, Storm
from tests.chaos.test_storm import SECONDS, SEED, offered
from tests.conftest import SqliteDatabases
from tests.postgres import Server

NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

each_kind = pytest.mark.parametrize(
    ("deploy", "kind", "rate"),
    [
        pytest.param(HttpDeployment, HttpStorm, 60, id="http"),
        pytest.param(DaskDeployment, ClusterStorm, 20, id="dask"),
        pytest.param(RayDeployment, RayStorm, 10, id="ray", marks=NEEDS_RAY),
    ],
)


@pytest.mark.chaos
@each_kind
def test_a_storm_on_executors_breaks_no_promise_on_sqlite(
    deploy: type[Deployment], kind: type[Storm], rate: int, sqlite: SqliteDatabases, tmp_path: Path, report: Report
) -> None:
    with deploy(sqlite.migrated(tmp_path), tmp_path) as deployment:
        run_storm(kind(deployment, SEED, offered(rate), None), deployment, report)


@pytest.mark.chaos
@each_kind
def test_a_storm_on_executors_breaks_no_promise_on_postgresql(
    deploy: type[Deployment],
    kind: type[Storm],
    rate: int,
    crashing_server: Server,
    crashing_url: str,
    tmp_path: Path,
    report: Report,
) -> None:
    with Proxy(crashing_url, SEED) as proxy, deploy(crashing_url, tmp_path, proxy.url) as deployment:
        postgres = PostgresFaults(crashing_server, proxy)
        run_storm(kind(deployment, SEED, offered(rate), postgres), deployment, report)


def run_storm(storm: Storm, deployment: Deployment, report: Report) -> None:
    """Run a storm, and require that no promise was broken."""
    storm.run(SECONDS)
    deployment.fleet.stop()
    dump = deployment.dump()
    faults = ", ".join(f"{name}: {count}" for name, count in sorted(storm.injected.items()))
    lost = sum(attempt.error_type == "WorkerLost" for attempt in dump.attempts)
    report("storm", f"seed {SEED}, {len(dump.history)} tasks, {lost} lost by executors; {faults}")
    assert storm.live_at_end == 0, f"{storm.live_at_end} tasks did not end"
    assert check(deployment.fleet.history(), dump) == []
    assert dump.history
