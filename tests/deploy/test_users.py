"""Users without an entry and a home."""

import pytest

from tests.deploy.conftest import Deployment
from tests.deploy.namespaces import USER, in_namespace, needs_namespaces, own_shared_memory

WORK = "runner work --until-idle --log-format human"

pytestmark = [pytest.mark.one_database, needs_namespaces]


def require_work(deployment: Deployment, script: str, **environment: str | None) -> None:
    deployment.submit("prints")
    deployment.submit("process")
    code = deployment.run(script, environment=environment)
    assert (code, deployment.states()) == (0, {"succeeded"}), deployment.text()
    assert "Traceback" not in deployment.text()
    assert "warning" not in deployment.text()


@pytest.mark.slow
@pytest.mark.parametrize("home", [None, pytest.param("/nonexistent", marks=pytest.mark.slow)])
def test_a_user_without_an_entry_runs_tasks_beside_a_full_shared_memory(
    deployment: Deployment, home: str | None
) -> None:
    mounts = (*own_shared_memory(deployment.folder), "cat /dev/zero > /dev/shm/fill 2>/dev/null || true")
    require_work(deployment, in_namespace(deployment, f"exec {WORK}", *mounts, user=USER), HOME=home)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_home_that_is_closed_or_read_only_counts_as_absent(deployment: Deployment, mode: int) -> None:
    home = deployment.folder / "home"
    home.mkdir()
    home.chmod(mode)
    verbs = "runner submit quick && runner stats"
    require_work(deployment, in_namespace(deployment, f"{verbs} && exec {WORK}", user=USER), HOME=str(home))


@pytest.mark.slow
def test_a_home_on_a_read_only_file_system_changes_nothing(deployment: Deployment) -> None:
    home = deployment.folder / "home"
    home.mkdir()
    mounts = (f"mount --bind {home} {home}", f"mount -o remount,ro,bind {home}")
    require_work(deployment, in_namespace(deployment, f"runner stats && exec {WORK}", *mounts), HOME=str(home))
