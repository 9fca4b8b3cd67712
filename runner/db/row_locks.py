"""row_locks: the sessions of PostgreSQL that hold locks of rows or of whole tables."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import sqlalchemy as sa

from runner.db.errors import place_of
from runner.db.schema.partitions import full_name
from runner.db.transaction import Transaction
from runner.model.stuck_row import BlockingSession, HeldLock, RowPlace

MOST = 20
"""Maximum number of rows per call."""

LONGEST_STATEMENT = 80
"""Maximum number of characters of the start of a statement."""

LOOK_LIMIT = "500ms"
"""Longest wait for a lock of a look for locks: a session may wait for a lock of the whole table."""

_LITERAL = re.compile(r"(?:[eE]?'(?:[^'\\]|''|\\.)*(?:'|$))|(?:\$\w*\$.*)", re.DOTALL)
"""A text in a statement, which may be a secret. The server cuts long statements, so its end may be missing."""

_SESSION = """a.pid, a.application_name, a.usename, a.state,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8, a.query, p.gid"""
_QUERY = f"""
SELECT {{key}}, {_SESSION}
FROM {{rows}} JOIN pg_locks l ON l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() AND {{held}}
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = l.transactionid
"""  # noqa: S608 - constants
_OF_TRANSACTION = "l.locktype = 'transactionid' AND l.transactionid ="
_MODES = "('RowShareLock', 'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
_TABLE_MODES = "('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')"
"""Locks of a whole table that refuse changes of its rows; CREATE INDEX takes the first one."""

_OWN = """
WITH named AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = ANY(:names)
)
SELECT named.oid, named.oid AS root FROM named UNION ALL
SELECT i.inhrelid, i.inhparent FROM named JOIN pg_inherits i ON i.inhparent = named.oid
"""
"""The tables and their partitions, from catalogs alone: pg_partition_tree waits for a lock of the table."""

_TABLES = f"""
WITH own AS MATERIALIZED ({_OWN})
SELECT c.relname::text, l.mode, {_SESSION}
FROM own JOIN pg_locks l ON l.relation = own.oid AND l.locktype = 'relation' AND l.granted
    AND (:weak OR l.mode IN {_TABLE_MODES}) AND l.pid IS DISTINCT FROM pg_backend_pid()
JOIN pg_class c ON c.oid = own.oid
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid'
LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
ORDER BY own.oid = own.root DESC, coalesce(a.xact_start, p.prepared) LIMIT {MOST}
"""  # noqa: S608 - constants

# A process that waits for a row first locks its address. Others that wait for the row wait for that lock.
_WAITERS = f"""
WITH RECURSIVE waiter AS MATERIALIZED (
    SELECT DISTINCT ON (l.relation, l.page, l.tuple) l.pid, l.relation, l.page, l.tuple
    FROM pg_locks l JOIN pg_stat_activity w ON w.pid = l.pid AND w.wait_event_type = 'Lock'
    WHERE l.locktype IN ('relation', 'tuple') AND (NOT l.granted OR l.locktype = 'tuple') AND {{of_pid}}
    ORDER BY l.relation, l.page, l.tuple, l.granted DESC LIMIT {MOST}
), chain AS (
    SELECT pid AS waiter, pid, 0 AS depth FROM waiter
    UNION
    SELECT chain.waiter, blocker.pid, depth + 1
    FROM chain JOIN LATERAL unnest(pg_blocking_pids(chain.pid)) AS blocker (pid) ON true
    WHERE depth < 5 AND chain.pid <> 0
)
SELECT w.relation::regclass::text, '(' || w.page || ',' || w.tuple || ')', {_SESSION}
FROM waiter w JOIN chain c ON c.waiter = w.pid AND c.depth > 0
LEFT JOIN pg_stat_activity a ON a.pid = c.pid
LEFT JOIN pg_prepared_xacts p ON c.pid = 0
WHERE c.pid = 0 OR cardinality(pg_blocking_pids(c.pid)) = 0
ORDER BY coalesce(a.xact_start, p.prepared)
"""  # noqa: S608 - constants
WAITS_OF = _WAITERS.format(of_pid="l.pid = %s")
"""The locks that one process waits for, with the sessions that hold them; for a cursor of psycopg."""

_KEY = """
SELECT string_agg(quote_ident(attname) || '::text', ', ' ORDER BY position)
FROM pg_index i JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS part (number, position) ON true
JOIN pg_attribute ON attrelid = i.indrelid AND attnum = part.number
WHERE i.indisprimary AND i.indrelid = CAST({name} AS regclass)
"""
KEY = _KEY.format(name="%s")
"""The columns of the primary key of a table as texts; for a cursor of psycopg."""

BY_ADDRESS = "SELECT concat_ws(', ', {columns}) FROM {table} WHERE ctid = CAST({address} AS tid)"


def _direct(table: str, key: str) -> str:
    """The header of a row names the transaction that locks or changes it, in xmax."""
    return _QUERY.format(key=f"t.{key}", rows=f"{table} t", held=f"{_OF_TRANSACTION} t.xmax AND t.{key} = ANY(:keys)")


def _numbered(table: str, key: str) -> str:
    """The rows whose xmax may be the number of several transactions: such a number has been given to some."""
    return f"SELECT t.{key} FROM {table} t WHERE t.{key} = ANY(:keys) AND t.xmax <> 0 AND mxid_age(t.xmax) > 0"  # noqa: S608 - constants


def _of_several(table: str, key: str) -> str:
    """Several transactions together have a number of their own, which only the server resolves."""
    rows = f"{table} t JOIN LATERAL pg_get_multixact_members(t.xmax) m ON t.{key} = :key"
    return _QUERY.format(key=f"t.{key}", rows=rows, held=f"{_OF_TRANSACTION} m.xid")


def _probable() -> str:
    """A savepoint that was released is not in pg_locks: then the oldest session that locks rows of the table."""
    rows = "(SELECT CAST(:name AS regclass) AS oid) t"
    query = _QUERY.format(key="CAST(NULL AS bigint)", rows=rows, held=f"l.relation = t.oid AND l.mode IN {_MODES}")
    return f"{query} WHERE a.application_name NOT IN ('runner', 'tasktui') ORDER BY a.xact_start LIMIT 1"


async def row_locks(tx: Transaction, tasks: Sequence[int]) -> dict[int, BlockingSession]:
    """Find the session that holds the lock of each row of a task that another transaction locks or changes.

    Args:
        tx: an open transaction; on PostgreSQL a few cheap statements are executed, none on other databases.
        tasks: ids of tasks that are known to be locked; only the first MOST are looked up.

    Returns:
        One session by task id; the oldest one if several hold the lock. A login without the right to see the sessions
        of others gets their pid, application and user.
    """
    ids = list(tasks)[:MOST]
    sessions = await locks_of(tx, tx.tables.task.c.id, ids)
    if len(sessions) < len(ids) and tx.dialect.row_locks:
        rows = await tx.rows(sa.text(_probable()), {"name": full_name(tx.tables.task)})
        probable = [_session(row[1:], certain=False) for row in rows]
        sessions |= {task: probable[0] for task in ids if probable and task not in sessions}
    return sessions


async def locks_of(tx: Transaction, column: sa.Column[Any], keys: Sequence[Any]) -> dict[Any, BlockingSession]:
    """Find the sessions that certainly lock rows of any table.

    Args:
        tx: as for `row_locks`.
        column: a column whose value identifies a row.
        keys: values of rows; rows without a lock are left out.
    """
    if not keys or not tx.dialect.row_locks:
        return {}
    table, key = full_name(column.table), column.name
    kind = sa.Text if isinstance(keys[0], str) else sa.BigInteger
    looks = (_direct(table, key), _numbered(table, key))
    texts = (sa.text(each).bindparams(sa.bindparam("keys", list(keys), sa.ARRAY(kind))) for each in looks)
    rows, numbered = await tx.gather(*map(tx.rows, texts))
    sessions = _oldest(rows)
    for (each,) in numbered if len(keys) <= MOST else ():
        if each not in sessions:
            sessions |= await _several(tx, table, key, each)
    return sessions


async def _several(tx: Transaction, table: str, column: str, key: Any) -> dict[Any, BlockingSession]:
    """The oldest of several transactions that lock a row together; none if only one does."""
    with suppress(sa.exc.DBAPIError):  # the server raises for a number that is not one of several transactions
        async with tx.connection.begin_nested():
            return _oldest(await tx.rows(sa.text(_of_several(table, column)), {"key": key}))
    return {}


async def table_locks(tx: Transaction, *, weak: bool = False) -> list[HeldLock]:
    """Find the sessions that lock whole tables of this installation, or partitions of them, against changes.

    Args:
        tx: an open transaction; it reads no table, so that it never waits for one.
        weak: also locks that refuse no change, such as the locks of a long query, for which a migration waits.

    Returns:
        The locks, those of whole tables first; none on a database without row locks.
    """
    if not tx.dialect.row_locks:
        return []
    rows = await tx.rows(_own(tx, _TABLES).bindparams(weak=weak))
    locks = [HeldLock(table, "", _session(session), mode) for table, mode, *session in rows]
    return list({(lock.table, lock.session.pid): lock for lock in reversed(locks)}.values())[::-1]


async def awaited_locks(tx: Transaction) -> list[HeldLock]:
    """Find the locks of rows and tables that any session waits for at this moment, with the sessions that hold them.

    Args:
        tx: an open transaction; a wait for a table ends after LOOK_LIMIT.
    """
    if not tx.dialect.row_locks:
        return []
    of_own = f"l.relation IN (SELECT oid FROM ({_OWN}) own)"  # noqa: S608 - constants
    locks = []
    for table, address, *session in await tx.rows(_own(tx, _WAITERS.format(of_pid=of_own))):
        key = await key_at(tx, RowPlace(table, address)) if address else ""
        locks.append(HeldLock(table, key, _session(session)))
    return list({(lock.table, lock.key): lock for lock in reversed(locks)}.values())[::-1]


async def registry_locks(tx: Transaction) -> list[HeldLock]:
    """Find the locks of rows of the registries: handlers, queues, runners and schedules."""
    locks = []
    for column in _registered(tx):
        keys = [row[0] for row in await tx.rows(sa.select(column).limit(MOST_REGISTERED))]
        sessions = await locks_of(tx, column, keys)
        locks += [HeldLock(column.table.name, str(key), session) for key, session in sessions.items()]
    return locks


async def without_weak_locks(tx: Transaction, locks: Sequence[HeldLock]) -> list[HeldLock]:
    """Leave out the locks of registry rows that block no change, such as those of foreign keys to them.

    Args:
        tx: a writing transaction; it locks those rows until its end.
    """
    weak = set[tuple[str, str]]()
    for column in _registered(tx):
        table, key = column.table.name, sa.cast(column, sa.Text)
        if keys := [lock.key for lock in locks if lock.table == table]:
            rows = sa.select(key).where(key.in_(keys)).with_for_update(key_share=True, skip_locked=True)
            weak |= {(table, row[0]) for row in await tx.rows(rows)}
    return [lock for lock in locks if (lock.table, lock.key) not in weak]


def _registered(tx: Transaction) -> tuple[sa.Column[Any], ...]:
    """The columns that identify the rows of the registries."""
    tables = tx.tables
    return tables.handler.c.name, tables.queue.c.name, tables.runner.c.id, tables.schedule.c.id


MOST_REGISTERED = 1_000
"""Maximum number of rows of a registry that are checked."""


async def key_at(tx: Transaction, place: RowPlace) -> str:
    """Return the primary key of a row as text; empty if it has moved, or if the table cannot be read now."""
    with suppress(sa.exc.DBAPIError):
        async with tx.connection.begin_nested():
            await tx.execute(sa.select(sa.func.set_config("lock_timeout", LOOK_LIMIT, True)))
            columns = await tx.scalar(sa.text(_KEY.format(name="CAST(:table AS text)")), {"table": place.table})
            statement = BY_ADDRESS.format(columns=columns, table=place.table, address=":address")
            return str(await tx.scalar(sa.text(statement), {"address": place.address}) or "") if columns else ""
    return ""


async def lock_at(tx: Transaction, place: RowPlace | None) -> HeldLock | None:
    """Find the session that holds the lock for which a statement waited in vain.

    Args:
        tx: an open transaction.
        place: the row that the error of the statement names; None if it waited for a lock of a whole table.
    """
    if place is None:
        return next(iter(await table_locks(tx) or await table_locks(tx, weak=True)), None)
    schema = tx.tables.metadata.schema
    prefix = f'"{schema}".' if schema else ""
    place = RowPlace(f'{prefix}"{place.table}"', place.address)
    key = await key_at(tx, place) or place.address  # a table of a user may have no primary key
    here = "t.ctid = CAST(:a AS tid)"
    several = f"{place.table} t JOIN LATERAL pg_get_multixact_members(t.xmax) m ON {here}"
    sources = ((f"{place.table} t", f"t.xmax AND {here}"), (several, "m.xid"))
    for rows_of, held in sources:
        query = _QUERY.format(key="t.xmax", rows=rows_of, held=f"{_OF_TRANSACTION} {held}")
        with suppress(sa.exc.DBAPIError):
            async with tx.connection.begin_nested():
                rows = await tx.rows(sa.text(query), {"a": place.address})
                if sessions := sorted((_session(row[1:]) for row in rows), key=lambda each: -(each.age or 0.0)):
                    return HeldLock(place.table.replace('"', ""), key, sessions[0])
    return None


async def lock_of(tx: Transaction, error: BaseException) -> HeldLock | None:
    """Find the session that holds the lock for which the statement of an error waited in vain."""
    return await lock_at(tx, place_of(error)) if tx.dialect.row_locks else None


def _own(tx: Transaction, query: str) -> sa.TextClause:
    """A query with the names of the tables."""
    names = [table.name for table in tx.tables.metadata.sorted_tables]
    bound = partial(sa.bindparam, type_=sa.ARRAY(sa.Text))
    return sa.text(query).bindparams(bound("names", names), schema=tx.tables.metadata.schema)


def _oldest(rows: Iterable[Any]) -> dict[Any, BlockingSession]:
    sessions: dict[Any, BlockingSession] = {}
    for key, *session in sorted(rows, key=lambda row: -(row[5] or 0.0)):
        sessions.setdefault(key, _session(session))
    return sessions


def first_wait(rows: Sequence[Any], key: str) -> HeldLock | None:
    """The lock that the rows of WAITS_OF describe; None without rows."""
    for table, _, *session in rows:
        return HeldLock(table, key, _session(session))
    return None


def _session(row: Sequence[Any], *, certain: bool = True) -> BlockingSession:
    pid, application, user, state, age, query, prepared = row
    hidden = query == "<insufficient privilege>"
    return BlockingSession(
        pid,
        _text(application),
        _text(user),
        _text(state),
        None if age is None else float(age),
        "" if hidden else statement_start(_text(query)),
        _text(prepared),
        certain,
    )


def _text(value: Any) -> str:
    return "" if value is None else value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def statement_start(query: str) -> str:
    """The start of a statement in one line, with an ellipsis in the place of each text in it."""
    line = " ".join(_LITERAL.sub("'…'", query).split())
    return line if len(line) <= LONGEST_STATEMENT else f"{line[: LONGEST_STATEMENT - 1]}…"
