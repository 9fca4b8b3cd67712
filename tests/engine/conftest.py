"""A harness on each kind of database."""

import pytest

from runner.db.database import Database
from tests.engine.harness import Harness


@pytest.fixture
def harness(database: Database, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)
