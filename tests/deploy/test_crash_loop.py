"""A fleet that crashes in a loop."""

import pytest

from tests.deploy.conftest import Deployment, until

LEASE = 10

pytestmark = [pytest.mark.slow, pytest.mark.both_databases]


def test_runners_that_live_for_a_fraction_of_a_lease_rescue(deployment: Deployment) -> None:
    (task,) = deployment.submit("hold")
    loop = f"while [ ! -e stop ]; do LIFE=$LIFE runner work --lease-timeout {LEASE}s; done"
    deployment.start(f"LIFE=1.5; {loop}")
    until(lambda: deployment.rows()[task].attempt == 2, deployment)
    (deployment.folder / "stop").touch()
    assert "rescued from a lost runner" in deployment.text()
