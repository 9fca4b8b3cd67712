"""Commands on a server that hangs end within their limits, with the fact."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from runner.cli.exit_codes import Exit
from runner.db.database import Database
from tests.cli.conftest import Call
from tests.postgres import Server, create_database, find_programs

BOUND = 30.0
"""Seconds in which a command ends: one connection attempt, the start of a process, and a busy machine."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if (programs := find_programs()) is None:
        pytest.skip("needs the programs of a server")
    with Server(programs) as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    url = create_database(server)

    async def migrate() -> None:
        database = Database.open(url)
        await database.migrate()
        await database.dispose()

    asyncio.run(migrate())
    yield url
    server.go_on()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("tasks",),
        ("submit", "a.b"),
        ("retry", "state:dead", "--yes", "1"),
        ("migrate", "--check"),
        ("check",),
        ("stats",),
    ],
    ids=lambda words: words[0],
)
def test_a_command_ends_with_the_fact(call: Call, server: Server, url: str, words: tuple[str, ...]) -> None:
    server.hang()
    started = time.monotonic()
    result = call(*words, "--url", url)
    assert time.monotonic() - started < BOUND
    assert result.code == Exit.DATABASE
    assert f"no answer for 5.0 s from 127.0.0.1:{server.port} while connecting" in result.out + result.err
