"""Commands on a server that hangs end within their limits, with the fact."""

import time
from collections.abc import Iterator

import pytest

from runner.cli.exit_codes import Exit
from tests.cli.conftest import Call
from tests.databases import migrate
from tests.postgres import Server, create_database

BOUND = 30.0
"""Seconds in which a command ends: one connection attempt, the start of a process, and a busy machine."""


@pytest.fixture
def url(own_server: Server) -> Iterator[str]:
    url = create_database(own_server)
    migrate(url)
    yield url
    own_server.go_on()


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
def test_a_command_ends_with_the_fact(call: Call, own_server: Server, url: str, words: tuple[str, ...]) -> None:
    own_server.hang()
    started = time.monotonic()
    result = call(*words, "--url", url)
    assert time.monotonic() - started < BOUND
    assert result.code == Exit.DATABASE
    assert f"no answer for 5.0 s from 127.0.0.1:{own_server.port} while connecting" in result.out + result.err
