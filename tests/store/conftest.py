"""What the store's tests share: a second program, and runners."""

from collections.abc import AsyncIterator

import pytest

from runner.store.database import Database
from tests.store.runners import Runner

ON_POSTGRESQL = pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
"""For what only PostgreSQL can do."""


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
