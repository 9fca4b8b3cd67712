"""filesystem: where a SQLite file may lie, and which users may read it."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runner.errors import FileHasOtherName, UnsafeFile

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


def refuse_unsafe(file: str) -> None:
    """Reject a file on a network mount, and one that is mounted without its folder. Without /proc none is rejected.

    Args:
        file: path of the file, which need not exist.

    Raises:
        UnsafeFile: the file is on a network mount.
        FileHasOtherName: the file is a mount point: its log lies in another folder than that of its other name.
    """
    path, mounts = os.path.realpath(file), read_mounts()
    filesystem = filesystem_of(path, mounts)
    if filesystem is not None and is_remote(filesystem):
        raise UnsafeFile(path=file, filesystem=filesystem)
    if is_mount_point(path, mounts) and Path(path).is_file():
        why = "is a mount point of its own, without its folder, as in a container that mounts one file"
        remedy = f"Mount the folder of the file, so that {path}-wal is the same file for all programs"
        raise FileHasOtherName(path=file, inode=Path(path).stat().st_ino, why=why, remedy=remedy)


def is_mount_point(path: str, mountinfo: str) -> bool:
    """Return True if something is mounted on exactly this path; see `filesystem_of`."""
    lines = (line.partition(" - ")[0].split(" ") for line in mountinfo.split("\n"))
    return any(len(fields) > MOUNT_POINT and _unescaped(fields[MOUNT_POINT]) == path for fields in lines)


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
    """True if this user may write a SQLite file and its folder, in which SQLite creates other files."""
    path, effective = Path(file).resolve(), os.access in os.supports_effective_ids
    return all(os.access(each, os.W_OK, effective_ids=effective) for each in (path, path.parent))


def open_to_others(file: str) -> Iterator[Path]:
    """Find the files of a SQLite database that every user of this machine may read or write.

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
