"""Files, file systems and shared memory that refuse: read-only, full, absent."""

import signal
from pathlib import Path

import pytest

from tests.conftest import on_sqlite
from tests.deploy.conftest import WAIT_SECONDS, Deployment, until
from tests.deploy.namespaces import USER, in_namespace, needs_namespaces, own_shared_memory

pytestmark = [pytest.mark.one_database, needs_namespaces]

WORK = "runner work --until-idle --log-format human"


def require_line(deployment: Deployment, fact: str) -> None:
    """Require one clear line with a fact."""
    text = deployment.text() + deployment.text("out")
    assert fact in text
    assert "Traceback" not in text
    assert "ExceptionGroup" not in text
    assert "rejected the statement" not in text


@on_sqlite
@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param("exec runner submit quick", 4, marks=pytest.mark.slow),
        pytest.param("exec runner check", 4, marks=pytest.mark.slow),
        (f"exec {WORK}", 4),
    ],
)
def test_a_read_only_file_system_is_named_with_its_mount_point(deployment: Deployment, script: str, code: int) -> None:
    folder = deployment.folder
    mounts = (f"mount --bind {folder} {folder}", f"mount -o remount,ro,bind {folder}")
    assert deployment.run(in_namespace(deployment, script, *mounts)) == code
    require_line(deployment, f"(mount point {folder}) is mounted read-only (errno 30)")


@on_sqlite
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (f"exec {WORK}", 4),
        pytest.param("exec runner submit quick", 4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["folder", pytest.param("file", marks=pytest.mark.slow)])
def test_a_folder_or_file_of_another_user_is_named_with_owner_and_mode(
    deployment: Deployment, script: str, code: int, name: str
) -> None:
    database = Path(deployment.url.removeprefix("sqlite:///"))
    deployment.states()  # the last connection removes the log
    path = {"folder": database.parent, "file": database}[name]
    mode = {"folder": "0555", "file": "0444"}[name]
    lock = f"chown 0:0 {path}; chmod {mode} {path}"
    assert deployment.run(in_namespace(deployment, script, lock, user=USER)) == code
    require_line(deployment, f"{path} (owner uid 0, gid 0, mode {mode})")
    assert f"uid {USER} (gid {USER}) may not" in deployment.text()


@on_sqlite
@pytest.mark.parametrize(
    "script",
    ["exec runner submit quick", pytest.param("exec runner work --log-format human", marks=pytest.mark.slow)],
)
def test_a_full_disk_under_the_file_is_named(deployment: Deployment, script: str) -> None:
    disk = deployment.folder / "disk"
    disk.mkdir()
    database = deployment.url.removeprefix("sqlite:///")
    fill = f"cp {database} disk/tasks.db; cat /dev/zero > disk/fill || true"
    mounts = ("mount -t tmpfs -o size=600k none disk",)
    environment = {"TASKTUI_URL": f"sqlite:///{disk}/tasks.db"}
    script = in_namespace(deployment, f"({fill}) 2>/dev/null; {script}", f"cd {deployment.folder}", *mounts)
    process = deployment.start(script, environment=environment)
    until(lambda: "errno 28" in deployment.text() or process.poll() is not None, deployment)
    if "work" in script:
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) in (0, 4)
    require_line(deployment, f"The disk of sqlite:///{disk}/tasks.db is full")
    assert f"(mount point {disk}) has 0 bytes" in deployment.text()


@pytest.mark.slow
def test_a_full_disk_under_the_log_stops_nothing(deployment: Deployment) -> None:
    (deployment.folder / "log").mkdir()
    deployment.submit("chatter", '{"lines": 3000}')
    deployment.submit("on_loop", count=5)
    mounts = (f"cd {deployment.folder}", "mount -t tmpfs -o size=20k none log")
    deployment.release()
    assert deployment.run(in_namespace(deployment, f"exec {WORK} > log/out 2> log/err", *mounts)) == 0
    assert deployment.states() == {"succeeded"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    ["cat /dev/zero > /dev/shm/fill 2>/dev/null || true", "mount -o remount,ro /dev/shm", "umount -l /proc"],
    ids=["full", "read-only", "no-proc"],
)
def test_process_handlers_need_no_shared_memory_and_no_proc(deployment: Deployment, script: str) -> None:
    deployment.submit("process")
    deployment.submit("quick")
    mounts = (*own_shared_memory(deployment.folder), script)
    code = deployment.run(in_namespace(deployment, f"exec {WORK}", *mounts))
    assert (code, deployment.states()) == (0, {"succeeded"}), deployment.text()
    assert "Traceback" not in deployment.text()
