"""The application is killed in the middle of its transactions: both or neither, on every kind of connection."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from runner.store.database import Database
from tests.borrowed.applications import KINDS
from tests.borrowed.conftest import Books, make_business
from tests.borrowed.victim import POINTS
from tests.conftest import Databases
from tests.engine.workshop import until

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def places(databases: Databases, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A database for each kind of connection; PostgreSQL serves them all with one, SQLite writes one at a time."""
    url = databases.migrated(tmp_path)
    places = dict.fromkeys(KINDS[url.partition(":")[0]], url)
    if url.startswith("sqlite"):
        for number, kind in enumerate(places):
            (tmp_path / str(number)).mkdir()
            places[kind] = databases.migrated(tmp_path / str(number))
    yield places
    databases.remove(url)


def killed(point: str, places: dict[str, str]) -> None:
    """Run an application up to a point, and kill it there."""
    arguments = [word for kind, url in places.items() for word in (url, kind)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "PG"))}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.borrowed.victim", point, *arguments],
        cwd=PROJECT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.kill()


def alone(url: str) -> bool:
    """Whether the server has seen that the application is gone."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(url) as connection:
        (count,) = connection.execute(others).fetchone() or (1,)
        return bool(count == 0)


@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_application_leaves_both_or_neither(places: dict[str, str], point: str) -> None:
    for url in {*places.values()}:
        database = Database.open(url)
        await make_business(database)
        await database.dispose()
    killed(point, places)
    for number, (kind, url) in enumerate(places.items()):
        if url.startswith("postgresql"):
            await until(functools.partial(alone, url))
        database = Database.open(url)
        books = Books(database)
        found = (number in await books.business(), number in await books.numbers())
        await database.dispose()
        assert found == ((True, True) if point == "committed" else (False, False)), kind
