"""PostgreSQL dialect: batches as arrays, lane walks with LATERAL, row locks.

SQLAlchemy's own dialect is imported where it is used, since most processes need only one database.
"""

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from runner.db.dialects.dialect import Dialect
from runner.db.errors import NOT_INSERTED, is_transient
from runner.db.schema import Tables
from runner.db.schema.partitions import ORDER_SPACE, full_name, name_literal
from runner.db.server_encoding import ArrayText
from runner.db.types import EARLIEST, LATEST, NO_JOIN, ctid

if TYPE_CHECKING:
    from runner.db.loop_statements import LoopStatements  # imports psycopg

MAX_NAME = 63
"""Maximum bytes of a name in PostgreSQL."""

PREPARE_AFTER = 1
"""Executions of a statement on a connection before it is prepared: a short command prepares little."""

SESSION = {
    "plan_cache_mode": "force_generic_plan",
    # A generic plan stays when its table grows. Made for an empty table, it would always read the whole table.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    # It would keep a copy of each row that a settle looks up once. PostgreSQL 13 does not have it.
    "enable_memoize": "off",
    # The costs of the disabled scans would trigger a compilation.
    "jit": "off",
}

KEEP_PLANS = "SELECT {} WHERE pg_backend_pid() = %s".format(
    ", ".join(
        f"CASE WHEN current_setting('{name}', true) IS NOT NULL THEN set_config('{name}', '{value}', false) END"
        for name, value in SESSION.items()
    )
)
"""Sets the session, if the process that answers is the one that the connection announced at its start.

A pooler announces a number of its own, because it passes each transaction to another process. Without a row the
statement sets nothing."""

ALONG_INDEXES = "SELECT {}".format(
    ", ".join(f"set_config('{name}', 'off', true)" for name in ("enable_bitmapscan", "enable_seqscan", "jit"))
)

LOCK_TIMEOUT = "SELECT set_config('lock_timeout', %(timeout)s, true)"  # up to the end of the transaction
PAUSE_SECONDS = 5.0
"""Seconds after which the server ends a transaction of a runner that sends nothing. Between two statements a runner
only computes for milliseconds."""

# Other logins' transactions are visible to members of pg_read_all_stats; for all others they are NULL.
_OLDEST = """
SELECT extract(epoch FROM statement_timestamp() - xact_start)::float8, pid, application_name, state
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""
_CONNECTIONS = """
SELECT count(*) FILTER (WHERE backend_type = 'client backend' OR backend_type IS NULL),
       current_setting('max_connections')::int,
       count(*) FILTER (WHERE datname = current_database() AND query = '<insufficient privilege>')
FROM pg_stat_activity
"""
# Our tables, and their partitions at every level.
_OWN = """
WITH named AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = ANY(CAST(:names AS text[]))
), own AS (
    SELECT oid FROM named UNION SELECT tree.relid FROM named, pg_partition_tree(oid) AS tree
)
"""
_DEAD = """
SELECT relname::text, n_live_tup, n_dead_tup,
       extract(epoch FROM statement_timestamp() - greatest(last_vacuum, last_autovacuum))::float8
FROM pg_stat_user_tables JOIN own ON oid = relid
ORDER BY n_dead_tup DESC, relname
"""
_SIZES = """
SELECT c.relname::text, (pg_total_relation_size(c.oid) + coalesce(sum(pg_total_relation_size(part.relid)), 0))::bigint
FROM named JOIN pg_class c USING (oid) LEFT JOIN LATERAL pg_partition_tree(c.oid) AS part ON part.relid <> c.oid
GROUP BY c.oid, c.relname ORDER BY c.relname
"""


class PostgreSQL(Dialect):
    """PostgreSQL 13 and newer, over psycopg 3."""

    name = "postgresql"
    is_server = row_locks = row_addresses = writing_ctes = laterals = schemas = partitions = True
    without_bitmap_scans: tuple[str, str] | None = (
        (
            "SELECT set_config('runner.bitmapscan', current_setting('enable_bitmapscan'), true), "
            "set_config('enable_bitmapscan', 'off', true)"
        ),
        "SELECT set_config('enable_bitmapscan', current_setting('runner.bitmapscan'), true)",
    )
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    begin_reading: str | None = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    unprepared: Mapping[str, Any] = MappingProxyType({"prepare": False})

    @cached_property
    def by_position(self) -> sa.Dialect:
        """That of asyncpg, whose package it does not need: psycopg takes `$1` too."""
        from sqlalchemy.dialects.postgresql import asyncpg

        return asyncpg.dialect()  # type: ignore[no-untyped-call]

    def cursor_by_position(self, connection: Any) -> Any:
        """A cursor that passes statements to the server as they are."""
        from psycopg import RawCursor

        return RawCursor(connection)

    def rows(self, name: str, columns: dict[str, Any]) -> sa.FromClause:
        """A batch as one array per column: `unnest($1, $2, ...)`."""
        arrays = [sa.bindparam(f"{name}_{column}", type_=_array(kind)) for column, kind in columns.items()]
        values = [sa.column(column, kind) for column, kind in columns.items()]
        return sa.func.unnest(*arrays).table_valued(*values).render_derived(name=name)

    def parameters(self, name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Send one list per column, and NULL for a column of nothing else: unnest pads it."""
        return {
            f"{name}_{column}": list(items) if items.count(None) < len(items) else None
            for column, items in values.items()
        }

    def row_parameters(self, name: str, columns: Collection[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Transpose the rows."""
        values = tuple(zip(*rows, strict=True)) or ((),) * len(columns)
        return self.parameters(name, dict(zip(columns, values, strict=True)))

    def for_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:  # noqa: ARG002 - the other database needs it
        """Run the selection once for each outer row."""
        match = inner.lateral("candidate")
        return outer.join(match, sa.true()), match.c

    def one_by_one(
        self, batch: sa.FromClause, table: sa.Table, same: Any, compared: Sequence[str] = ()
    ) -> tuple[sa.FromClause, Any]:
        """Look up the rows one by one, and address them by ctid."""
        row = table.alias("target")
        found = sa.select(ctid(row), *(row.c[name] for name in compared))
        address = found.where(same(row, batch)).offset(NO_JOIN).lateral("address")
        columns = [address.c[each.name] if each.name in compared else each for each in batch.c]
        match = sa.select(address.c.ctid, *columns).select_from(batch.join(address, sa.true())).subquery("match")
        return match, ctid(table) == match.c.ctid

    def position(self, moment: datetime) -> Any:
        """Microseconds since 1970."""
        return (moment - EARLIEST) // timedelta(microseconds=1)

    def announcing(self, insert: Any, tables: Tables) -> Any:
        """NOTIFY in the same statement, in a CTE that runs once instead of once per row."""
        return self._with_notice(insert.cte("inserted"), tables)

    def inserting_all(self, insert: Any, tables: Tables, *, notify: bool) -> Any:
        """Compare the number of the inserted rows in the same statement."""
        new = insert.cte("inserted")
        ids = self._with_notice(new, tables) if notify else sa.select(new.c.id)
        expected = sa.bindparam("expected", type_=sa.Integer)
        counted = sa.select(sa.func.count().label("number")).select_from(new).cte("counted")
        missing, all_ = (sa.cast(number, sa.Text) for number in (expected - counted.c.number, expected))
        failure = sa.cast(missing + " of " + all_ + NOT_INSERTED, sa.BigInteger)  # no constant, which always fails
        return sa.union_all(ids, sa.select(failure).where(counted.c.number < expected))

    @staticmethod
    def _with_notice(new: sa.CTE, tables: Tables) -> sa.Select[Any]:
        notice = (
            sa.select(sa.func.pg_notify(channel(tables), "").label("sent")).cte("notice").prefix_with("MATERIALIZED")
        )
        return sa.select(new.c.id).select_from(new.join(notice, notice.c.sent.is_not(None)))

    def insert(self, table: sa.Table) -> Any:
        """The insert of this dialect."""
        from sqlalchemy.dialects.postgresql import insert

        return insert(table)

    def one_of(self, column: sa.ColumnElement[Any], values: Sequence[int | str]) -> sa.ColumnElement[bool]:
        """One array."""
        kind = sa.Text if any(isinstance(value, str) for value in values) else sa.BigInteger
        return column == sa.any_(sa.literal(list(values), _array(kind))) if values else sa.false()

    def in_batch(self, column: sa.ColumnElement[int], name: str) -> sa.ColumnElement[bool]:
        """One array."""
        return column == sa.any_(sa.bindparam(f"{name}_id", type_=_array(sa.BigInteger)))

    def matches(self, column: sa.ColumnElement[str], pieces: Sequence[str]) -> sa.ColumnElement[bool]:
        """LIKE with escaped wildcards."""
        signs = str.maketrans({sign: f"/{sign}" for sign in "/%_"})
        return column.like("%".join(piece.translate(signs) for piece in pieces), escape="/")

    def member(self, payload: sa.ColumnElement[Any], path: Sequence[str]) -> sa.ColumnElement[str]:
        """`#>>`, except for payloads with the escape of a NUL, which it cannot convert."""
        text = sa.cast(payload, sa.Text)
        names = sa.cast(sa.literal(list(path), _array(sa.Text)), _array(sa.Text))
        value = sa.type_coerce(payload.op("#>>")(names), sa.Text)
        has_no_nul = sa.func.strpos(text, sa.literal_column(r"'\u0000'")) == 0
        # Such a database cannot convert the escapes of characters that it does not hold.
        is_readable = (self.encoding() == sa.literal_column("'UTF8'")) | (
            sa.func.strpos(text, sa.literal_column(r"'\u'")) == 0
        )
        return sa.case((has_no_nul & is_readable, value), else_=sa.null())

    def encoding(self) -> sa.ColumnElement[str]:
        """The encoding of the database."""
        return sa.literal_column("current_setting('server_encoding')", sa.Text)

    def permissions(self, tables: Tables) -> Mapping[str, sa.ColumnElement[bool]]:
        """The privileges of the login (column privileges suffice), the role of the server, and read-only settings.

        The settings of the current transaction do not count, because it is always read-only.
        """
        task = sa.func.has_any_column_privilege(full_name(tables.task), "UPDATE")
        audit = sa.func.has_any_column_privilege(full_name(tables.audit), "INSERT")
        return {
            "intervenes": sa.and_(task, audit),
            "follows": sa.func.pg_is_in_recovery(),
            "closed": sa.func.current_setting("default_transaction_read_only") == "on",
            "reads_audit": sa.func.has_table_privilege(full_name(tables.audit), "SELECT"),
        }

    def staleness(self) -> sa.ColumnElement[Any]:
        """Time since the commit of the last replayed transaction, by the clock of the primary."""
        return sa.func.extract("epoch", sa.func.clock_timestamp() - sa.func.pg_last_xact_replay_timestamp())

    def vitals(self, tables: Tables) -> Mapping[str, sa.Executable]:
        """The statistics views, as far as the login may read them."""
        own = {
            "names": [table.name for table in tables.metadata.sorted_tables],
            "schema": tables.metadata.schema,
        }
        return {
            "version": sa.text("SELECT current_setting('server_version')"),
            "oldest": sa.text(_OLDEST),
            "connections": sa.text(_CONNECTIONS),
            "bloat": sa.text(_OWN + _DEAD).bindparams(**own),
            "tables": sa.text(_OWN + _SIZES).bindparams(**own),
        }

    async def fetch(self, connection: Any, sql: str, arguments: Any) -> list[Any]:
        """All rows are at the client after the execution.

        psycopg would read long statements again at each execution, and convert each item of an array by itself.
        """
        statements: LoopStatements | None = getattr(connection, "statements", None)
        if statements is not None and not connection.pgconn.pipeline_status:
            numbered, names, _ = _numbered(sql)
            return await statements.run(numbered, _values(names, arguments))
        cursor, returns = await self._send(connection, sql, arguments)
        if connection.pgconn.pipeline_status:  # results arrive only on request
            return await cursor.fetchall() if returns else []
        # `description` would build an object for each column.
        rows: list[Any] = [] if cursor.rownumber is None else await cursor.fetchall()
        await cursor.close()
        return rows

    async def fetch_all(self, connection: Any, statements: Sequence[tuple[str, Any]]) -> list[list[Any]]:
        """In a pipeline, send all of them before the first result is awaited."""
        own: LoopStatements | None = getattr(connection, "statements", None)
        if own is not None and not connection.pgconn.pipeline_status:
            each = [(_numbered(sql), arguments) for sql, arguments in statements]
            return await own.run_all([(numbered, _values(names, values)) for (numbered, names, _), values in each])
        if connection.pgconn.pipeline_status:
            sent = [await self._send(connection, *statement) for statement in statements]
            return [await cursor.fetchall() if returns else [] for cursor, returns in sent]
        return [await self.fetch(connection, *statement) for statement in statements]

    async def _send(self, connection: Any, sql: str, arguments: Any) -> tuple[Any, bool]:
        """Execute a statement; return the cursor, and if the statement has rows."""
        from psycopg import AsyncRawCursor

        numbered, names, returns = _numbered(sql)
        cursor, parameters = AsyncRawCursor(connection), _values(names, arguments)
        if (round_trips := getattr(connection, "round_trips", None)) is not None:
            await round_trips.execute(partial(cursor.execute, numbered, parameters), cursor)
        else:
            await cursor.execute(numbered, parameters)
        return cursor, returns

    @asynccontextmanager
    async def whole(self, connection: Any) -> AsyncIterator[None]:
        """A transaction whose BEGIN travels with its first statement."""
        from psycopg import Pipeline

        if (statements := getattr(connection, "statements", None)) is not None:
            async with statements.whole():
                yield
            return
        async with connection.pipeline() if Pipeline.is_supported() else nullcontext(), connection.transaction():
            yield

    def commit_next(self, connection: Any) -> bool:
        """Only LoopStatements can do it."""
        if (statements := getattr(connection, "statements", None)) is None:
            return False
        statements.commit_next()
        return True

    async def await_locks(self, connection: Any, sql: str, arguments: Any, timeout: str) -> bool:
        """Set the timeout and execute the statement after a savepoint."""
        try:
            async with connection.transaction():
                await self.fetch(connection, LOCK_TIMEOUT, {"timeout": timeout})
                await self.fetch(connection, sql, arguments)
        except Exception as error:
            if not is_transient(error):
                raise
            return False
        return True

    def keep_plans_in_thread(self, connection: Any) -> bool:
        """The blocking form of `keep_plans`."""
        direct = bool(connection.execute(KEEP_PLANS, (connection.info.backend_pid,)).fetchall())
        if direct:
            connection.prepare_threshold = PREPARE_AFTER
        return direct

    async def keep_plans(self, connection: Any) -> bool:
        """Prepare statements from their second execution, with one plan for all parameters."""
        cursor = await connection.execute(KEEP_PLANS, (connection.info.backend_pid,))
        if direct := bool(await cursor.fetchall()):
            from runner.db.loop_statements import LoopStatements

            connection.prepare_threshold = PREPARE_AFTER
            connection.statements = LoopStatements(connection, PREPARE_AFTER)
        return direct

    def along_indexes(self) -> str | None:
        """Disable bitmap and sequential scans until the transaction ends: they have no order.

        With outdated statistics a planner would collect all rows and sort them for each page.
        """
        # The costs of the disabled scans would trigger a compilation, which takes seconds.
        return ALONG_INDEXES

    def pause_limit(self) -> sa.ColumnElement[Any]:
        """A setting that ends with the transaction, so that poolers may share the session."""
        limit = f"'{PAUSE_SECONDS * 1000:.0f}ms'"
        return sa.literal_column(f"set_config('idle_in_transaction_session_timeout', {limit}, true)", sa.Text)

    def lock_limit(self, limit: str) -> sa.ColumnElement[bool]:
        """A subquery without columns of the statement runs once, before its first row."""
        setting = sa.select(sa.func.set_config("lock_timeout", sa.literal_column(f"'{limit}'"), sa.true()))
        return setting.scalar_subquery().is_not(None)

    def readers_ended(self, table: sa.Table, seconds: float) -> sa.Executable | None:
        """A lock against readers: a statement locks its tables before it takes its snapshot."""
        statement = f"""
            DO $$ BEGIN
                SET LOCAL lock_timeout = {int(seconds * 1000)};
                LOCK TABLE {full_name(table)} IN ACCESS EXCLUSIVE MODE;
                SET LOCAL lock_timeout TO DEFAULT;
            EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN NULL;
            END $$"""
        return sa.text(statement)

    def order_lock(self, table: sa.Table) -> sa.Executable | None:
        """The lock that waits for the commits of tasks with an order key; see runner.db.schema.partitions."""
        oid = f"CAST(CAST({name_literal(table)} AS regclass) AS oid)::integer"
        return sa.select(sa.literal_column(f"pg_advisory_xact_lock({ORDER_SPACE}, {oid})"))

    def readable_time(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return NULL for values that Python cannot represent: infinity and years beyond its range."""
        return sa.case((moment.between(EARLIEST, LATEST), moment))


PARAMETER = re.compile(r"%\((\w+)\)[sb]|%%")
"""A parameter of psycopg, or a percent sign."""


@lru_cache
def _numbered(sql: str) -> tuple[str, tuple[str, ...], bool]:
    """Return a statement with the parameters of the server, `$1`, their names in this order, and if it has rows."""
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"${names.setdefault(match[1], len(names) + 1)}" if match[1] else "%"

    returns = not sql.startswith(("INSERT", "UPDATE", "DELETE")) or "RETURNING" in sql
    return PARAMETER.sub(number, sql), tuple(names), returns


def _values(names: Iterable[str], arguments: Mapping[str, Any]) -> list[Any]:
    """The parameters of a statement in their order, with lists as arrays."""
    values = [arguments[name] for name in names]
    return [ArrayText(array_text(value)) if type(value) is list else value for value in values]


def array_text(items: Sequence[Any]) -> str:
    """Return a list of numbers, texts, times and None in PostgreSQL's form of an array.

    Source: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    """
    if len(items) == 1:  # the arrays of a small batch
        return f"{{{items[0]!r}}}" if type(items[0]) is int else f"{{{_item_text(items[0])}}}"
    kinds = set(map(type, items))
    if kinds <= {int, float}:
        return f"{{{','.join(map(repr, items))}}}"
    if kinds == {str} and (joined := '","'.join(items)).count('"') == 2 * (len(items) - 1) and "\\" not in joined:
        return f'{{"{joined}"}}'
    return f"{{{','.join(map(_item_text, items))}}}"


def _item_text(item: Any) -> str:
    if item is None:
        return "NULL"
    text = str(item)
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _array(kind: Any) -> Any:
    from sqlalchemy.dialects.postgresql import ARRAY

    return ARRAY(kind)


def channel(tables: Tables, suffix: str = "") -> str:
    """Return the name of a NOTIFY channel of an installation; a name that is too long for a channel is hashed.

    Args:
        suffix: the end of the name; without one it is the channel of submits.
    """
    name = f"{tables.metadata.schema or ''}{tables.prefix}task{suffix}"
    return name if len(name.encode()) < MAX_NAME else f"task_{sha256(name.encode()).hexdigest()[:32]}"


def quoted(name: str) -> str:
    """Return an identifier in quotes."""
    return '"' + name.replace('"', '""') + '"'
