"""A harness on each kind of database, and a server that a test may stop."""

from collections.abc import Iterator

import pytest

from runner.db.database import Database
from tests.engine.harness import Harness
from tests.postgres import Server, find_programs


@pytest.fixture
def harness(database: Database, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)


@pytest.fixture
def server() -> Iterator[Server]:
    programs = find_programs()
    if programs is None:
        pytest.skip("needs a server of its own")
    with Server(programs) as server:
        yield server
