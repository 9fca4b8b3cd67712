"""archive options: the folder of a command, and its tasks in a temporary database that queries can read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from runner.db.database import Database
from runner.db.migrations.apply import upgrade
from runner.db.transaction import Transaction
from runner.errors import TaskNotFound
from runner.filter.parse import Filter
from runner.queries.task_list.search import TaskPage, find, page
from runner.store.archive.folder import Archive
from runner.store.task_records import Record, write_records


@asynccontextmanager
async def temporary_database() -> AsyncIterator[Database]:
    """A SQLite file with our tables, removed at the end."""
    with TemporaryDirectory(prefix="tasktui-archive-") as folder:
        database = Database.open(f"sqlite:///{folder}/archive.db", synchronous="NORMAL")
        try:
            await upgrade(database)
            yield database
        finally:
            await database.dispose()


async def add_finished(tx: Transaction, records: list[Record]) -> None:
    """Insert archived tasks into the history."""
    await write_records(tx, tx.tables.history, records)


@asynccontextmanager
async def archived_task(folder: Path, id: int) -> AsyncIterator[Database]:
    """A database with one archived task.

    Raises:
        ArchiveFailed: the folder is no archive, or a file of it was changed.
        TaskNotFound: the archive has no task with this id.
    """
    record = Archive(folder).find(id)
    if record is None:
        raise TaskNotFound(id=id)
    async with temporary_database() as database:
        await database.write(add_finished, [record])
        yield database


async def archived_page(folder: Path, task_filter: Filter, limit: int) -> TaskPage:
    """The tasks of an archive that match a filter; files are read from the last one until there are enough."""
    async with temporary_database() as database:
        for records in Archive(folder).newest_first():
            await database.write(add_finished, records)
            result = await database.read(page, task_filter, None, limit)
            if len(result.tasks) == limit:
                return result
        return await database.read(page, task_filter, None, limit)


async def selected_ids(records: list[Record], targets: list[int] | Filter) -> set[int]:
    """The ids of some archived tasks that are named, or match a filter."""
    if isinstance(targets, list):
        return {record["id"] for record in records}.intersection(targets)
    async with temporary_database() as database:
        await database.write(add_finished, records)
        return set((await database.read(find, targets, len(records))).ids)
