"""The sandbox: a folder or schema for the bench alone, emptied after each measurement."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
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
    """A temporary folder, and on PostgreSQL also a new schema.

    Args:
        settings: the settings, with the database.
        folder: folder for files.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder
        self._is_file = settings.url.kind == "sqlite"
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

    Args:
        settings: the settings, with the database.

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
