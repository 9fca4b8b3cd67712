"""A harness on each kind of database, and a server that a test may stop."""

from collections.abc import Awaitable, Callable, Iterator

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.handlers.hooks import LIFE_CYCLE
from tests.engine.harness import Harness
from tests.postgres import Server, find_programs

PAY = sa.text("INSERT INTO payments (task) VALUES (:task)")

Payments = Callable[[], Awaitable[int]]


@pytest.fixture
def harness(database: Database, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)


@pytest.fixture
def own_hooks(own_handlers: None) -> Iterator[None]:
    """Forget the functions that a test registers for the life of runners and attempts, and its resources."""
    yield
    LIFE_CYCLE.clear()


@pytest.fixture
async def payments(harness: Harness) -> Payments:
    """A table of the application, and how many rows it has."""
    await harness.change(sa.text("CREATE TABLE payments (task INTEGER NOT NULL)"))

    async def count() -> int:
        return int((await harness.rows(sa.text("SELECT count(*) FROM payments")))[0][0])

    return count


@pytest.fixture
def server() -> Iterator[Server]:
    programs = find_programs()
    if programs is None:
        pytest.skip("needs a server of its own")
    with Server(programs) as server:
        yield server
