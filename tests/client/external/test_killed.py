"""Killing the application inside its transaction stores both or neither, on every kind of connection."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from runner.db.database import Database
from tests.client.external.applications import KINDS
from tests.client.external.conftest import Books, make_business
from tests.client.external.victim import POINTS
from tests.conftest import Databases
from tests.engine.harness import until
from tests.postgres.reuse import CLEANER
from tests.programs import Program

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def urls(databases: Databases, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The database URL of each kind of connection: one for all on PostgreSQL, one each on SQLite."""
    url = databases.migrated(tmp_path)
    urls = dict.fromkeys(KINDS[url.partition(":")[0]], url)
    if url.startswith("sqlite"):
        for number, kind in enumerate(urls):
            (tmp_path / str(number)).mkdir()
            urls[kind] = databases.migrated(tmp_path / str(number))
    yield urls
    databases.remove(url)


async def kill_at(point: str, urls: dict[str, str], log: Path) -> None:
    """Run an application up to a point and kill it there."""
    arguments = [word for kind, url in urls.items() for word in (url, kind)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "PG"))}
    victim = "tests.client.external.victim"
    process = Program(victim, point, *arguments, log=log, directory=PROJECT, environment=environment)
    try:
        await until(lambda: log.exists() and "here\n" in log.read_text())
    finally:
        process.kill()
        process.wait()


def alone(url: str) -> bool:
    """True once the server has closed the application's sessions."""
    others = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> %s
    """
    with psycopg.connect(url) as connection:
        (count,) = connection.execute(others, (CLEANER,)).fetchone() or (1,)
        return bool(count == 0)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_application_leaves_both_or_neither(urls: dict[str, str], point: str, tmp_path: Path) -> None:
    for url in {*urls.values()}:
        database = Database.open(url)
        await make_business(database)
        await database.dispose()
    await kill_at(point, urls, tmp_path / "log")
    for number, (kind, url) in enumerate(urls.items()):
        if url.startswith("postgresql"):
            await until(functools.partial(alone, url))
        database = Database.open(url)
        books = Books(database)
        result = (number in await books.business(), number in await books.numbers())
        await database.dispose()
        assert result == ((True, True) if point == "committed" else (False, False)), kind
