"""A database that cannot be opened is reported with the fact and the remedy: mounts, folders, users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.db.diagnosis import file_problem
from tests.db.test_file_identity import in_mount

CONNECT = """
import os, sys, tempfile
from runner.db.database import Database
from runner.db.needs import Needs

def connect(url):
    database = Database.open(url)
    try:
        database.threads.run(lambda connection: connection.cursor.execute("SELECT 1"), Needs.TRANSACTION)
    finally:
        database.threads.close()

with tempfile.TemporaryDirectory() as folder:  # imports everything before the interpreter may be out of reach
    connect(f"sqlite:///{folder}/first.db")
    try:
        connect(f"sqlite:///{folder}/none/first.db")
    except Exception:
        pass
if sys.argv[2] != "0":
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
try:
    connect(sys.argv[1])
except Exception as error:
    print(error)
"""


def refusal(url: object, uid: int) -> str:
    command = [sys.executable, "-c", CONNECT, str(url), str(uid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "tasks.db").touch()
    assert file_problem(str(tmp_path / "tasks.db")) == ""


def test_a_missing_folder_a_file_as_folder_and_a_folder_as_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert file_problem(f"{tmp_path}/none/x.db").startswith(f"the folder {tmp_path}/none does not exist (errno 2)")
    assert file_problem(f"{tmp_path}/file/x.db").startswith(f"{tmp_path}/file is not a folder (errno 20)")
    assert file_problem(str(tmp_path)).startswith(f"{tmp_path} is a folder, not a file (errno 21)")


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


@pytest.mark.slow
@as_root
@pytest.mark.parametrize("kind", ["file", "folder", "entry"])
def test_a_missing_right_names_the_path_its_owner_and_this_user(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(f"/tmp/runner-diagnosis-{os.getpid()}-{kind}")
    folder.mkdir(mode=0o755)
    try:
        file = folder / "tasks.db"
        file.touch(mode=0o600 if kind == "file" else 0o666)
        file.chmod(0o444 if kind == "file" else 0o666)
        folder.chmod({"file": 0o777, "folder": 0o755, "entry": 0o700}[kind])
        text = refusal(f"sqlite:///{file}", 54321)
        expected = {
            "file": f"uid 54321 (gid 54321) may not read and write the file {file} (owner uid 0, gid 0, mode 0444)",
            "folder": f"uid 54321 (gid 54321) may not write the folder {folder} (owner uid 0, gid 0, mode 0755)",
            "entry": f"uid 54321 (gid 54321) may not enter {folder} (owner uid 0, gid 0, mode 0700)",
        }
        assert expected[kind] in text
    finally:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@pytest.mark.slow
def test_a_file_system_that_is_mounted_read_only_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    if in_mount(tmp_path / "a", tmp_path / "b", "mount", "-o", "remount,bind,ro", tmp_path / "b").returncode:
        pytest.skip("this user may not mount")
    script = 'mount -o remount,bind,ro "$1"; shift; exec "$@"'
    command = (sys.executable, "-c", CONNECT, f"sqlite:///{tmp_path}/b/tasks.db", "0")
    result = in_mount(tmp_path / "a", tmp_path / "b", "sh", "-c", script, "sh", tmp_path / "b", *command)
    fact = f"the file system of {tmp_path}/b (mount point {tmp_path}/b) is mounted read-only (errno 30)"
    assert fact in result.stdout
    assert "Mount it read-write" in result.stdout
