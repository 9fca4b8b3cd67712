"""An external connection supports every option, and the submit leaves no trace in the session."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from runner import TaskHandler, connect
from runner.db.database import Database
from runner.errors import AutocommitConnection, DuplicateTask
from runner.urls import parse_url
from tests.client.external.applications import KINDS, Application, done, with_driver
from tests.client.external.conftest import EACH_KIND, EACH_WAY, ON_POSTGRESQL, Books
from tests.store.test_session_state import KEPT

Send = TaskHandler[[int], Any, Any]

LATER = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@EACH_KIND
async def test_every_option_is_stored(application: Application, database: Database, books: Books, send: Send) -> None:
    call = send.options(
        tx=application.tx, run_at=LATER, priority=9, key="ö'%s", queue="$1", max_attempts=2, retry="30s",
        timeout="1m", tags=["red"], headers={"user": "ö"},
    )  # fmt: skip
    handle = await application.submit(call, 7)
    await application.commit()
    async with database.reading() as tx:
        (row,) = await tx.rows(sa.select(tx.tables.task))
    assert (row.id, row.payload, row.run_at, row.priority) == (handle, '{"number":7}', LATER, 9)
    assert (row.key, row.queue, row.max_attempts, row.retry) == ("ö'%s", "$1", 2, "30s")
    assert (row.timeout, row.tags) == (60.0, '["red"]')
    assert row.headers == '{"user": "\\u00f6"}'


@EACH_KIND
async def test_submit_many_keeps_the_order(
    application: Application, books: Books, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.submit.CHUNK", 20)
    calls = [{"number": number} for number in range(50)]
    call = send.options(tx=application.tx, delay="1h")
    handles = await done(call.submit_many_async(calls) if application.awaited else call.submit_many(calls))
    assert await books.tasks() == []
    await application.commit()
    assert await books.tasks() == handles == sorted(handles)


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
async def test_a_task_can_depend_on_another_of_the_same_transaction(
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
async def test_submitting_an_empty_list_does_nothing(application: Application, books: Books, send: Send) -> None:
    call = send.options(tx=application.tx)
    assert await done(call.submit_many_async([]) if application.awaited else call.submit_many([])) == []


@pytest.mark.parametrize(
    ("databases", "kind", "options"),
    [
        ("sqlite", "aiosqlite", {"prefix": "jobs_"}),
        ("postgresql", "asyncpg", {"prefix": "jobs_"}),
        ("postgresql", "Session over psycopg", {"schema": "work"}),
    ],
    indirect=["databases"],
)
async def test_prefix_and_schema_of_the_settings_apply(
    migrated_url: str, new_database: None, send: Send, kind: str, options: dict[str, Any]
) -> None:
    database = Database.open(migrated_url, **options)
    await database.migrate()
    overrides: dict[str, Any] = {f"table_{name}": value for name, value in options.items()}
    connect(url=parse_url(migrated_url), **overrides)
    async with KINDS[database.dialect.name][kind](migrated_url) as application:
        handle = await application.submit(send, 1)
        await application.commit()
    assert await Books(database).tasks() == [handle]
    await database.dispose()


@ON_POSTGRESQL
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_every_isolation_level_works(
    application: Application, database: Database, books: Books, send: Send, level: str
) -> None:
    await application.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    await application.execute("SELECT count(*) FROM task")
    async with database.writing() as tx:
        await tx.execute(sa.insert(tx.tables.task).values(handler="other"))
    handle = await application.submit(send, 1)
    await application.execute("INSERT INTO business VALUES (1)")
    await application.commit()
    assert (await books.business(), (await books.tasks())[-1]) == ([1], handle)


@ON_POSTGRESQL
async def test_a_submit_leaves_nothing_in_the_session(application: Application, kind: str, send: Send) -> None:
    percent = (
        "%%" if kind in ("Connection over psycopg", "Connection over psycopg2", "AsyncConnection over psycopg") else "%"
    )
    for number in range(7):  # psycopg prepares a statement at its sixth execution
        await application.submit(send, number)
    for name, question in KEPT.items():
        if name == "prepared statements" and " over " in kind:
            continue  # SQLAlchemy's drivers prepare statements as the application configured them
        # Fails the transaction if the count is not 0.
        await application.execute(f"SELECT 1 / (CASE WHEN ({question}) = 0 THEN 1 ELSE 0 END)".replace("%", percent))
    await application.rollback()


class Base(DeclarativeBase):
    """Declarative base of the application."""


class Business(Base):
    __tablename__ = "business"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(
    ("databases", "driver"), [("sqlite", "pysqlite"), ("postgresql", "psycopg")], indirect=["databases"]
)
async def test_a_submit_does_not_flush_the_session_and_its_commit_stores_both(
    migrated_url: str, books: Books, send: Send, driver: str
) -> None:
    engine = sa.create_engine(with_driver(migrated_url, driver))
    with Session(engine) as session:
        session.add(Business(number=1))
        handle = send.options(tx=session).submit(1)
        assert len(session.new) == 1
        session.commit()
    engine.dispose()
    assert (await books.business(), await books.tasks()) == ([1], [handle])


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
async def test_a_submit_works_in_a_psycopg_pipeline(migrated_url: str, books: Books, send: Send) -> None:
    with psycopg.connect(migrated_url) as plain, plain.pipeline():
        plain.execute("INSERT INTO business VALUES (1)")
        first = send.options(tx=plain, unique_key="k").submit(1)
        assert send.options(tx=plain, unique_key="k").submit(1) == first
    async with await psycopg.AsyncConnection.connect(migrated_url, autocommit=True) as awaited, awaited.pipeline():
        with pytest.raises(AutocommitConnection):
            await send.options(tx=awaited).submit_async(2)
        async with awaited.transaction():
            await awaited.execute("INSERT INTO business VALUES (2)")
            second = await send.options(tx=awaited).submit_async(2)
    assert (await books.business(), await books.tasks()) == ([1, 2], [first, second])
