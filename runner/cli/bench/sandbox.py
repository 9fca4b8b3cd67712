"""The place of a measurement: a folder or schema for the bench alone, and the machine below it.

Figures without a description of the machine are meaningless.
"""

import os
import platform
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.db.transaction import Transaction
from runner.errors import InvalidSettings
from runner.settings import Settings

PREFIX = "tasktui_bench_"
"""Prefix of the schemas of benches."""


class Sandbox:
    """A temporary folder, and on PostgreSQL also a new schema."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder
        self._is_file = settings.url.file is not None
        url = replace(settings.url, database=str(folder / "bench.db")) if self._is_file else settings.url
        schema = None if self._is_file else PREFIX + secrets.token_hex(4)
        # All other settings stay: they are under test.
        self.settings = settings.model_copy(
            update={
                "url": url,
                "table_schema": schema,
                "table_prefix": "",
                "queues": (),
                "initial_delay": timedelta(0),
            }
        )

    def __str__(self) -> str:
        schema = self.settings.table_schema
        return f"schema {schema} of {self.settings.url}" if schema else f"temporary folder {self.folder}"

    @asynccontextmanager
    async def empty(self) -> AsyncIterator[Database]:
        """Create the tables for one measurement and remove them afterwards."""
        database = Database.of(self.settings)
        try:
            await upgrade(database)
            yield database
        finally:
            try:
                await self._clear(database)
            finally:
                await database.dispose()

    async def _clear(self, database: Database) -> None:
        if self._is_file:
            await database.dispose()
            for file in self.folder.glob("bench.db*"):
                file.unlink()
        else:
            await database.write(_drop)


@asynccontextmanager
async def create_sandbox(settings: Settings) -> AsyncIterator[Sandbox]:
    """Create a sandbox and remove it afterwards.

    Raises:
        InvalidSettings: the database is marked as production.
    """
    if settings.production:
        why = "the bench keeps its database as busy as it can; name another one with --url or --profile"
        raise InvalidSettings(where="production", why=why)
    folder = Path(tempfile.mkdtemp(prefix="tasktui-bench-"))
    try:
        yield Sandbox(settings, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _drop(tx: Transaction) -> None:
    schema = tx.tables.metadata.schema
    if schema is None or not schema.startswith(PREFIX):
        raise AssertionError(f"{schema} is not a schema of the bench")
    await tx.execute(sa.schema.DropSchema(schema, cascade=True, if_exists=True))


SERVER = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers", "max_wal_size")
FILE = ("journal_mode", "synchronous", "page_size")
SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}
RELEVANT = (
    *("poll_mode", "poll_interval", "claim_batch_size", "concurrency", "settle_batch_size", "settle_interval"),
    *("notify", "sqlite_poll_interval"),
)
"""Settings that affect speed: of PostgreSQL, of SQLite, and of the runner."""

MAX_LOAD = 0.5
"""The load average above which other work affects the figures."""


async def describe(database: Database, sandbox: Sandbox) -> dict[str, str]:
    """Describe the machine and the software, by topic."""
    rows = {row.name: row.value for row in sandbox.settings.describe()}
    return {
        "cpus": _cpus(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, load {_load():.1f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "database": await database.read(_server if database.dialect.is_server else _file),
        "disk": "the server's" if sandbox.settings.url.file is None else _disk(sandbox.folder),
        "packages": ", ".join(_packages(database.engine.dialect.driver)),
        "settings": ", ".join(f"{name} {rows[name]}" for name in RELEVANT),
    }


def cautions(sandbox: Sandbox) -> Iterator[str]:
    """Warnings about conditions that distort the figures."""
    if _load() > MAX_LOAD:
        yield f"This machine was busy (load {_load():.1f}): do not compare these figures with others."
    if sandbox.settings.url.file is not None and _disk(sandbox.folder).startswith(("tmpfs", "ramfs")):
        yield "The files are in memory, where a commit is free: set TMPDIR to a folder on a disk."


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
    """The type and mount point of a folder's filesystem."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    mounts = [(Path(mount_point), kind) for _, mount_point, kind, *_ in map(str.split, lines)]
    candidates = [(mount_point, kind) for mount_point, kind in mounts if folder.resolve().is_relative_to(mount_point)]
    mount_point, kind = max(candidates, key=lambda candidate: len(candidate[0].parts))
    return f"{kind} at {mount_point}"


def _packages(driver: str) -> Iterator[str]:
    for name in ("tasktui", "SQLAlchemy", driver, "APScheduler", "pydantic"):
        yield f"{name} {version(name)}{_implementation() if name == 'psycopg' else ''}"


def _implementation() -> str:
    """Which implementation psycopg uses, compiled or Python."""
    from psycopg import pq  # loads libpq, which SQLite does not need

    return f" ({pq.__impl__})"


MAX_STEP = 0.0001
"""Seconds between two values of a clock."""


def coarse_clock() -> str:
    """A warning if the clock is too coarse for latencies; empty otherwise.

    Submit and start happen in different processes. Python's monotonic clock is the same for all processes of a machine
    (documentation of `time.monotonic`), but some systems advance it in large steps.
    """
    step = time.get_clock_info("monotonic").resolution
    return f"the clock of this system advances in steps of {step * 1000:g} ms" if step > MAX_STEP else ""
