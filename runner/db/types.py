"""Column types and SQL expressions that work the same on both databases: times, JSON text, names, the clock."""

from datetime import UTC, datetime, timedelta
from typing import Any

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


class DbNow(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock, constant within a statement so that it can search an index."""

    type = Instant()
    inherit_cache = True


class Login(sa.sql.functions.FunctionElement[str]):
    """The login of this session, which a client cannot choose; NULL on SQLite, which has no logins."""

    type = sa.Text()
    inherit_cache = True


class DbLater(sa.sql.functions.FunctionElement[datetime]):
    """The time a number of seconds after another: `DbLater(time, seconds)`."""

    type = Instant()
    inherit_cache = True


class SecondsUntil(sa.sql.functions.FunctionElement[float]):
    """Seconds from now until a time: `SecondsUntil(time)`."""

    type = sa.Float()
    inherit_cache = True


class ToPosition(sa.sql.functions.FunctionElement[Any]):
    """A time as PositionTime: `ToPosition(time)`."""

    type = PositionTime
    inherit_cache = True


class FromPosition(sa.sql.functions.FunctionElement[datetime]):
    """The time of a PositionTime: `FromPosition(value)`."""

    type = Instant()
    inherit_cache = True


class MinuteNumber(sa.sql.functions.FunctionElement[float]):
    """Minutes from 1970 to a time: `MinuteNumber(time)`."""

    type = sa.Float()
    inherit_cache = True


class MinuteAt(sa.sql.functions.FunctionElement[datetime]):
    """The start of the minute with a number since 1970: `MinuteAt(number)`, the inverse of MinuteNumber."""

    type = Instant()
    inherit_cache = True


class MinuteStart(sa.sql.functions.FunctionElement[datetime]):
    """The start of the minute of a time: `MinuteStart(time)`."""

    type = Instant()
    inherit_cache = True


class RandomBelow(sa.sql.functions.FunctionElement[int]):
    """A random whole number from 0 to one less than another: `RandomBelow(literal)`."""

    type = sa.SmallInteger()
    inherit_cache = True


class ByteCount(sa.sql.functions.FunctionElement[int]):
    """The size of a JSON text in bytes: `ByteCount(column)`. PostgreSQL does not load the text for it."""

    type = sa.Integer()
    inherit_cache = True


@compiles(ByteCount, "postgresql")
def _bytes_postgresql(element: ByteCount, compiler: SQLCompiler, **kw: Any) -> str:
    return f"octet_length({compiler.process(element.clauses, **kw)}::text)"


@compiles(ByteCount, "sqlite")
def _bytes_sqlite(element: ByteCount, compiler: SQLCompiler, **kw: Any) -> str:
    return f"length(cast({compiler.process(element.clauses, **kw)} as blob))"


@compiles(DbNow, "postgresql")
def _now_postgresql(_element: DbNow, _compiler: SQLCompiler, **_: Any) -> str:
    return "statement_timestamp()"


@compiles(DbNow, "sqlite")
def _now_sqlite(_element: DbNow, _compiler: SQLCompiler, **_: Any) -> str:
    return f"strftime('{SQLITE_FORMAT}', 'now')"


@compiles(Login, "postgresql")
def _login_postgresql(_element: Login, _compiler: SQLCompiler, **_: Any) -> str:
    return "session_user"


@compiles(Login, "sqlite")
def _login_sqlite(_element: Login, _compiler: SQLCompiler, **_: Any) -> str:
    return "NULL"


@compiles(DbLater, "postgresql")
def _later_postgresql(element: DbLater, compiler: SQLCompiler, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({moment} + ({seconds}) * interval '1 second')"


@compiles(DbLater, "sqlite")
def _later_sqlite(element: DbLater, compiler: SQLCompiler, **kw: Any) -> str:
    moment, seconds = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime('{SQLITE_FORMAT}', {moment}, round({seconds}, 3) || ' seconds')"


@compiles(SecondsUntil, "postgresql")
def _until_postgresql(element: SecondsUntil, compiler: SQLCompiler, **kw: Any) -> str:
    return f"extract(epoch from {compiler.process(element.clauses, **kw)} - statement_timestamp())::float"


@compiles(SecondsUntil, "sqlite")
def _until_sqlite(element: SecondsUntil, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((julianday({compiler.process(element.clauses, **kw)}) - julianday('now')) * 86400.0)"


@compiles(ToPosition, "postgresql")
def _to_position_postgresql(element: ToPosition, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(date_part('epoch', {compiler.process(element.clauses, **kw)}) * 1000000)::bigint"


@compiles(FromPosition, "postgresql")
def _from_position_postgresql(element: FromPosition, compiler: SQLCompiler, **kw: Any) -> str:
    return f"('epoch'::timestamptz + {compiler.process(element.clauses, **kw)} * interval '1 microsecond')"


@compiles(ToPosition, "sqlite")
@compiles(FromPosition, "sqlite")
def _position_sqlite(element: ToPosition | FromPosition, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


@compiles(MinuteNumber, "postgresql")
def _minute_postgresql(element: MinuteNumber, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor(date_part('epoch', {compiler.process(element.clauses, **kw)}) / 60)"


@compiles(MinuteNumber, "sqlite")
def _minute_sqlite(element: MinuteNumber, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(cast(strftime('%s', {compiler.process(element.clauses, **kw)}) as integer) / 60)"


@compiles(MinuteStart, "postgresql")
def _minute_start_postgresql(element: MinuteStart, compiler: SQLCompiler, **kw: Any) -> str:
    return f"date_trunc('minute', {compiler.process(element.clauses, **kw)})"


@compiles(MinuteStart, "sqlite")
def _minute_start_sqlite(element: MinuteStart, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('%Y-%m-%d %H:%M:00.000', {compiler.process(element.clauses, **kw)})"


@compiles(MinuteAt, "postgresql")
def _minute_at_postgresql(element: MinuteAt, compiler: SQLCompiler, **kw: Any) -> str:
    return f"to_timestamp({compiler.process(element.clauses, **kw)} * 60)"


@compiles(MinuteAt, "sqlite")
def _minute_at_sqlite(element: MinuteAt, compiler: SQLCompiler, **kw: Any) -> str:
    return f"strftime('{SQLITE_FORMAT}', {compiler.process(element.clauses, **kw)} * 60, 'unixepoch')"


@compiles(RandomBelow, "postgresql")
def _random_postgresql(element: RandomBelow, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor(random() * {compiler.process(element.clauses, **kw)})::smallint"


@compiles(RandomBelow, "sqlite")
def _random_sqlite(element: RandomBelow, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((random() & 9223372036854775807) % {compiler.process(element.clauses, **kw)})"


def random_below(limit: int) -> RandomBelow:
    """A random number from 0 to `limit` - 1, uniformly distributed, as an expression."""
    return RandomBelow(sa.literal_column(str(limit)))


def db_now() -> DbNow:
    """The database's clock, as an expression."""
    return DbNow()


def login() -> Login:
    """The login of this session, as an expression."""
    return Login()


def db_later(moment: Any, seconds: Any) -> DbLater:
    """The time `seconds` after `moment`, as an expression; negative seconds are before it."""
    return DbLater(moment, sa.cast(seconds, sa.Float()))


def seconds_until(moment: Any) -> SecondsUntil:
    """Seconds from now to a time by the database's clock; negative if the time has passed."""
    return SecondsUntil(moment)


def epoch_seconds() -> sa.ColumnElement[float]:
    """Seconds from 1970 to now by the database's clock."""
    start = sa.literal_column("'1970-01-01 00:00:00Z'", Instant)
    seconds: sa.ColumnElement[float] = -SecondsUntil(start)
    return seconds


def minute_number(moment: Any) -> MinuteNumber:
    """Minutes from 1970 to a time. Unlike the time itself, it is readable for infinity too."""
    return MinuteNumber(moment)


def minute_start(moment: Any) -> MinuteStart:
    """The start of the minute of a time."""
    return MinuteStart(moment)


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
