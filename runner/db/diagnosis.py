"""diagnosis: why a database could not be opened or written, as facts of this machine, each with its remedy."""

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from runner.db.filesystem import COMPANIONS, is_mount_point, read_mounts

GRANT_WRITE = "Give this user the right to write the file and its folder"
"""The remedy of a missing right."""

FULL_BYTES = 32_768
"""Size of the index of SQLite's log; with less space left SQLite reports an error of the disk."""


def file_problem(file: str) -> str:
    """Find out why a SQLite file cannot be opened or written.

    Returns:
        What was observed, with paths, owners and this user, and the remedy; empty if nothing was found.
    """
    path = Path(os.path.realpath(file))
    try:
        return _folder_problem(path.parent) or _missing_right(path)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror} (errno {error.errno})"


def full_disk(file: str) -> str:
    """Return the file system of a SQLite file if it has no space or no inode left; empty otherwise.

    Args:
        file: path of the database file.
    """
    folder = Path(os.path.realpath(file)).parent
    if not hasattr(os, "statvfs"):  # Windows
        return ""
    try:
        status = os.statvfs(folder)
    except OSError:
        return ""
    left, has_inodes = status.f_bavail * status.f_frsize, status.f_favail or not status.f_files
    if left >= FULL_BYTES and has_inodes:
        return ""
    fact = f"{left:,} bytes and {status.f_favail:,} inodes left (errno {errno.ENOSPC})"
    return f"the file system of {folder} (mount point {_mount_point(folder)}) has {fact}"


def _folder_problem(folder: Path) -> str:
    status: os.stat_result | None
    try:
        status = folder.stat()
    except FileNotFoundError:
        return f"the folder {folder} does not exist (errno {errno.ENOENT}). Create it, or correct the URL"
    except PermissionError:
        status = None
    if status is not None and not stat.S_ISDIR(status.st_mode):
        return f"{folder} is not a folder (errno {errno.ENOTDIR}). Correct the URL"
    closed = next((each for each in (*reversed(folder.parents), folder) if not _may(each, os.X_OK)), None)
    if closed is not None:
        return f"{_user()} may not enter {_owner(closed)}. Give this user the right to enter the folder"
    return ""


def _missing_right(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder, not a file (errno {errno.EISDIR}). Correct the URL"
    if hasattr(os, "statvfs") and os.statvfs(path if path.exists() else path.parent).f_flag & os.ST_RDONLY:
        mounted = f"the file system of {path.parent} (mount point {_mount_point(path.parent)}) is mounted read-only"
        return f"{mounted} (errno {errno.EROFS}). Mount it read-write, or move the file"
    for suffix in COMPANIONS:
        file = path.with_name(path.name + suffix)
        if file.exists() and not _may(file, os.R_OK | os.W_OK):
            return f"{_user()} may not read and write the file {_owner(file)}. {GRANT_WRITE}"
    if not _may(path.parent, os.W_OK | os.X_OK):
        logs = f"in which SQLite creates {path.name}-wal and {path.name}-shm"
        return f"{_user()} may not write the folder {_owner(path.parent)}, {logs}. {GRANT_WRITE}"
    return ""


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _user() -> str:
    return f"uid {os.geteuid()} (gid {os.getegid()})" if hasattr(os, "geteuid") else "this user"


def _owner(path: Path) -> str:
    text = str(path)
    with suppress(OSError):
        status = path.stat()
        text += f" (owner uid {status.st_uid}, gid {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o})"
    return text


def _mount_point(folder: Path) -> Path:
    mounts = read_mounts()
    return next((each for each in (folder, *folder.parents) if is_mount_point(str(each), mounts)), folder)
