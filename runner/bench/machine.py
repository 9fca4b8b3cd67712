"""Machine: what a figure was measured on; without it a figure says nothing."""

import os
import platform
import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa

from runner.bench.place import Place
from runner.store.database import Database
from runner.store.transaction import Transaction

PACKAGES = {
    "postgresql": ("tasktui", "SQLAlchemy", "psycopg", "APScheduler", "pydantic"),
    "sqlite": ("tasktui", "SQLAlchemy", "aiosqlite", "APScheduler", "pydantic"),
}
SERVER = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")
FILE = ("journal_mode", "synchronous", "page_size")
SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
MATTERS = ("mode", "every", "batch", "slots", "flush_size", "flush_every", "notify", "watch_every")
"""What decides about speed: of PostgreSQL, of SQLite, and of our own settings."""

BUSY = 0.5
"""The load above which others had a part in the figures."""


async def describe(database: Database, place: Place) -> dict[str, str]:
    """Tell what is measured on, topic by topic.

    Args:
        database: with its tables.
        place: where it is.
    """
    rows = {row.name: row.value for row in place.settings.describe()}
    return {
        "cpus": _cpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, load {_load():.1f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "database": await database.read(_server if database.dialect.isolates_rows else _file),
        "disk": _disk(place.folder) if place.settings.url.kind == "sqlite" else "the server's",
        "packages": ", ".join(_packages(database.dialect.name)),
        "settings": ", ".join(f"{name} {rows[name]}" for name in MATTERS),
    }


def cautions(place: Place) -> Iterator[str]:
    """What makes the figures worth less."""
    if _load() > BUSY:
        yield f"This machine had other work to do (load {_load():.1f}): compare nothing with these figures."
    if place.settings.url.kind == "sqlite" and _disk(place.folder).startswith(("tmpfs", "ramfs")):
        yield "The files are in memory, where a commit costs nothing: set TMPDIR to a folder on a disk."


def _cpus() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} usable of {os.cpu_count()}, {_model()}"


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or "unknown"


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


async def _server(tx: Transaction) -> str:
    values = [f"{name} {await tx.scalar(sa.select(sa.func.current_setting(name)))}" for name in SERVER]
    release = await tx.scalar(sa.select(sa.func.current_setting("server_version")))
    return ", ".join([f"PostgreSQL {release}", *values])


async def _file(tx: Transaction) -> str:
    values = {name: await tx.scalar(sa.text(f"PRAGMA {name}")) for name in FILE}
    values["synchronous"] = SYNCHRONOUS.get(values["synchronous"], values["synchronous"])
    return ", ".join([f"SQLite {sqlite3.sqlite_version}", *(f"{name} {value}" for name, value in values.items())])


def _disk(folder: Path) -> str:
    """The kind of filesystem that a folder is on, and where that is mounted."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    mounts = [(Path(place), kind) for _, place, kind, *_ in map(str.split, lines)]
    above = [(place, kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    place, kind = max(above, key=lambda mount: len(mount[0].parts))
    return f"{kind} at {place}"


def _packages(dialect: str) -> Iterator[str]:
    for name in PACKAGES[dialect]:
        yield f"{name} {version(name)}{_way() if name == 'psycopg' else ''}"


def _way() -> str:
    """Whether psycopg's compiled half is at work."""
    from psycopg import pq  # loads libpq, which SQLite does without

    return f" ({pq.__impl__})"
