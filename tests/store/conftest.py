"""What the store's tests share: databases that are used again, a second program, and runners."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from runner.schema import tables
from runner.store.database import Database
from tests.conftest import Databases
from tests.store.runners import Runner

ON_POSTGRESQL = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
"""For what only PostgreSQL can do."""


@pytest.fixture(scope="session")
def spare() -> dict[Databases, str]:
    """Databases that were emptied, to be used by the next test: making one takes longer than most tests."""
    return {}


@pytest.fixture
def own_database() -> None:
    """For a test that changes more than rows: no other test gets its database, neither before nor after."""


@pytest.fixture
def migrated_url(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path, spare: dict[Databases, str]
) -> Iterator[str]:
    """The URL of a database with our tables, all empty."""
    alone = "own_database" in request.fixturenames
    kept = None if alone else spare.pop(databases, None)
    url = kept or databases.migrated(tmp_path)
    yield url
    if not alone and url.startswith("postgresql") and databases not in spare:
        _empty(url)
        spare[databases] = url
    else:
        databases.remove(url)


@pytest.fixture
async def rival(migrated_url: str) -> AsyncIterator[Database]:
    """The same database as `database`, as another program sees it."""
    opened = Database.open(migrated_url)
    yield opened
    await opened.dispose()


@pytest.fixture
async def runner(database: Database) -> Runner:
    """A runner that knows the handler `work`."""
    return await Runner.enter(database)


@pytest.fixture
async def other(rival: Database) -> Runner:
    """Another runner, in another program."""
    return await Runner.enter(rival, host="there")


def _empty(url: str) -> None:
    deletes = "; ".join(f"DELETE FROM {table.name}" for table in tables().metadata.sorted_tables)
    with psycopg.connect(url, autocommit=True) as connection:
        # A test that failed may have left somebody behind who holds a lock.
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) {others}")
        # Many times faster than TRUNCATE, which makes new files.
        connection.execute(deletes)
        connection.execute("SELECT setval(oid, 1, false) FROM pg_class WHERE relkind = 'S'")
