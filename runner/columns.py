"""Column types and expressions that mean the same on both databases: points in time, JSON text, names, the clock."""

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

SQLITE_FORMAT = "%Y-%m-%d %H:%M:%f"
"""SQLite's spelling of a point in time: readable, sortable as text, to the millisecond, always UTC."""

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""Times outside of these bounds cannot be stored: Python could not read them back."""

NO_JOIN: sa.ColumnElement[int] = sa.literal_column("0")
"""As an OFFSET it keeps PostgreSQL from turning look-ups by id into joins, which would read tables from end to end."""


def instant_to_text(moment: datetime) -> str:
    """Write an aware time as SQLite stores it, e.g. 2026-11-20 13:17:40.250."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def instant_from_text(text: str) -> datetime:
    """Read a time as SQLite stores it."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware point in time: timestamptz on PostgreSQL, UTC text with milliseconds on SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        """Choose the column's type."""
        return dialect.type_descriptor(sa.Text() if dialect.name == "sqlite" else sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        """Turn an aware time into what the driver takes; a naive one is refused."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"a time without a zone: {value!r}")
        return instant_to_text(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's name
        """Turn what the driver read into an aware time in UTC."""
        if isinstance(value, str):
            return instant_from_text(value)
        return None if value is None else value.astimezone(UTC)


class JsonText(sa.types.UserDefinedType[str]):
    """JSON kept to the letter, as text in Python: json on PostgreSQL, checked text on SQLite."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Name the column's type."""
        return "JSON"

    def literal_processor(self, dialect: sa.Dialect) -> Any:
        """Write a value into a statement, as a text is written."""
        return sa.Text().literal_processor(dialect)  # type: ignore[no-untyped-call]


@compiles(JsonText, "sqlite")
def _json_as_text(_type: JsonText, _compiler: Any, **_: Any) -> str:
    return "TEXT"


Name = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Names of queues and handlers: compared byte by byte, so that both databases sort them alike, and fast."""

BigId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class DbNow(sa.sql.functions.FunctionElement[datetime]):
    """The database's clock: stable within one statement, so that an index can be searched with it."""

    type = Instant()
    inherit_cache = True


class Login(sa.sql.functions.FunctionElement[str]):
    """The login of this session, which no client can choose; NULL on SQLite, which knows none."""

    type = sa.Text()
    inherit_cache = True


class DbLater(sa.sql.functions.FunctionElement[datetime]):
    """A time so many seconds after another: `DbLater(time, seconds)`."""

    type = Instant()
    inherit_cache = True


class SecondsUntil(sa.sql.functions.FunctionElement[float]):
    """Seconds from now until a time: `SecondsUntil(time)`."""

    type = sa.Float()
    inherit_cache = True


class MinuteNumber(sa.sql.functions.FunctionElement[float]):
    """The minute in which a time lies, counted from 1970: `MinuteNumber(time)`."""

    type = sa.Float()
    inherit_cache = True


class RandomBelow(sa.sql.functions.FunctionElement[int]):
    """A whole number at random, from 0 and less than another: `RandomBelow(literal)`."""

    type = sa.SmallInteger()
    inherit_cache = True


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


@compiles(MinuteNumber, "postgresql")
def _minute_postgresql(element: MinuteNumber, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor(date_part('epoch', {compiler.process(element.clauses, **kw)}) / 60)"


@compiles(MinuteNumber, "sqlite")
def _minute_sqlite(element: MinuteNumber, compiler: SQLCompiler, **kw: Any) -> str:
    return f"(cast(strftime('%s', {compiler.process(element.clauses, **kw)}) as integer) / 60)"


@compiles(RandomBelow, "postgresql")
def _random_postgresql(element: RandomBelow, compiler: SQLCompiler, **kw: Any) -> str:
    return f"floor(random() * {compiler.process(element.clauses, **kw)})::smallint"


@compiles(RandomBelow, "sqlite")
def _random_sqlite(element: RandomBelow, compiler: SQLCompiler, **kw: Any) -> str:
    return f"((random() & 9223372036854775807) % {compiler.process(element.clauses, **kw)})"


def random_below(most: int) -> RandomBelow:
    """A number of the database's choice from 0 to less than `most`, each as likely as another, as an expression."""
    return RandomBelow(sa.literal_column(str(most)))


def db_now() -> DbNow:
    """The database's clock, as an expression."""
    return DbNow()


def login() -> Login:
    """The login of this session, as an expression."""
    return Login()


def db_later(moment: Any, seconds: Any) -> DbLater:
    """The time `seconds` after `moment`, as an expression; a negative number lies before."""
    return DbLater(moment, sa.cast(seconds, sa.Float()))


def seconds_until(moment: Any) -> SecondsUntil:
    """Seconds from now, on the database's clock, until a time; negative when it has passed."""
    return SecondsUntil(moment)


def minute_number(moment: Any) -> MinuteNumber:
    """The minute in which a time lies, counted from 1970; it can be read whatever stands there, infinity included."""
    return MinuteNumber(moment)


def ctid(table: sa.FromClause) -> sa.ColumnClause[Any]:
    """The place of a row's present version, on PostgreSQL: the cheapest way to a row that was just looked up.

    Args:
        table: of the row, or its alias.
    """
    place: sa.ColumnClause[Any] = sa.column("ctid")
    place.table = table
    return place


def bounded(moment: datetime) -> bool:
    """Tell whether both databases and Python can hold this time."""
    return EARLIEST <= moment < LATEST


def seconds(span: timedelta | None) -> float | None:
    """A span of time as the databases keep it."""
    return None if span is None else span.total_seconds()
