"""A workshop on each kind of database."""

import pytest

from runner.db.database import Database
from tests.engine.workshop import Workshop


@pytest.fixture
def workshop(database: Database, migrated_url: str) -> Workshop:
    return Workshop(database, migrated_url)
