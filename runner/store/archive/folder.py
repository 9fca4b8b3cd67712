"""archive folder: gzipped JSON lines by day, and one manifest that lists the files with their checksums.

A file is complete before the manifest lists it, and listed before a task is deleted. A file that is not listed comes
from a process that was killed; the next one removes it.
"""

import errno
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.errors import ArchiveFailed, ArchiveInUse
from runner.store.task_records import Record, line_of

NAME_A_FOLDER = "name a folder that runner prune --archive has filled"

MANIFEST, LOCK, PART = "manifest.json", ".lock", ".part"
FORMAT = 1
SUFFIX = ".jsonl.gz"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive.

    Args:
        name: its path in the folder: day=2026-11-27/000001.jsonl.gz.
        tasks: the number of its lines.
        first: the lowest id.
        last: the highest id.
        sha256: the checksum of the file.
        pruned: True once its tasks are deleted from the database.
    """

    name: str
    tasks: int
    first: int
    last: int
    sha256: str
    pruned: bool = False


@dataclass(slots=True)
class Manifest:
    """The content of manifest.json.

    Args:
        database: the id of the database whose tasks the folder holds.
        files: the files, the oldest first.
        next: the number of the next file.
    """

    database: str
    files: list[ArchiveFile] = field(default_factory=list)
    next: int = 1


class Archive:
    """An archive in a folder.

    Args:
        database: the id of the database; None to accept any.

    Raises:
        ArchiveFailed: the folder cannot be read, has no manifest, or has that of another database.
    """

    def __init__(self, folder: Path, database: str | None = None) -> None:
        self.folder = folder
        self.manifest = self._load()
        if database is not None and self.manifest.database != database:
            why = f"its manifest is of database {self.manifest.database}, and this is {database}; choose another folder"
            raise ArchiveFailed(path=folder, why=why)

    @classmethod
    def check(cls, folder: Path, database: str) -> None:
        """Check that `writing` could open or create an archive, without a change.

        Raises:
            ArchiveFailed: the folder cannot be written, or is the archive of another database.
        """
        with _failing(folder):
            path = next(path for path in (folder, *folder.absolute().parents) if path.exists())
            if not path.is_dir():
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if not os.access(path, os.W_OK | os.X_OK):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if (folder / MANIFEST).exists():
            cls(folder, database)
        else:
            _refuse_unlisted(folder)

    @classmethod
    @contextmanager
    def writing(cls, folder: Path, database: str) -> Iterator["Archive"]:
        """Open an archive for changes, and create it if there is none. One process at a time may do so.

        Raises:
            ArchiveInUse: another process writes to it.
            ArchiveFailed: the folder cannot be written, or is the archive of another database.
        """
        import fcntl  # Windows has no such locks

        with _failing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
                raise ArchiveInUse(path=folder, pid=holder or "unknown") from None
            with _failing(folder):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                if not (folder / MANIFEST).exists():
                    _refuse_unlisted(folder)
                    _write(folder / MANIFEST, _encoded(Manifest(database)))
            archive = cls(folder, database)
            archive.remove_unlisted()
            yield archive
        finally:
            os.close(descriptor)

    def _load(self) -> Manifest:
        path = self.folder / MANIFEST
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise ArchiveFailed(path=path, why=f"it has format {content['format']!r}; this release reads {FORMAT}")
            files = [ArchiveFile(**each) for each in content["files"]]
            return Manifest(str(content["database"]), files, int(content["next"]))
        except FileNotFoundError:
            raise ArchiveFailed(path=self.folder, why=f"it has no {MANIFEST}; {NAME_A_FOLDER}") from None
        except OSError as error:
            raise ArchiveFailed(path=self.folder, why=f"{_fact(error)}; {NAME_A_FOLDER}") from None
        except KeyError as error:
            raise ArchiveFailed(path=path, why=f"it has no {error}, so another program wrote it") from None
        except (ValueError, TypeError) as error:
            raise ArchiveFailed(path=path, why=f"it is not a manifest: {error}") from None

    def _store(self) -> None:
        with _failing(self.folder):
            _write(self.folder / MANIFEST, _encoded(self.manifest))

    def remove_unlisted(self) -> None:
        """Remove what a process left that was killed."""
        listed = {file.name for file in self.manifest.files}
        with _failing(self.folder):
            for path in [*self.folder.glob(f"*/*{SUFFIX}"), *self.folder.glob(f"**/*{PART}")]:
                if str(path.relative_to(self.folder)) not in listed:
                    path.unlink()

    def add(self, day: str, records: Sequence[Record]) -> ArchiveFile:
        """Write a file, verify it and list it.

        Args:
            day: the day of the tasks, 2026-11-27.
        """
        file = self._written(day, records)
        self.manifest.files.append(file)
        self._store()
        return file

    def _written(self, day: str, records: Sequence[Record]) -> ArchiveFile:
        name = f"day={day}/{self.manifest.next:06}{SUFFIX}"
        text = "".join(f"{line_of(record)}\n" for record in records)
        content = gzip.compress(text.encode(errors="surrogatepass"), 6, mtime=0)
        ids = [record["id"] for record in records]
        file = ArchiveFile(name, len(records), min(ids), max(ids), hashlib.sha256(content).hexdigest())
        with _failing(self.folder):
            (self.folder / name).parent.mkdir(exist_ok=True)
            _write(self.folder / name, content)
            _sync(self.folder)
        self.manifest.next += 1
        self.read(file)
        return file

    def mark_pruned(self, file: ArchiveFile) -> None:
        """Record that the tasks of a file are deleted from the database."""
        self.manifest.files[self.manifest.files.index(file)] = replace(file, pruned=True)
        self._store()

    def rewrite(self, file: ArchiveFile, records: Sequence[Record]) -> None:
        """Replace a file by one with other records of its tasks, and remove it."""
        day = file.name.partition("/")[0].removeprefix("day=")
        new = replace(self._written(day, records), pruned=file.pruned)
        self.manifest.files[self.manifest.files.index(file)] = new
        self._store()
        with _failing(self.folder):
            (self.folder / file.name).unlink()

    def read(self, file: ArchiveFile) -> list[Record]:
        """Read a file, after a comparison with its checksum.

        Raises:
            ArchiveFailed: it is missing, or was changed.
        """
        path = self.folder / file.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ArchiveFailed(path=path, why=_fact(error)) from None
        if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
            why = f"its sha256 is {found[:12]}, and {MANIFEST} has {file.sha256[:12]}: the file was changed"
            raise ArchiveFailed(path=path, why=f"{why}; restore it from a backup")
        lines = gzip.decompress(content).decode(errors="surrogatepass").removesuffix("\n").split("\n")
        if len(lines) != file.tasks:
            raise ArchiveFailed(path=path, why=f"it has {len(lines)} lines, and {MANIFEST} has {file.tasks}")
        return [json.loads(line) for line in lines]

    def newest_first(self) -> Iterator[list[Record]]:
        """Read the files, the last one first; each task once, as it was archived last."""
        known = set[int]()
        for file in reversed(self.manifest.files):
            records = [record for record in self.read(file) if record["id"] not in known]
            known.update(record["id"] for record in records)
            yield records

    def find(self, id: int) -> Record | None:
        """Find a task as it was archived last; only files with its id in their range are read."""
        for file in reversed(self.manifest.files):
            if file.first <= id <= file.last:
                for record in self.read(file):
                    if record["id"] == id:
                        return record
        return None


def _refuse_unlisted(folder: Path) -> None:
    if any(folder.glob(f"*/*{SUFFIX}")):
        why = f"it has files, but no {MANIFEST}; restore that, or choose another folder"
        raise ArchiveFailed(path=folder, why=why)


def _encoded(manifest: Manifest) -> bytes:
    content: dict[str, Any] = {"format": FORMAT, "database": manifest.database, "next": manifest.next}
    return json.dumps({**content, "files": [asdict(file) for file in manifest.files]}, indent=1).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file that is complete or absent, also after a loss of power."""
    part = path.with_name(path.name + PART)
    try:
        with part.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _failing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        rest = "tasks that are not in the archive are still in the database; mend it, or name another folder"
        why = f"{_fact(error)}; {rest}"
        raise ArchiveFailed(path=error.filename or folder, why=why) from None


def _fact(error: OSError) -> str:
    return f"{error.strerror} (errno {error.errno})"
