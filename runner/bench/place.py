"""Place: where the bench works, apart from everybody's tables, and empty again when it is over."""

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from runner.errors import InvalidSettings
from runner.migrations import upgrade
from runner.settings import Settings
from runner.store.database import Database
from runner.store.transaction import Transaction

NAME = "tasktui_bench_"
"""How the schemas of benches begin."""


class Place:
    """A folder, and on PostgreSQL a schema, that nobody else uses.

    Args:
        settings: say which database, and how runners are to work.
        folder: for files.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.folder = folder
        self._is_file = settings.url.kind == "sqlite"
        url = replace(settings.url, database=str(folder / "bench.db")) if self._is_file else settings.url
        schema = None if self._is_file else NAME + secrets.token_hex(4)
        # Whatever else is set is what is measured.
        self.settings = replace(
            settings, url=url, table_schema=schema, table_prefix="", queues=(), initial_delay=timedelta(0)
        )

    def __str__(self) -> str:
        schema = self.settings.table_schema
        return f"the schema {schema} in {self.settings.url}" if schema else f"the temporary folder {self.folder}"

    @asynccontextmanager
    async def empty(self) -> AsyncIterator[Database]:
        """Create the tables for one measurement, and leave nothing of them behind."""
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
async def apart(settings: Settings) -> AsyncIterator[Place]:
    """Find a place for a bench.

    Args:
        settings: the database's, and all that is measured besides.

    Raises:
        InvalidSettings: when the database is one of production.
    """
    if settings.production:
        why = "the bench keeps its database as busy as it can; name another one with --url or --profile"
        raise InvalidSettings(where="production", why=why)
    folder = Path(tempfile.mkdtemp(prefix="tasktui-bench-"))
    try:
        yield Place(settings, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _drop(tx: Transaction) -> None:
    schema = tx.tables.metadata.schema
    if schema is None or not schema.startswith(NAME):
        raise AssertionError(f"{schema} is no schema of a bench")
    await tx.execute(sa.schema.DropSchema(schema, cascade=True, if_exists=True))
