"""filesystem: where a SQLite file may lie, which users may read it, and whether it was replaced."""

import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import sqlalchemy as sa

from runner.errors import UnsafeFile

MOUNTS = Path("/proc/self/mountinfo")
MOUNT_POINT = 4
"""Index of the mount point in a line."""

NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "vboxsf"})
NETWORK_FUSE = frozenset(
    [
        "curlftpfs",
        "davfs",
        "davfs2",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "gvfsd-fuse",
        "rclone",
        "s3fs",
        "smbnetfs",
        "sshfs",
        "vmhgfs-fuse",
    ]
)
"""Programs behind FUSE that reach another machine; many others (overlays, encryption, NTFS) serve a local disk."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """Return the type of the file system of a path.

    Args:
        path: absolute path without symbolic links.
        mountinfo: content of /proc/self/mountinfo, see proc_pid_mountinfo(5).

    Returns:
        The type, such as ext4, nfs4 or fuse.sshfs; None without a matching mount point.
    """
    longest, filesystem = "", None
    for line in mountinfo.split("\n"):
        mount, dash, source = line.partition(" - ")
        fields = mount.split(" ")
        if not dash or len(fields) <= MOUNT_POINT:
            continue
        point = _unescaped(fields[MOUNT_POINT])
        # A later mount on the same point hides an earlier one.
        if len(point) >= len(longest) and _is_below(path, point):
            longest, filesystem = point, source.split(" ")[0]
    return filesystem


def is_remote(filesystem: str) -> bool:
    """Return True for file systems on a network or outside a virtual machine."""
    kind, _, program = filesystem.partition(".")
    return filesystem in NETWORK or (kind == "fuse" and program in NETWORK_FUSE)


def refuse_remote(file: str) -> None:
    """Reject a file on a network mount. Without /proc no file is rejected.

    Args:
        file: path of the file, which need not exist.

    Raises:
        UnsafeFile: the file is on a network mount.
    """
    filesystem = filesystem_of(os.path.realpath(file), read_mounts())
    if filesystem is not None and is_remote(filesystem):
        raise UnsafeFile(path=file, filesystem=filesystem)


def read_mounts() -> str:
    """Return the mounts of this process; empty on systems without /proc."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")  # as paths are decoded
    except OSError:
        return ""


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def identity(path: str | Path) -> tuple[int, int]:
    """Return the identity of the file at a path; a replaced file has another identity.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    status = Path(path).stat()
    return status.st_dev, status.st_ino


MAPPINGS = Path("/proc/self/maps")
_IDENTITIES: dict[str, tuple[int, int]] = {}
"""The identities of the files that this process has opened last, by path."""


def refuse_mixed(path: str | Path) -> None:
    """Reject a file that has replaced the one that this process has open, beside the logs of the old one.

    SQLite would empty the index of the log under the open connections, which ends the process with SIGBUS, and would
    write changes of the old file into the new one. Systems without /proc reject nothing.

    Args:
        path: path of the file, before the first statement of a new connection to it.

    Raises:
        sqlite3.OperationalError: the file was replaced, and its logs were not.
    """
    file = os.path.realpath(path)
    with suppress(OSError):
        current = identity(file)
        replaced = _IDENTITIES.get(file, current) != current
        if replaced and f" {file}-shm\n" in MAPPINGS.read_text(errors="surrogateescape"):
            remedy = f"delete {file}-wal and {file}-shm as well, and restart this program"
            raise sqlite3.OperationalError(f"unable to open a file that replaced the open one: {remedy}")
        _IDENTITIES[file] = current


PRIVATE = 0o600
"""Mode of a new SQLite file. SQLite gives the same mode to the -wal and -shm files beside it."""

COMPANIONS = ("", "-wal", "-shm")
"""Suffixes of the files of one SQLite database."""


def create_private(file: str) -> None:
    """Create an empty SQLite file that only this user may read and write. An existing file keeps its mode.

    Args:
        file: path of the file. If it cannot be created, SQLite reports the reason when it opens the file.
    """
    with suppress(OSError):
        # A link to a missing file: O_EXCL refuses the link itself.
        os.close(os.open(os.path.realpath(file), os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))


def may_write(file: str) -> bool:
    """True if this user may write a SQLite file and its folder, in which SQLite creates other files.

    Args:
        file: path of the database file.
    """
    path, effective = Path(file).resolve(), os.access in os.supports_effective_ids
    return all(os.access(each, os.W_OK, effective_ids=effective) for each in (path, path.parent))


def open_to_others(file: str) -> Iterator[Path]:
    """Find the files of a SQLite database that every user of this machine may read or write.

    Args:
        file: path of the database file.

    Returns:
        The files; none if a folder above them keeps other users out.
    """
    path = Path(file).resolve()
    with suppress(OSError):
        if not all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents):
            return
    for suffix in COMPANIONS:
        with suppress(OSError):
            companion = path.with_name(path.name + suffix)
            if companion.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
                yield companion


def follow_file(engine: sa.Engine) -> None:
    """Discard connections whose file was replaced: SQLite can still read and write a deleted file."""
    # Absolute, since the process may change its directory.
    path = Path(unquote((engine.url.database or "").removeprefix("file:"))).absolute()

    def on_connect(connection: Any, record: sa.pool.ConnectionPoolEntry) -> None:
        try:
            refuse_mixed(path)
        except sqlite3.OperationalError:
            connection.close()
            raise
        record.info["file"] = identity(path)

    def on_checkout(_: Any, record: sa.pool.ConnectionPoolEntry, __: Any) -> None:
        if record.info["file"] != identity(path):
            raise sa.exc.DisconnectionError("the file was replaced")  # the pool then opens the new one

    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "checkout", on_checkout)
