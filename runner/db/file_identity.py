"""file_identity: whether the files of a SQLite database are still those that a program has opened.

SQLite finds the log (`-wal`) and its index (`-shm`) of a file by name. A program that has another log than the others
does not see their tasks; when the files are closed, one of the logs is lost, and the file may be damaged.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import sqlalchemy as sa

from runner.db.filesystem import PRIVATE
from runner.errors import DatabaseFileReplaced, FileHasOtherName
from runner.text.redact import mask
from runner.text.sanitize import count_noun, one_line

LOGS = ("-wal", "-shm")
"""Suffixes of the files beside the database that exist while a program has it open."""

DELETED = " (deleted)"
"""The end of the name under which /proc shows a file that has no name any more."""

LOCKS = Path("/proc/locks")
LOCK_KIND, LOCK_MODE, LOCK_PID, LOCK_FILE, LOCK_START, LOCK_END = 1, 3, 4, 5, 6, 7
"""Indexes of the fields in a line. A line of a process that waits for a lock has one field more, and is left out."""

LOG_WRITER, FILE_WRITER = 120, 0x40000001
"""The byte that a writer locks in the index of the log, and the one in a database without a log."""

LONGEST_PROGRAM = 80
"""Maximum number of characters of a command line."""

CHECKS, CHECK_PAUSE = 5, 0.02
"""Looks at the other programs, and seconds between two: one that opens or closes its last connection right now has
another log than its file for a moment."""

Identity = tuple[int, int]
"""Device and inode of a file; a replaced file has another one."""

NO_FILE: Identity = (0, 0)
"""The identity of a file that left its path while it was opened: no file at the path is that one."""

log = logging.getLogger("runner")

_OPENED: dict[str, Identity] = {}
"""The files that this process has opened last, by path."""

_LINKED: set[str] = set()
"""The files with several names that this process has logged."""


def identity(path: str | Path) -> Identity | None:
    """Return the identity of the file at a path; None without a file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - before each submit
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


class FileChange(NamedTuple):
    """A file that was replaced or deleted while a connection had it open.

    Args:
        name: path of the changed file: the database itself, its log or the index of the log.
        opened: its identity when it was opened; None if it is unknown.
        current: the identity of the file at its path now; None without one.
        holder: id of the process that has it open.
    """

    path: str
    name: str
    opened: Identity | None
    current: Identity | None
    holder: int

    @property
    def error(self) -> DatabaseFileReplaced:
        """The error that reports the change."""
        holder = "this program" if self.holder == os.getpid() else f"process {self.holder}"
        now = f"replaced: the path has inode {self.current[1]} now" if self.current else "deleted: the path has no file"
        inode = f" (inode {self.opened[1]})" if self.opened not in (None, NO_FILE) else ""
        why = f"{self.name}{inode}, which {holder} has open, was {now}"
        return DatabaseFileReplaced(url=self.path, why=why, saved="")


class OpenFiles:
    """The files of a SQLite database as a connection has opened them.

    Args:
        path: path of the database. A connection has read from it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._names = (path, *(f"{os.path.realpath(path)}{suffix}" for suffix in LOGS))
        self._opened = [identity(name) for name in self._names]
        self._opened[0] = self._opened[0] or NO_FILE
        self._first = [(name, opened) for name, opened in zip(self._names[:2], self._opened, strict=False) if opened]

    def are_current(self) -> bool:
        """True if the path still has the same file and log; the cheap look before each submit leaves out the index."""
        try:
            for name, opened in self._first:
                status = os.stat(name)  # noqa: PTH116 - as above
                if status.st_ino != opened[1] or status.st_dev != opened[0]:
                    return False
        except FileNotFoundError:
            return False
        return True

    def refuse_deleted(self) -> None:
        """Accept that another file has replaced the database; its connections are opened again.

        Raises:
            DatabaseFileReplaced: the file was deleted, or its log is not the one of the connection.
        """
        change = self.change()
        if change is not None and (change.name != self.path or change.current is None):
            raise change.error

    def change(self) -> FileChange | None:
        """Return the first file that was replaced or deleted since; SQLite keeps all of them while a program reads."""
        for index, name in enumerate(self._names):
            current, opened = identity(name), self._opened[index]
            if current != opened:
                if opened is not None:
                    return FileChange(self.path, name, opened, current, os.getpid())
                self._opened[index] = current
        return None


def save_logs(change: FileChange) -> list[str]:
    """Copy the logs of a database that has two of them: SQLite deletes one when its last connection closes.

    Args:
        change: a log that this process has open and that was replaced or deleted.

    Returns:
        The paths of the copies.
    """
    log_file, copies = f"{os.path.realpath(change.path)}{LOGS[0]}", []
    if change.name == change.path:
        return []
    opened = [path for name, _, path in _open_files(os.getpid()) if name == f"{log_file}{DELETED}"]
    for source in (*opened[:1], log_file):
        with suppress(OSError):
            status = os.stat(source)  # noqa: PTH116 - as above
            copy = f"{log_file}.{status.st_ino}"
            if status.st_size:
                with open(source, "rb") as original, open(copy, "xb", opener=_private) as target:  # noqa: PTH123 - bytes
                    shutil.copyfileobj(original, target)
                copies.append(copy)
    return copies


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)


def refuse_mixed(path: str | Path) -> None:
    """Reject a file whose other users have another log, and one with several names.

    Two logs end with lost tasks, a damaged file, or SIGBUS: SQLite would empty the index of the log under the open
    connections. Only Linux shows the files of other programs; those of other users stay hidden.

    Args:
        path: path of the file, before the first statement of a new connection to it.

    Raises:
        DatabaseFileReplaced: a program has a log, or a file, that was deleted or replaced.
        FileHasOtherName: a program has the file open under another name, or left a log beside another name.
    """
    file = os.path.realpath(path)
    for remaining in reversed(range(CHECKS)):
        try:
            uses = [_has_same_files(file, process) for process in _users(file)]
        except (DatabaseFileReplaced, FileHasOtherName):
            if not remaining:
                raise
            time.sleep(CHECK_PAUSE)
        else:
            break
    if (current := identity(file)) is not None:
        _OPENED[file] = current
    if (links := other_names(file)) is not None and file not in _LINKED:
        if not any(uses) and any(identity(f"{name}{LOGS[0]}") for name in links.fields["names"]):
            raise links
        _LINKED.add(file)
        log.warning("%s", links)


class _ProcessFiles(NamedTuple):
    """The files that a process has open, by name."""

    pid: int
    by_name: dict[str, Identity]


def _users(file: str) -> Iterator[_ProcessFiles]:
    """The programs that have a file or its logs open, and this one. SQLite keeps locks after its first read."""
    locked = {current for name in (file, f"{file}{LOGS[1]}") if (current := identity(name)) is not None}
    for pid in {os.getpid(), *_lock_holders(locked)}:
        yield _ProcessFiles(pid, {name: opened for name, opened, _ in _open_files(pid)})


def _has_same_files(file: str, process: _ProcessFiles) -> bool:
    """True if a program has a file open with the logs that lie beside it here; False if it does not use the file.

    Raises:
        DatabaseFileReplaced, FileHasOtherName: it has the file or one of its logs, and others beside it.
    """
    current, opened = identity(file), set(process.by_name.values())
    names = [name for name, each in process.by_name.items() if each == current]
    logs = [suffix for suffix in LOGS if identity(f"{file}{suffix}") in opened]
    old = process.by_name.get(f"{file}{DELETED}") or (_OPENED.get(file) if process.pid == os.getpid() else None)
    if current is None or not (names or logs):
        return False
    is_old = not names or old not in (None, current)
    if is_old and logs and not any(f"{file}{suffix}{DELETED}" in process.by_name for suffix in logs):
        raise FileChange(file, file, old, current, process.pid).error  # its logs lie beside the new file
    same = []
    for name, suffix in product(names, LOGS):
        for end in (suffix, f"{suffix}{DELETED}"):
            there, here = process.by_name.get(f"{name}{end}"), identity(f"{file}{suffix}")
            if there is None or there == here:
                same.append(there)
            elif end.endswith(DELETED) and is_old:
                continue  # the log of the old file
            elif end.endswith(DELETED):
                raise FileChange(file, f"{file}{suffix}", there, here, process.pid).error
            else:
                raise _open_elsewhere(file, name, process.pid)
    return any(same)


def _open_elsewhere(file: str, name: str, pid: int) -> FileHasOtherName:
    status = os.stat(file)  # noqa: PTH116 - as above
    why = f"is open under the name {name} with a log of its own, in process {pid}"
    remedy = f"Use the name {name} in all programs; a container mounts the folder of the file"
    return FileHasOtherName(path=file, inode=status.st_ino, why=why, remedy=remedy)


def other_names(file: str) -> FileHasOtherName | None:
    """Return the error of a file with several names; None for one name.

    Args:
        file: absolute path without symbolic links.
    """
    try:
        status = os.stat(file)  # noqa: PTH116 - as above
        if status.st_nlink <= 1:
            return None
        folder = Path(file).parent
        with os.scandir(folder) as entries:
            names = [entry.path for entry in entries if entry.inode() == status.st_ino and entry.path != file]
    except OSError:
        return None
    why = f"has {count_noun(status.st_nlink, 'name')} (hard links)"
    why += f", also {', '.join(sorted(names))}" if names else ""
    remedy = (
        "Stop all programs that use it, and keep one name: that beside which a -wal file lies, if there is one. Find "
        f"the others with: find {folder} -xdev -inum {status.st_ino}, also in the folders above"
    )
    return FileHasOtherName(path=file, inode=status.st_ino, why=why, remedy=remedy, names=names)


def writer_of(file: str) -> str:
    """Name the process that holds the lock of the writers of a SQLite file; empty if none does, or if it is unknown.

    Args:
        file: path of the database.
    """
    path = os.path.realpath(file)
    for name, byte in ((f"{path}{LOGS[1]}", LOG_WRITER), (path, FILE_WRITER)):
        for lock in _locks({current} if (current := identity(name)) is not None else set()):
            if lock.writes and lock.first <= byte <= lock.last:
                return f"process {lock.pid} ({_program(lock.pid)})"
    return ""


def _program(pid: int) -> str:
    """The command line of a process; of those of other users only the name of the program."""
    folder = Path(f"/proc/{pid}")
    for name in ("cmdline", "comm"):
        with suppress(OSError):
            if words := (folder / name).read_bytes().replace(b"\0", b" ").decode(errors="replace").strip():
                return mask(one_line(words, LONGEST_PROGRAM))
    return "unknown program"


class _FileLock(NamedTuple):
    """A lock of a process on bytes of a file."""

    pid: int
    writes: bool
    first: int
    last: float


def _lock_holders(files: set[Identity]) -> Iterator[int]:
    """The ids of the processes with a lock on one of the files."""
    return (lock.pid for lock in _locks(files))


def _locks(files: set[Identity]) -> Iterator[_FileLock]:
    """The locks on the files; on some file systems /proc shows another device, so that only the inode is compared."""
    inodes = {str(inode) for _, inode in files}
    with suppress(OSError):
        for line in LOCKS.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) <= LOCK_END or fields[LOCK_KIND] != "POSIX" or not fields[LOCK_PID].isdecimal():
                continue
            if fields[LOCK_FILE].rpartition(":")[2] in inodes and int(fields[LOCK_PID]):
                last = inf if fields[LOCK_END] == "EOF" else int(fields[LOCK_END])
                yield _FileLock(int(fields[LOCK_PID]), fields[LOCK_MODE] == "WRITE", int(fields[LOCK_START]), last)


def _open_files(pid: int) -> Iterator[tuple[str, Identity, str]]:
    """The files that a process has open: name, identity, and a path at which they can be read."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for descriptor in os.listdir(folder):  # noqa: PTH208 - as above
            path = f"{folder}/{descriptor}"
            with suppress(OSError):
                name = os.readlink(path)  # noqa: PTH115 - as above
                if name.startswith("/") and (opened := identity(path)) is not None:
                    yield name, opened, path


def follow_file(engine: sa.Engine) -> None:
    """Discard connections whose file was replaced: SQLite can still read and write a deleted file.

    Register it after the first statement of a connection, which opens the log.
    """
    path = file_of(engine)

    def on_checkout(_: Any, record: sa.pool.ConnectionPoolEntry, __: Any) -> None:
        change = record.info["files"].change()
        if change is None:
            return
        if change.name == path and change.current is not None:
            raise sa.exc.DisconnectionError("the file was replaced")  # the pool then opens the new one
        raise change.error

    def on_connect(_: Any, record: sa.pool.ConnectionPoolEntry) -> None:
        record.info["files"] = OpenFiles(path)

    sa.event.listen(engine, "connect", on_connect)
    sa.event.listen(engine, "checkout", on_checkout)


def check_first(engine: sa.Engine) -> None:
    """Check the file before the first statement of each connection; see `refuse_mixed`."""
    path = file_of(engine)

    def on_connect(connection: Any, _: sa.pool.ConnectionPoolEntry) -> None:
        try:
            refuse_mixed(path)
        except Exception:
            connection.close()
            raise

    sa.event.listen(engine, "connect", on_connect)


def file_of(engine: sa.Engine) -> str:
    """The absolute path of the file of an engine."""
    return str(Path(unquote((engine.url.database or "").removeprefix("file:"))).absolute())
