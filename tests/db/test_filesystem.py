"""A SQLite file on a network mount is refused before it is opened, and a new file is private."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from runner.db import filesystem
from runner.db.database import Database
from runner.db.filesystem import COMPANIONS, filesystem_of, is_remote, open_to_others
from runner.errors import DatabaseUnavailable, UnsafeFile
from tests.databases import database_at

MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
41 27 0:40 / /home rw,relatime shared:20 master:3 - nfs4 server:/home rw,vers=4.2
42 41 254:0 /scratch/ana /home/ana/scratch rw,relatime - ext4 /dev/vda rw
43 27 0:41 / /mnt/team\040drive rw,relatime - cifs //server/team rw
44 27 0:42 / /mnt/back\134slash\011tab rw,relatime - fuse.sshfs me@host:/ rw
45 27 0:40 /shared /srv/bound rw,relatime - nfs4 server:/home rw
46 27 0:43 / /srv/twice rw,relatime - ext4 /dev/vdb rw
47 46 0:44 / /srv/twice rw,relatime - nfs server:/twice rw
48 27 0:45 / /srv/auto rw,relatime - autofs systemd-1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tasks.db", "ext4"),
        ("/home", "nfs4"),
        ("/home/ana/tasks.db", "nfs4"),
        ("/homestead/tasks.db", "ext4"),
        ("/home/ana/scratch/tasks.db", "ext4"),
        ("/home/ana/scratches/tasks.db", "nfs4"),
        ("/mnt/team drive/tasks.db", "cifs"),
        ("/mnt/team/tasks.db", "ext4"),
        ("/mnt/back\\slash\ttab/tasks.db", "fuse.sshfs"),
        ("/srv/bound/tasks.db", "nfs4"),
        ("/srv/twice/tasks.db", "nfs"),
    ],
)
def test_the_longest_mount_point_of_a_path_determines_its_file_system(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind


@pytest.mark.parametrize("mounts", ["", "nonsense\n\n1 2 3 - ext4\n", "1 2 0:1 / /proc rw - proc proc rw\n"])
def test_without_mounts_no_file_system_is_reported(mounts: str) -> None:
    assert filesystem_of("/tasks.db", mounts) is None


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.rclone", "fuse.glusterfs", "fuse.vmhgfs-fuse"]
)
def test_network_file_systems_are_remote(kind: str) -> None:
    assert is_remote(kind)


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs", "sshfs"]
)
def test_local_file_systems_are_not_remote(kind: str) -> None:
    assert not is_remote(kind)


def mounted(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    """Make a folder look like a mount of this kind."""
    mounts = f"1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:9 / {folder.resolve()} rw - {kind} server:/ rw\n"
    monkeypatch.setattr(filesystem, "read_mounts", lambda: mounts)


def test_a_database_on_a_network_mount_is_not_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted(monkeypatch, tmp_path, "nfs4")
    with pytest.raises(UnsafeFile, match=r"tasks\.db is on nfs4"):
        Database.open(f"sqlite:///{tmp_path}/tasks.db")
    assert list(tmp_path.iterdir()) == []


def test_a_link_does_not_hide_where_the_file_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    share, link = tmp_path / "share", tmp_path / "tasks.db"
    share.mkdir()
    link.symlink_to(share / "tasks.db")
    mounted(monkeypatch, share, "cifs")
    with pytest.raises(UnsafeFile):
        Database.open(str(link))


async def test_a_database_on_a_local_disk_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounted(monkeypatch, tmp_path, "ext4")
    await Database.open(str(tmp_path / "tasks.db")).dispose()


def test_without_proc_nothing_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(filesystem, "MOUNTS", tmp_path / "none")
    assert filesystem.read_mounts() == ""
    filesystem.refuse_unsafe("/home/tasks.db")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The umask that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


async def modes_of_new(file: Path) -> dict[str, int]:
    """Create the tables in a file and return the modes of its files while a connection is open."""
    async with database_at(str(file)) as database:
        await database.migrate()
        files = (file.resolve().parent / f"{file.resolve().name}{suffix}" for suffix in COMPANIONS)
        return {each.name: stat.S_IMODE(each.stat().st_mode) for each in files}


@pytest.mark.usefixtures("open_umask")
async def test_a_new_file_is_private(tmp_path: Path) -> None:
    assert await modes_of_new(tmp_path / "tasks.db") == {
        "tasks.db": 0o600,
        "tasks.db-wal": 0o600,
        "tasks.db-shm": 0o600,
    }


@pytest.mark.usefixtures("open_umask")
async def test_a_new_file_behind_a_link_is_private(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "tasks.db")
    assert set((await modes_of_new(tmp_path / "link.db")).values()) == {0o600}


@pytest.mark.usefixtures("open_umask")
async def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    file.touch(mode=0o640)
    assert set((await modes_of_new(file)).values()) == {0o640}


async def test_a_file_in_a_missing_folder_is_an_error_of_the_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match="unable to open"):
        await modes_of_new(tmp_path / "none" / "tasks.db")
    # A thread that ends after the event loop prints a traceback.
    assert not [thread for thread in threading.enumerate() if "_connection_worker" in thread.name]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own folders are private."""
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_files_that_other_users_may_read_are_reported(public_folder: Path) -> None:
    file, log = public_folder / "tasks.db", public_folder / "tasks.db-wal"
    for each, mode in ((file, 0o600), (log, 0o602)):
        each.touch()
        each.chmod(mode)
    assert list(open_to_others(str(file))) == [log.resolve()]
    file.chmod(0o604)
    assert list(open_to_others(str(file))) == [file.resolve(), log.resolve()]
    public_folder.chmod(0o700)
    assert list(open_to_others(str(file))) == []
