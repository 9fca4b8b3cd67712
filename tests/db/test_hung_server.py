"""A server that hangs: its kernel accepts connections and acknowledges statements, and no answer comes."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from runner.db import server_connection, server_watch
from runner.db.connector import Connector
from runner.db.database import Database
from runner.db.dialects import DIALECTS
from runner.db.needs import Needs, needs
from runner.db.server_watch import AnswerLimits, answer_within
from runner.db.statement import StatementFrame
from runner.db.transaction import Transaction, clock, require_answer
from runner.errors import DatabaseUnavailable
from runner.model.task import NewTask
from runner.settings import Settings
from runner.store.submit import single_insert, submit_with_result
from runner.urls import parse_url
from tests.chaos.proxy import Proxy
from tests.databases import migrate
from tests.postgres import Server, create_database, find_programs

LIMITS = AnswerLimits(1.0, 1.0, 1.0)
LONG = server_watch.LONGEST
BOUND = 10.0
"""Seconds in which each call must end on a busy machine; without a limit of its own, a statement has 15."""

LOCK_BOUND = 30.0
"""Seconds in which a statement that waits for a lock must end."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own, to hang."""
    if (programs := find_programs()) is None:
        pytest.skip("needs the programs of a server")
    with Server(programs, wal_level="replica") as server:
        yield server


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    url = create_database(server)
    migrate(url)
    yield url
    server.go_on()


async def ends(call: Awaitable[object], *words: str, bound: float = BOUND) -> None:
    """A call fails within its bound, and its message has the words."""
    started = time.monotonic()
    with pytest.raises(DatabaseUnavailable) as failure:
        await call
    assert time.monotonic() - started < bound
    for word in words:
        assert word in str(failure.value)


async def test_a_single_statement_ends_within_its_limit(server: Server, url: str) -> None:
    database = Database.open(url, connector=Connector(LIMITS))
    await database.read(require_answer)
    server.hang()
    await ends(database.read(require_answer), "no answer for ", f"from 127.0.0.1:{server.port} (pid ")
    await ends(database.read(require_answer), "no answer for 1.0 s from 127.0.0.1:", "while connecting")
    started = time.monotonic()
    await database.dispose()
    assert time.monotonic() - started < BOUND


@pytest.mark.representatives(2)
@pytest.mark.parametrize("way", ["read", "write"])
@pytest.mark.parametrize(("declared", "limit"), [*((each, 1.0) for each in Needs), (Needs.PREPARED, 0.5)])
async def test_each_kind_of_transaction_ends_within_its_limit(
    server: Server, url: str, way: str, declared: Needs, limit: float
) -> None:
    @needs(declared)
    async def ask(tx: Transaction) -> None:
        await require_answer(tx)

    database = Database.open(url, connector=Connector(LIMITS._replace(statement=LONG, transaction=LONG)))
    call = getattr(database, way)
    await call(ask)
    server.hang()
    with answer_within(limit):
        await ends(call(ask), "no answer for ")
    await database.dispose()


async def test_a_query_with_a_deadline_ends_soon_after_it(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_watch, "ANSWER_MARGIN", 0.2)
    database = Database.open(url)

    async def query() -> None:
        async with database.reading(0.5) as tx:
            server.hang()
            await clock(tx)

    await ends(query(), "no answer for ")
    await database.dispose()


async def test_submits_end_within_their_limit(server: Server, url: str) -> None:
    database = Database.open(url, connector=Connector(LIMITS))
    task, frame = NewTask("work"), StatementFrame.of(Settings(url=parse_url(url)), DIALECTS["postgresql"].by_position)
    insert = single_insert(frame, task, True)
    assert insert is not None
    loops, threads = database.loops, database.threads
    assert loops is not None
    in_thread = partial(threads.insert, insert, "{}")
    await loops.insert(insert, "{}")
    await asyncio.to_thread(in_thread)
    server.hang()
    failures = [ends(loops.insert(insert, "{}"), "no answer"), ends(asyncio.to_thread(in_thread), "no answer")]
    await asyncio.gather(*failures)
    await asyncio.gather(
        ends(loops.insert(insert, "{}"), "connecting"), ends(asyncio.to_thread(in_thread), "connecting")
    )
    started = time.monotonic()
    await database.dispose()
    assert time.monotonic() - started < BOUND


async def test_a_statement_without_a_limit_goes_on_while_its_server_works(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement of a user, a migration: the server is asked for the state of its process."""
    monkeypatch.setattr(server_watch, "QUESTION_AFTER", 0.1)
    database = Database.open(url, connector=Connector(LIMITS._replace(transaction=None)))
    questions: list[str | None] = []
    ask = server_connection._ask

    def recorded(*values: Any) -> str | None:
        questions.append(ask(*values))
        return questions[-1]

    monkeypatch.setattr(server_connection, "_ask", recorded)

    async def sleep(tx: Transaction, seconds: float) -> None:
        await tx.execute(sa.select(sa.func.pg_sleep(seconds)))

    await database.write(sleep, 2.5)
    assert None in questions  # one that comes after the end of the statement has another answer, without effect
    slow = asyncio.ensure_future(ends(database.write(sleep, 60.0), "no answer for ", " while connecting"))
    asked = len(questions)
    while len(questions) == asked:
        await asyncio.sleep(0.01)
    server.hang()
    await slow
    await database.dispose()


async def test_a_connection_whose_statement_was_lost_is_dropped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for a statement, and the program for an answer."""
    monkeypatch.setattr(server_watch, "QUESTION_AFTER", 0.1)
    with Proxy(url, 1) as proxy:
        database = Database.open(proxy.url, connector=Connector(LIMITS._replace(transaction=None)))

        async def verb(tx: Transaction) -> None:
            await clock(tx)
            proxy.hold_all()
            await clock(tx)

        await ends(database.write(verb), "no answer for ", "the server waits for the next statement")
        await database.dispose()


async def test_a_statement_that_waits_for_a_lock_is_cancelled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server works, so the outcome is known and no process of it waits on."""
    monkeypatch.setattr(server_watch, "CANCEL_AT", 0.05)  # the rest is for the look at the lock, and for the cancel
    database = Database.open(url, connector=Connector(AnswerLimits(LOCK_BOUND, LOCK_BOUND, LOCK_BOUND)))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE task")
        for _ in range(2):
            await ends(
                database.write(submit_with_result, [NewTask("work")]),
                "no answer for ",
                "cancelled a statement",
                "; table task is locked, held by process ",
                f"{other.info.backend_pid} (unnamed program, user postgres, idle in transaction, ",
                bound=LOCK_BOUND,
            )
        waiting = other.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone()
        assert waiting == (0,)
    await database.dispose()


async def test_a_statement_that_waits_for_no_lock_is_cancelled(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_watch, "CANCEL_AT", 0.05)
    database = Database.open(url, connector=Connector(AnswerLimits(LOCK_BOUND, LOCK_BOUND, LOCK_BOUND)))

    async def sleep(tx: Transaction) -> None:
        await tx.execute(sa.text("SELECT pg_sleep(60)"))

    words = "cancelled a statement", "; it waited for no lock", "has been open for long"
    await ends(database.write(sleep), *words, bound=LOCK_BOUND)

    async def lock(tx: Transaction) -> None:
        await tx.execute(sa.text("SELECT pg_advisory_xact_lock(7)"))

    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        await ends(database.write(lock), "probably another transaction holds a lock", bound=LOCK_BOUND)
    await database.dispose()


async def test_an_answer_that_a_busy_event_loop_reads_late_is_no_outage(url: str) -> None:
    database = Database.open(url, connector=Connector(LIMITS))
    await database.read(require_answer)
    statement = asyncio.ensure_future(database.read(require_answer))
    while not any(connection.since for connection in list(server_watch.WATCH._connections)):
        await asyncio.sleep(0)
    time.sleep(2.5)
    await statement
    await database.dispose()


async def test_a_socket_with_the_number_of_a_closed_one_is_not_shut_down(url: str) -> None:
    connection = Connector(LIMITS).connect(conninfo_to_dict(url))
    own, other = socket.socketpair()
    with own, other:
        connection.inode = os.fstat(connection.descriptor).st_ino + 1  # the number means another file now
        assert not server_watch._shut_down(connection, "fault")
        connection.execute("SELECT 1")
    connection.close()
    assert not server_watch._shut_down(connection, "fault")


@pytest.mark.slow
async def test_idle_connections_to_a_server_that_accepts_no_other_are_dropped(server: Server, url: str) -> None:
    connector = Connector(LIMITS)
    idle = connector.connect(conninfo_to_dict(url))
    server.hang()
    with pytest.raises(psycopg.OperationalError, match=r"no answer for 1\.0 s"):
        await connector.connect_async(conninfo_to_dict(url))
    with pytest.raises(psycopg.OperationalError, match=r"no answer for 1.0 s from .* while connecting"):
        idle.execute("SELECT 1")
    idle.close()
