"""A guest in somebody's transaction: it brings everything it can, and leaves nothing that was not asked for."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from runner import TaskHandler, connect
from runner.errors import CommitsByItself, DuplicateTask
from runner.store.database import Database
from runner.urls import parse_url
from tests.borrowed.applications import KINDS, Application, done, with_driver
from tests.borrowed.conftest import EACH_KIND, EACH_WAY, ON_POSTGRESQL, Books
from tests.store.test_session_state import KEPT

Send = TaskHandler[[int], Any, Any]

LATER = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@EACH_KIND
async def test_every_option_arrives(application: Application, database: Database, books: Books, send: Send) -> None:
    call = send.options(
        tx=application.tx, run_at=LATER, priority=9, key="ö'%s", queue="$1", max_attempts=2, retry="30s",
        timeout="1m", tags=["red"],
    )  # fmt: skip
    ticket = await application.submit(call, 7)
    await application.commit()
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(tx.tables.task))
    assert (row.id, row.payload, row.run_at, row.priority) == (ticket, '{"number":7}', LATER, 9)
    assert (row.key, row.queue, row.max_attempts, row.retry) == ("ö'%s", "$1", 2, "30s")
    assert (row.timeout, row.tags) == (60.0, '["red"]')


@EACH_KIND
async def test_many_are_submitted_in_their_order(
    application: Application, books: Books, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.submit.CHUNK", 20)
    calls = [{"number": number} for number in range(50)]
    call = send.options(tx=application.tx, delay="1h")
    tickets = await done(call.submit_many_async(calls) if application.awaited else call.submit_many(calls))
    assert await books.tasks() == []
    await application.commit()
    assert await books.tasks() == tickets == sorted(tickets)


@EACH_KIND
async def test_a_duplicate_does_not_end_the_transaction(
    application: Application, database: Database, books: Books, send: Send
) -> None:
    once = send.options(tx=application.tx, unique_key="k", unique="forever", delay="1h")
    again = send.options(tx=application.tx, unique_key="k", unique="forever", run_at=LATER, on_duplicate="replace")
    refused = send.options(tx=application.tx, unique_key="k", unique="forever", on_duplicate="error")
    first = await application.submit(once, 1)
    assert await application.submit(once, 2) == first
    assert (await application.submit(again, 3)).duplicate
    with pytest.raises(DuplicateTask):
        await application.submit(refused, 4)
    await application.execute("INSERT INTO business VALUES (1)")
    await application.commit()
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(tx.tables.task))
    assert (row.id, row.payload, row.run_at) == (first, '{"number":3}', LATER)
    assert await books.business() == [1]


@EACH_KIND
async def test_a_task_waits_for_another_of_the_same_transaction(
    application: Application, database: Database, books: Books, send: Send
) -> None:
    parent = await application.submit(send, 1)
    child = await application.submit(send.options(tx=application.tx, after=[parent]), 2)
    other = await application.submit(send.options(tx=application.tx, after=[("test.send", "order-17")]), 3)
    await application.submit(send.options(tx=application.tx, key="order-17"), 4)
    await application.commit()
    async with database.reading() as tx:
        blocked = sa.select(tx.tables.task.c.id).where(tx.tables.task.c.state == "blocked")
        assert sorted(row[0] for row in await tx.rows(blocked)) == [child, other]


@EACH_WAY
async def test_no_tasks_are_submitted_without_a_word(application: Application, books: Books, send: Send) -> None:
    call = send.options(tx=application.tx)
    assert await done(call.submit_many_async([]) if application.awaited else call.submit_many([])) == []


@pytest.mark.parametrize(
    ("databases", "kind", "place"),
    [
        ("sqlite", "aiosqlite", {"prefix": "jobs_"}),
        ("postgresql", "asyncpg", {"prefix": "jobs_"}),
        ("postgresql", "Session over psycopg", {"schema": "work"}),
    ],
    indirect=["databases"],
)
async def test_prefix_and_schema_of_the_settings_hold(
    migrated_url: str, new_database: None, send: Send, kind: str, place: dict[str, Any]
) -> None:
    database = Database.open(migrated_url, **place)
    await database.migrate()
    overrides: dict[str, Any] = {f"table_{name}": value for name, value in place.items()}
    connect(url=parse_url(migrated_url), **overrides)
    async with KINDS[database.dialect.name][kind](migrated_url) as application:
        ticket = await application.submit(send, 1)
        await application.commit()
    assert await Books(database).tasks() == [ticket]
    await database.dispose()


@ON_POSTGRESQL
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_every_level_of_isolation_will_do(
    application: Application, database: Database, books: Books, send: Send, level: str
) -> None:
    await application.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    await application.execute("SELECT count(*) FROM task")
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.task).values(handler="other"))
    ticket = await application.submit(send, 1)
    await application.execute("INSERT INTO business VALUES (1)")
    await application.commit()
    assert (await books.business(), (await books.tasks())[-1]) == ([1], ticket)


@ON_POSTGRESQL
async def test_nothing_stays_in_the_session(application: Application, kind: str, send: Send) -> None:
    percent = (
        "%%" if kind in ("Connection over psycopg", "Connection over psycopg2", "AsyncConnection over psycopg") else "%"
    )
    for number in range(7):  # psycopg would prepare a statement when it comes for the sixth time
        await application.submit(send, number)
    for name, question in KEPT.items():
        if name == "prepared statements" and " over " in kind:
            continue  # what SQLAlchemy's drivers prepare of all that they are given is the application's setting
        # The transaction fails where the number is not 0.
        await application.execute(f"SELECT 1 / (CASE WHEN ({question}) = 0 THEN 1 ELSE 0 END)".replace("%", percent))
    await application.rollback()


class Base(DeclarativeBase):
    """Of the application."""


class Business(Base):
    __tablename__ = "business"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    ("databases", "driver"), [("sqlite", "pysqlite"), ("postgresql", "psycopg")], indirect=["databases"]
)
async def test_a_session_is_not_flushed_but_commits_both(
    migrated_url: str, books: Books, send: Send, driver: str
) -> None:
    engine = sa.create_engine(with_driver(migrated_url, driver))
    with Session(engine) as session:
        session.add(Business(number=1))
        ticket = send.options(tx=session).submit(1)
        assert len(session.new) == 1
        session.commit()
    engine.dispose()
    assert (await books.business(), await books.tasks()) == ([1], [ticket])


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_psycopgs_pipelines_are_followed(migrated_url: str, books: Books, send: Send) -> None:
    with psycopg.connect(migrated_url) as plain, plain.pipeline():
        plain.execute("INSERT INTO business VALUES (1)")
        first = send.options(tx=plain, unique_key="k").submit(1)
        assert send.options(tx=plain, unique_key="k").submit(1) == first
    async with await psycopg.AsyncConnection.connect(migrated_url, autocommit=True) as awaited, awaited.pipeline():
        with pytest.raises(CommitsByItself):
            await send.options(tx=awaited).submit_async(2)
        async with awaited.transaction():
            await awaited.execute("INSERT INTO business VALUES (2)")
            second = await send.options(tx=awaited).submit_async(2)
    assert (await books.business(), await books.tasks()) == ([1, 2], [first, second])
