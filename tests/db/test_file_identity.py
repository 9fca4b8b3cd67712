"""A SQLite file has one name and one log: programs with another one are refused, and acknowledged tasks stay."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from runner.client.database_client import Client
from runner.db import file_identity
from runner.db.file_identity import OpenFiles, refuse_mixed, save_logs
from runner.db.filesystem import is_mount_point
from runner.db.migrations.apply import ensure
from runner.db.transaction import clock
from runner.errors import DatabaseFileReplaced, DatabaseUnavailable, FileHasOtherName
from runner.model.task import NewTask
from runner.settings import Settings
from runner.testing import TaskStore
from runner.urls import parse_url
from tests.databases import database_at
from tests.db.test_filesystem import MOUNTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the files of other programs")

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("INSERT INTO task (handler) VALUES ('other')")
print("open", flush=True)
sys.stdin.readline()
"""


@contextmanager
def other_program(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another program, which has inserted a task and has the file open."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.db"
    with TaskStore(f"sqlite:///{path}"):
        return path


@contextmanager
def client_of(path: Path) -> Iterator[Client]:
    client = Client(Settings(url=parse_url(f"sqlite:///{path}")))
    try:
        yield client
    finally:
        client.close()


def submitted(path: Path) -> int:
    """Submit a task as an application does, and return its id."""
    with client_of(path) as client:
        return client.submit([NewTask("mine")]).ids[0]


def handlers(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT handler FROM task ORDER BY id")]


@pytest.mark.parametrize("deleted", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_program_is_refused_while_another_one_has_a_deleted_log(file: Path, deleted: tuple[str, ...]) -> None:
    with other_program(file) as process:
        inode = Path(f"{file}{deleted[0]}").stat().st_ino
        for suffix in deleted:
            Path(f"{file}{suffix}").unlink()
        fact = rf"{file}{deleted[0]} \(inode {inode}\), which process {process.pid} has open, was deleted"
        with pytest.raises(DatabaseFileReplaced, match=fact):
            submitted(file)
    assert handlers(file) == ["other"]  # its last connection has written the log into the file
    assert submitted(file) == 2


def test_a_program_is_refused_while_another_one_has_a_replaced_log(file: Path) -> None:
    with other_program(file):
        copy = shutil.copy(f"{file}-wal", f"{file}.copy")
        Path(copy).replace(f"{file}-wal")
        with pytest.raises(DatabaseFileReplaced, match=r"-wal \(inode .* was replaced: the path has inode"):
            submitted(file)


def test_a_program_that_has_the_file_open_notices_that_its_log_was_deleted(file: Path) -> None:
    with client_of(file) as client:
        client.submit([NewTask("first")])
        Path(f"{file}-wal").unlink()
        with pytest.raises(DatabaseUnavailable) as caught:
            client.submit([NewTask("second")])
    message = str(caught.value)
    assert f"{file}-wal (inode " in message
    assert "was deleted: the path has no file" in message
    assert "Probably" in message
    assert "Do not delete a -wal file" in message
    assert handlers(file) == ["first"]
    assert submitted(file) == 2


async def test_pooled_connections_notice_that_the_log_was_deleted(file: Path) -> None:
    async with database_at(f"sqlite:///{file}") as database:
        await ensure(database)
        assert await database.read(clock)
        Path(f"{file}-wal").unlink()
        with pytest.raises(DatabaseFileReplaced, match="which this program has open, was deleted"):
            await database.read(clock)


async def test_pooled_connections_do_not_create_a_deleted_file_again(file: Path) -> None:
    async with database_at(f"sqlite:///{file}") as database:
        assert await database.read(clock)
        file.unlink()
        with pytest.raises(DatabaseFileReplaced, match=r"tasks.db \(inode \d+\), .* was deleted"):
            await database.read(clock)
        assert not file.exists()


async def test_a_file_that_leaves_its_path_while_it_is_opened_is_not_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = file.with_suffix(".away")

    class Late(OpenFiles):
        def __init__(self, path: str) -> None:
            file.rename(away)  # the connection is open already
            super().__init__(path)

    async with database_at(f"sqlite:///{file}") as database:
        with monkeypatch.context() as patch:
            patch.setattr(file_identity, "OpenFiles", Late)
            with pytest.raises(DatabaseFileReplaced, match="was deleted: the path has no file"):
                await database.read(clock)
        away.rename(file)
        await database.read(clock)


def test_a_new_file_beside_the_logs_of_the_old_one_is_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with TaskStore(f"sqlite:///{other}"):
        pass
    with other_program(file):
        other.replace(file)
        with pytest.raises(DatabaseFileReplaced, match=r"tasks.db.*, was replaced: the path has inode"):
            submitted(file)


def test_both_logs_are_copied_before_one_of_them_is_lost(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("INSERT INTO task (handler) VALUES ('old')")
        files = OpenFiles(str(file))
        kept, spare = f"{file}-wal", f"{file}.spare"
        shutil.copy(kept, spare)
        Path(kept).unlink()
        Path(spare).replace(kept)
        change = files.change()
        assert change
        copies = save_logs(change)
        assert len(copies) == 2
        assert [Path(copy).stat().st_mode & 0o777 for copy in copies] == [0o600] * 2
    restored = file.with_name("restored.db")
    shutil.copy(file, restored)
    shutil.copy(copies[0], f"{restored}-wal")
    assert handlers(restored) == ["old"]


def test_a_hard_link_is_refused_while_a_log_lies_beside_the_other_name(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link.db"
    with other_program(file) as process:
        process.kill()  # its log stays
        process.wait()
    os.link(file, link)
    with pytest.raises(FileHasOtherName, match=rf"{link} \(inode {file.stat().st_ino}\) has 2 names.*also {file}\."):
        submitted(link)
    assert submitted(file) == 2
    assert f"{file} (inode {file.stat().st_ino}) has 2 names (hard links), also {link}." in caplog.text
    assert submitted(link) == 3  # no log holds tasks any more


def test_the_name_that_a_program_has_open_stays_usable(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, symbolic = tmp_path / "link.db", tmp_path / "symbolic.db"
    with other_program(file) as process:
        os.link(file, link)
        symbolic.symlink_to(file)
        with pytest.raises(FileHasOtherName, match=rf"under the name {file} .*in process {process.pid}"):
            submitted(link)
        assert (submitted(file), submitted(symbolic)) == (2, 3)
        assert caplog.text.count("2 names (hard links)") == 1
    assert not Path(f"{link}-wal").exists()


def test_a_symbolic_link_and_a_moved_file_are_one_file(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(file)
    with other_program(link), other_program(file):
        refuse_mixed(link)
        refuse_mixed(file)
        assert (submitted(link), submitted(file)) == (3, 4)


MOUNTED = """
set -e
mount --bind "$1" "$2"
shift 2
exec "$@"
"""


def in_mount(source: Path, target: Path, *command: object) -> "subprocess.CompletedProcess[str]":
    """Run a command where one path is mounted on another."""
    words = ["unshare", "--mount", "sh", "-c", MOUNTED, "sh", source, target, *command]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@pytest.fixture
def mounts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    if in_mount(tmp_path / "a", tmp_path / "b", "true").returncode:
        pytest.skip("this user may not mount")


SUBMIT = """
import sys
import runner
runner.connect(url=sys.argv[1])
print(runner.handler("work")(lambda: None).submit())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
def test_a_file_that_is_mounted_without_its_folder_is_refused(file: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "b" / "tasks.db"
    mounted.touch()
    result = in_mount(file, mounted, sys.executable, "-c", SUBMIT, f"sqlite:///{mounted}")
    assert f"{mounted} (inode {file.stat().st_ino}) is a mount point of its own" in result.stderr
    assert "Mount the folder" in result.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("mounts")
def test_a_file_in_a_mounted_folder_is_shared_with_programs_outside(tmp_path: Path) -> None:
    path = tmp_path / "a" / "tasks.db"
    assert submitted(path) == 1
    with other_program(path):
        result = in_mount(
            tmp_path / "a", tmp_path / "b", sys.executable, "-c", SUBMIT, f"sqlite:///{tmp_path}/b/tasks.db"
        )
    assert (result.stderr, result.stdout) == ("", "3\n")
    assert handlers(path) == ["mine", "other", "work"]


def test_a_mount_point_is_exactly_its_path() -> None:
    assert is_mount_point("/mnt/team drive", MOUNTS)
    assert not is_mount_point("/mnt/team drive/tasks.db", MOUNTS)


async def test_a_closing_program_is_not_taken_for_one_with_another_log(file: Path) -> None:
    async def work() -> None:
        for _ in range(5):
            assert await asyncio.to_thread(submitted, file)

    await asyncio.gather(*(work() for _ in range(3)))
