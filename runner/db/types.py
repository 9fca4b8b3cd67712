"""Column types and SQL expressions that work the same on both databases: times, JSON text, names, the clock."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, ClassVar, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from runner.model.task import HIGHEST_FENCE

SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f"
"""A point in time as SQLite stores it: UTC text with milliseconds, which sorts correctly."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Bounds of a storable time: Python cannot read times outside them."""

NO_JOIN: sa.ColumnElement[int] = sa.literal_column("0")
"""As an OFFSET it stops PostgreSQL from turning lookups by id into joins that scan whole tables."""


def instant_to_text(moment: datetime) -> str:
    """Format an aware time as SQLite stores it, e.g. 2026-11-20 13:17:40.250."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def instant_from_text(text: str) -> datetime:
    """Parse a time as SQLite stores it."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware point in time: timestamptz on PostgreSQL, UTC text with milliseconds on SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """Choose the column's type."""
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        """Convert an aware time for the driver; reject a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"time without a time zone: {value!r}")
        return instant_to_text(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's name
        """Convert the driver's value to an aware time in UTC."""
        if isinstance(value, str):
            return instant_from_text(value)
        return None if value is None else value.astimezone(UTC)


class JsonText(sa.types.UserDefinedType[str]):
    """JSON kept verbatim, as text in Python: json on PostgreSQL, checked text on SQLite."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the column's type name."""
        return "JSON"

    def literal_processor(self, dialect: sa.Dialect) -> Any:
        """Render a value as a text literal."""
        return sa.Text().literal_processor(dialect)  # type: ignore[no-untyped-call]


@compiles(JsonText, "sqlite")
def _json_as_text(_type: JsonText, _compiler: Any, **_: Any) -> str:
    return "TEXT"


Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Names of queues and handlers: compared by byte, so that both databases sort them the same way, and fast."""

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

PositionTime = sa.BigInteger().with_variant(sa.Text(), "sqlite")
"""Microseconds since 1970; on SQLite the stored text. A driver takes long to make an object with a time zone."""


P = ParamSpec("P")
T = TypeVar("T")


class PortableSql(sa.sql.functions.FunctionElement[Any]):
    """An expression that each database writes in its own way."""

    sql: ClassVar[Mapping[str, str]]
    """The SQL by dialect, with {} for each operand."""


@compiles(PortableSql)
def _sql_of(element: PortableSql, compiler: SQLCompiler, **kw: Any) -> str:
    operands = (compiler.process(operand, **kw) for operand in element.clauses)
    return element.sql[compiler.dialect.name].format(*operands)


def portable(
    result: sa.types.TypeEngine[T], *, postgresql: str, sqlite: str
) -> Callable[[Callable[P, tuple[Any, ...]]], Callable[P, sa.ColumnElement[T]]]:
    """Make an expression of a function that returns its operands.

    Args:
        postgresql: its SQL on PostgreSQL, with {} for each operand.
        sqlite: the same on SQLite.
    """

    def decorate(operands: Callable[P, tuple[Any, ...]]) -> Callable[P, sa.ColumnElement[T]]:
        sql = {"postgresql": postgresql, "sqlite": sqlite}
        expression = type(operands.__name__, (PortableSql,), {"type": result, "sql": sql, "inherit_cache": True})
        return wraps(operands)(lambda *args, **kwargs: expression(*operands(*args, **kwargs)))

    return decorate


@portable(Instant(), postgresql="statement_timestamp()", sqlite=f"strftime('{SQLITE_FORMAT}', 'now')")
def db_now() -> tuple[Any, ...]:
    """The database's clock, constant within a statement so that it can search an index."""
    return ()


@portable(
    sa.Boolean(),
    postgresql=f"({{}} BETWEEN '{EARLIEST}' AND '{LATEST}')",
    sqlite=f"({{}} BETWEEN '{instant_to_text(EARLIEST)}' AND '{instant_to_text(LATEST)}')",
)
def is_readable(moment: Any) -> tuple[Any, ...]:
    """The condition that Python can read a time. Its bounds are literals, so that it can be prepared."""
    return (moment,)


@portable(sa.Text(), postgresql="session_user", sqlite="NULL")
def login() -> tuple[Any, ...]:
    """The login of this session, which a client cannot choose; NULL on SQLite, which has no logins."""
    return ()


@portable(
    Instant(),
    postgresql="({} + ({}) * interval '1 second')",
    sqlite=f"strftime('{SQLITE_FORMAT}', {{}}, round({{}}, 3) || ' seconds')",
)
def db_later(moment: Any, seconds: Any) -> tuple[Any, ...]:
    """The time `seconds` after `moment`; negative seconds are before it."""
    return moment, sa.cast(seconds, sa.Float())


@portable(
    sa.Float(),
    postgresql="extract(epoch from {} - statement_timestamp())::float",
    sqlite="((julianday({}) - julianday('now')) * 86400.0)",
)
def seconds_until(moment: Any) -> tuple[Any, ...]:
    """Seconds from now to a time by the database's clock; negative if the time has passed."""
    return (moment,)


@portable(PositionTime, postgresql="(date_part('epoch', {}) * 1000000)::bigint", sqlite="{}")
def to_position(moment: Any) -> tuple[Any, ...]:
    """A time as PositionTime."""
    return (moment,)


@portable(Instant(), postgresql="('epoch'::timestamptz + {} * interval '1 microsecond')", sqlite="{}")
def from_position(position: Any) -> tuple[Any, ...]:
    """The time of a PositionTime."""
    return (position,)


@portable(
    sa.Float(),
    postgresql="floor(date_part('epoch', {}) / 60)",
    sqlite="(cast(strftime('%s', {}) as integer) / 60)",
)
def minute_number(moment: Any) -> tuple[Any, ...]:
    """Minutes from 1970 to a time. Unlike the time itself, it is readable for infinity too."""
    return (moment,)


@portable(Instant(), postgresql="to_timestamp({} * 60)", sqlite=f"strftime('{SQLITE_FORMAT}', {{}} * 60, 'unixepoch')")
def minute_at(number: Any) -> tuple[Any, ...]:
    """The start of the minute with a number since 1970: the inverse of minute_number."""
    return (number,)


@portable(Instant(), postgresql="date_trunc('minute', {})", sqlite="strftime('%Y-%m-%d %H:%M:00.000', {})")
def minute_start(moment: Any) -> tuple[Any, ...]:
    """The start of the minute of a time."""
    return (moment,)


@portable(
    sa.SmallInteger(),
    postgresql="floor(random() * {})::smallint",
    sqlite="((random() & 9223372036854775807) % {})",
)
def random_below(limit: int) -> tuple[Any, ...]:
    """A random number from 0 to `limit` - 1, uniformly distributed."""
    return (sa.literal_column(str(limit)),)


@portable(sa.Integer(), postgresql="octet_length({}::text)", sqlite="length(cast({} as blob))")
def byte_count(column: Any) -> tuple[Any, ...]:
    """The size of a JSON text in bytes. PostgreSQL does not load the text for it."""
    return (column,)


@portable(
    sa.BigInteger(),
    postgresql="(SELECT unnest(string_to_array({}, ',')::BIGINT[]))",
    sqlite="(SELECT value FROM json_each('[' || {} || ']'))",
)
def _ids(text: Any) -> tuple[Any, ...]:
    return (text,)


def is_listed(id: Any, ids: Any) -> sa.ColumnElement[bool]:
    """True if an id is one of some ids, which are a text with commas between them."""
    listed: sa.ColumnElement[bool] = id.op("IN", is_comparison=True)(_ids(ids))
    return listed


def is_unlisted(id: Any, ids: Any) -> sa.ColumnElement[bool]:
    """True if an id is none of some ids; see `is_listed`. The database makes a set of them, and looks each row up."""
    unlisted: sa.ColumnElement[bool] = id.op("NOT IN", is_comparison=True)(_ids(ids))
    return unlisted


def epoch_seconds() -> sa.ColumnElement[float]:
    """Seconds from 1970 to now by the database's clock."""
    start = sa.literal_column("'1970-01-01 00:00:00Z'", Instant)
    return -seconds_until(start)


def next_version(version: Any) -> sa.ColumnElement[int]:
    """The version after a change. After the highest one it starts over, so that no version stops a statement."""
    one: sa.ColumnElement[int] = sa.literal_column("1")
    return sa.case((version < sa.literal_column(str(HIGHEST_FENCE)), version + one), else_=one)


def raised(count: Any, by: Any, highest: int) -> sa.ColumnElement[int]:
    """A count raised by a number, unless it is at its highest value, where it stays."""
    return sa.case((count < sa.literal_column(str(highest)), count + by), else_=count)


class RowAddress(sa.types.UserDefinedType[str]):
    """The address of a row version on PostgreSQL, as text in Python."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type name."""
        return "TID"


def ctid(table: sa.FromClause) -> sa.ColumnClause[Any]:
    """The address of a version of a row on PostgreSQL, given its table or an alias: the fastest access to it."""
    address: sa.ColumnClause[Any] = sa.column("ctid", RowAddress())
    address.table = table
    return address


def bounded(moment: datetime) -> bool:
    """True if both databases and Python can hold this time."""
    return EARLIEST <= moment < LATEST


def seconds(span: timedelta | None) -> float | None:
    """A duration in seconds, as the databases store it."""
    return None if span is None else span.total_seconds()
