"""Real processes on each kind of database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.deployment import Deployment
from tests.conftest import NO_POSTGRES
from tests.postgres import Server, create_database, find_programs

Report = Callable[[str, object], None]


@pytest.fixture
def deployment(migrated_url: str, tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(migrated_url, tmp_path) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def crashing_server() -> Iterator[Server]:
    """A PostgreSQL that tests may kill."""
    if (programs := find_programs()) is None:
        pytest.skip(NO_POSTGRES)
    with Server(programs) as server:
        yield server


@pytest.fixture
def crashing_url(crashing_server: Server) -> str:
    """A database without tables on a server that tests may kill."""
    return create_database(crashing_server)


@pytest.fixture
def report(record_property: Report, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Report:
    """Print a figure for any test result; it is not asserted."""

    def write(name: str, value: object) -> None:
        record_property(name, value)
        with capsys.disabled():
            print(f"\n{request.node.name}: {name} {value}", end="")

    return write
