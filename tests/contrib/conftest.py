"""A harness on each kind of database, and no registered functions after a test."""

from collections.abc import Iterator

import pytest

from runner.db.database import Database
from runner.handlers.hooks import LIFE_CYCLE
from tests.engine.harness import Harness


@pytest.fixture
def harness(database: Database, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)


@pytest.fixture(autouse=True)
def _registrations() -> Iterator[None]:
    before = {event: list(callbacks) for event, callbacks in LIFE_CYCLE.callbacks.items()}
    yield
    LIFE_CYCLE.callbacks = before
