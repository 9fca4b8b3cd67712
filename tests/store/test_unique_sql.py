"""Unique keys with the documented SQL statements, as any language can execute them."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from runner.db.database import Database
from runner.model.task import SubmitResult
from runner.operations.results import Actor, Target
from runner.operations.terminate import terminate
from tests.store.table import count, live
from tests.store.unique_tasks import key_row, once, put

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


def execute(url: str) -> None:
    """Execute the documented statements that take a key."""
    section = PAGE.read_text().partition("\n## Unique keys\n")[2].partition("\n## ")[0]
    of_psql, of_sqlite = re.findall(r"^ *```sql\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as shell:
            shell.executescript(of_sqlite)
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(of_psql.encode())


async def test_the_documented_statements_take_a_key_once(database: Database, migrated_url: str) -> None:
    await asyncio.gather(*(asyncio.to_thread(execute, migrated_url) for _ in range(8)))
    row = await key_row(database, "user-7")
    assert await count(database, database.tables.task) == 1
    assert await live(database, row.task_id)
    ours = await put(database, once("user-7", "mail.welcome"))
    assert ours == SubmitResult([row.task_id], frozenset({0}))

    await database.write(terminate, [Target(row.task_id)], Actor("ana", "desk"))
    execute(migrated_url)
    assert (await key_row(database, "user-7")).task_id > row.task_id


async def test_the_documented_statements_leave_a_key_to_its_holder(database: Database, migrated_url: str) -> None:
    ours = await put(database, once("user-7", "mail.welcome"))
    execute(migrated_url)
    assert (await key_row(database, "user-7")).task_id == ours.ids[0]
    assert await count(database, database.tables.task) == 1
