"""Dialects: values reach the server unchanged."""

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.db.dialects import DIALECTS
from runner.db.dialects.postgresql import PostgreSQL, array_text
from runner.db.types import EARLIEST, Instant, PositionTime, from_position, to_position
from tests.postgres import Cluster
from tests.store.rows import add_live

TEXTS = ["", "NULL", "a,b", "{x}", ' "q" ', "back\\slash", '\\"', "tab\tline\nend", "snöw ☃", "%s $1 %(a)s", "'"]


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("text", TEXTS),
        ("text", [*TEXTS, None]),
        ("text", ["(0,1)", "(17,3)"]),
        ("text", [text for text in TEXTS if '"' not in text and "\\" not in text]),
        ("bigint", [0, -1, 2**63 - 1]),
        ("bigint", [1, None]),
        ("double precision", [0.1, 1e300, float("inf"), 3]),
        ("double precision", [None, 2.5]),
        ("timestamptz", [datetime(2026, 1, 2, 3, 4, 5, 678901, UTC), datetime.min.replace(tzinfo=UTC), None]),
        ("boolean", [True, False, None]),
        ("text", []),
    ],
)
def test_an_array_reaches_the_server_as_it_is(postgres_server: Cluster, kind: str, items: list[Any]) -> None:
    with psycopg.connect(postgres_server.url()) as connection:
        received = psycopg.RawCursor(connection).execute(f"SELECT $1::{kind}[]", [array_text(items)]).fetchone()
    assert received == (items,)


async def test_a_statement_keeps_percent_signs_and_parameters_that_occur_twice(postgres_server: Cluster) -> None:
    dialect = DIALECTS["postgresql"]
    assert isinstance(dialect, PostgreSQL)
    async with await psycopg.AsyncConnection.connect(postgres_server.url()) as connection:
        sql = "SELECT %(b)s::int, %(a)s::text, '100%%', %(b)s::int, %(c)b::text[]"
        rows = await dialect.fetch(connection, sql, {"a": "x%y", "b": 2, "c": ["1", "2"]})
    assert rows == [(2, "x%y", "100%", 2, ["1", "2"])]


@pytest.mark.parametrize(
    "moment",
    [
        EARLIEST,
        datetime(1970, 1, 1, 0, 0, 0, 1, UTC),
        datetime(2026, 11, 23, 17, 8, 29, 123457, UTC),
        datetime(2026, 11, 23, 17, 8, 29, 999999, UTC),
        datetime(2199, 12, 31, 23, 59, 59, 999999, UTC),
    ],
)
async def test_a_position_keeps_each_microsecond(database: Database, moment: datetime) -> None:
    """A claim that started a microsecond later would skip tasks, and one that started earlier would repeat them."""
    stored, position = sa.literal(moment, Instant), database.dialect.position(moment)
    async with database.writing() as tx:
        ((passed, kept),) = await tx.rows(
            sa.select(to_position(stored), from_position(sa.literal(position, PositionTime)))
        )
    assert passed == position
    if database.dialect.name == "postgresql":
        assert kept == moment


async def test_a_column_is_one_of_the_values_and_of_none_without_values(database: Database) -> None:
    await add_live(database, "mail.send")
    async with database.reading() as tx:
        task = tx.tables.task.c
        for column, value in ((task.id, 1), (task.handler, "mail.send"), (task.tenant, "acme")):
            counts = [
                await tx.scalar(sa.select(sa.func.count()).where(tx.dialect.one_of(column, values)))
                for values in ([], [value])
            ]
            assert counts == [0, 0 if column is task.tenant else 1]
