"""Translation of driver errors: unavailable, locked, refused, or transient."""

import random
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import sqlalchemy as sa

from runner.db.diagnosis import GRANT_WRITE, file_problem, full_disk
from runner.db.file_identity import writer_of
from runner.errors import (
    DatabaseLocked,
    DatabaseNotOpened,
    DatabaseRefused,
    DatabaseUnavailable,
    DatabaseUnusable,
    DiskFull,
    LoginRefused,
    ReadOnlyDatabase,
    ResourceLimitReached,
    RowLocked,
    Stage,
    StatementTimeout,
    StoreError,
    ValueRejected,
)
from runner.model.stuck_row import RowFault, RowPlace, StuckCause
from runner.resource_limits import few_descriptors, reached_limit

MAX_ATTEMPTS = 8
"""Attempts of a transaction that fails because of a concurrent one: lock, deadlock, serialization."""

AWAY_STATES = ("08", "25006", "25P03", "53", "57P", "58", "XX")
"""SQLSTATE classes of an unavailable server: connection, read-only standby, end of a transaction that paused,
resources, shutdown, system, internal."""

UNAVAILABLE = {"25006": ReadOnlyDatabase, "57014": StatementTimeout}
"""Errors of their own among the states of an unavailable server; the rest is DatabaseUnavailable."""

PAUSED_STATE = "25P03"
"""The server ended a transaction that paused."""

OUTAGE_STATES = ("08", "25006", "53100", "53300", "57P", "58")
"""SQLSTATE classes of an outage that no statement of a handler causes, even if the connection continues."""

CONTENT_STATES = ("22", "23")
"""SQLSTATE classes of rejected values: data, integrity."""

UNKNOWN_STATES = ("08", "40003")
"""SQLSTATE classes of a statement that may have been executed: broken connection, completion unknown."""

STATEMENT_STATES = "42"
"""SQLSTATE class of a statement that probably fails whatever the rows are, such as a missing table or right. With a
context, a trigger raised it for a row."""

ROW_POLICY = "ExecWithCheckOptions"
"""The function of PostgreSQL that checks a row against the policies of row-level security, also of class 42."""

RAISERS = frozenset(
    {
        "exec_stmt_raise",
        "exec_stmt_assert",
        "throw_tcl_error",
        "plperl_croak",
        "PLy_elog",
        "PLy_elog_impl",
        "dblink_res_error",
        "dblink_get_conn",
        "dblink_connstr_check",
        "connect_pg_server",
        "pgfdw_report_error",
        "pgfdw_report_internal",
    }
)
"""The functions of PostgreSQL and its extensions that raise an error with an SQLSTATE of a user or of another server.
It may be any SQLSTATE, such as that of a lost connection."""

SESSION_STATES = ("08", "57P")
"""SQLSTATE classes with which a server ends a session. In a session that continues, a function raised them."""

MACHINE_STATES = ("53", "58", "XX")
"""SQLSTATE classes of a server whose machine is short of something, also if a function passes them on."""

RAISED_ATTEMPTS = 2
"""Attempts of a transaction that fails with the state of a concurrent one because a function raised it."""

LOCK_TIMEOUT = "55P03"

AGAIN_STATES = ("40001", "40P01", LOCK_TIMEOUT)
"""Serialization failure, deadlock, lock not available: a retry may succeed."""

LOST_STATES = ("26000", "42P05")
"""A prepared statement does not exist, or exists already: the session is not the one that prepared it."""

UNIQUE_VIOLATION = "23505"

ONE_RUNS = "_in_order"
"""The end of the name of the unique index that refuses a second running task of an order key. The claim that lost did
not see the one that won; the next one does."""

SQLITE_AGAIN = ("database is locked", "database table is locked")
FULL_STATE = "53100"
FULL = ("disk is full", "No space left on device")

SQLITE = "sqlite:///"
"""Start of the URL of a SQLite file."""

SQLITE_AWAY = ("disk", "unable to open", "readonly database")

INCOMPLETE = "The installation is incomplete: restore a backup of all its tables"
"""Advice for a table that does not exist."""

MISSING_TABLE = "42P01"

IOERR_CORRUPTFS = sqlite3.SQLITE_IOERR | 33 << 8
"""SQLite's code for a disk that fails every read, as one that was removed; constants of `sqlite3` lack it at times."""

_GONE = (
    "disk I/O error: the disk of the file does not answer, or its file system is damaged. Repair and mount it, run "
    "PRAGMA integrity_check on the file, then start the runner again"
)
DAMAGED = "database disk image is malformed", "file is not a database"
"""The messages of SQLite about a file that has no database, or a broken one."""

_DAMAGED = "Stop all programs that use the file, then restore a backup or recover the data: sqlite3 FILE .recover"

_NO_TLS = (
    "For a server on another machine the default is sslmode=verify-full: if this server has no TLS and the network is "
    "trusted, add ?sslmode=disable to the URL or set PGSSLMODE=disable"
)
_NO_CERTIFICATE = (
    "For a server on another machine the default is sslmode=verify-full: add ?sslrootcert=FILE or ?sslrootcert=system "
    "to the URL, or choose another sslmode there or in PGSSLMODE"
)

ADVICE = {
    "but SSL was required": _NO_TLS,
    "root certificate file": _NO_CERTIFICATE,
    "certificate verify failed": _NO_CERTIFICATE,
    "due to statement timeout": "Another transaction may hold a lock, or the query reads too much: retry or narrow it",
    "due to lock timeout": "Another transaction holds the lock of a row: end it, and retry",
    "permission denied for": (
        "This login lacks a right: use one with a role of `runner migrate --roles`, such as task_operator for operators"
    ),
    **dict.fromkeys(DAMAGED, _DAMAGED),
    "no such table": INCOMPLETE,
    "in statement pooling mode": (
        "A pooler in statement mode allows no transactions: set its pool_mode to transaction or session, or connect to "
        "the server itself"
    ),
    "disk I/O error": "Check its disk, the permissions of its folder and the quota of the user",
}
"""Advice by a part of the error message."""


def is_transient(error: BaseException) -> bool:
    """Return True if the transaction lost against another one and a retry may succeed."""
    original = _original(error)
    state = _sqlstate(original)
    if state in LOST_STATES:
        return lost_prepared(error)
    if state == UNIQUE_VIOLATION:
        return (getattr(getattr(original, "diag", None), "constraint_name", None) or "").endswith(ONE_RUNS)
    return state in AGAIN_STATES if state else any(sign in str(original) for sign in SQLITE_AGAIN)


def is_locked(error: sqlite3.OperationalError) -> bool:
    """Return True if another writer of SQLite held the lock, so that the statement changed nothing."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_concurrent(error: BaseException) -> bool:
    """Return True if another transaction is the reason: a lock, a deadlock, or a change of the same rows."""
    return _sqlstate(_original(error)) in AGAIN_STATES


@contextmanager
def locks_refused() -> Iterator[None]:
    """Raise RowLocked for the error of a statement that lost against another transaction, so that it is not repeated.

    Raises:
        RowLocked: a lock was not available.
    """
    try:
        yield
    except Exception as error:
        if not is_concurrent(error) or is_raised(_original(error)):
            raise
        raise RowLocked(why=fact_of(error)) from error


def row_fault(error: BaseException) -> RowFault | None:
    """Return why the database did not change a row; None if it did not answer, so that no row is the reason.

    Args:
        error: the error of a driver or of SQLAlchemy, or its translation.
    """
    original = _driver_error(error)
    state = _sqlstate(original)
    if isinstance(error, RowLocked) or (state in AGAIN_STATES and not is_raised(original)):
        return RowFault(StuckCause.LOCKED, fact_of(original), place=place_of(original))
    if getattr(original, "unavailable", False):
        return None  # this program cancelled the statement: another one locks a table, or the server hangs
    if state:
        if not _is_reported(original) or getattr(error.__cause__ or error, "connection_invalidated", False):
            return None
        diag = getattr(original, "diag", None)
        of_row = getattr(diag, "context", None) or getattr(diag, "source_function", None) in RAISERS | {ROW_POLICY}
        of_statement = state.startswith(STATEMENT_STATES) and not of_row
        is_value = _is_content(original)
        return RowFault(StuckCause.REFUSED, fact_of(original), of_value=is_value, of_statement=of_statement)
    is_row = _is_row_error(original) if isinstance(original, sqlite3.Error) else isinstance(error, DatabaseRefused)
    refused = RowFault(StuckCause.REFUSED, fact_of(original), of_value=_is_content(original))
    return refused if is_row or refused.of_value else None


def session_fault(error: BaseException) -> RowFault | None:
    """Return the fault of a statement or commit with which the server ended the session; None for other errors.

    A restart of the server is the usual reason; a trigger that ends its own session for one row is another.

    Args:
        error: the translation of a driver's error.
    """
    original = _driver_error(error)
    if getattr(error, "stage", "connect") == "connect" or not _has_ended_session(original) or _is_reported(original):
        return None
    severity = getattr(getattr(original, "diag", None), "severity_nonlocalized", None)
    fact = f"{fact_of(original)} (the session ended)"
    return RowFault(StuckCause.REFUSED, fact) if severity in ("FATAL", "PANIC") else None


def part_fault(error: BaseException) -> RowFault | None:
    """Return the fault of a part of a batch that has a row which the database refuses, or which ends the session."""
    return row_fault(error) or session_fault(error)


OUTAGES: dict[type[StoreError], str] = {
    DatabaseLocked: "database locked",
    DiskFull: "disk full",
    ResourceLimitReached: "resource limit reached",
    StatementTimeout: "statement cancelled",
    ReadOnlyDatabase: "database read-only",
}
"""The observed facts of errors that end by themselves."""


def outage(error: StoreError) -> str:
    """Return the observed fact of an error that ends by itself, in a few words."""
    if fact := OUTAGES.get(type(error)):
        return fact
    is_silent = isinstance(error, DatabaseUnavailable) and row_fault(error) is None
    return "database unavailable" if is_silent else "database error"


def is_server_fault(error: BaseException) -> bool:
    """Return True if the SQLSTATE is one of the whole server, although a trigger can raise it too."""
    original = _driver_error(error)
    return _sqlstate(original).startswith(AWAY_STATES) and not is_raised(original)


def is_raised(error: BaseException) -> bool:
    """Return True if a function raised the error while the session continues, such as a trigger of a user.

    Args:
        error: the error of a driver.
    """
    if not _is_reported(error):
        return False
    source = getattr(getattr(error, "diag", None), "source_function", None)
    return source in RAISERS or (source is not None and _sqlstate(error).startswith(SESSION_STATES))


def _is_reported(error: BaseException) -> bool:
    """True if a server reported the error of a statement and the session continues; FATAL ends a session."""
    state, diag = _sqlstate(error), getattr(error, "diag", None)
    severity = getattr(diag, "severity_nonlocalized", None) or getattr(diag, "severity", None)
    of_server = bool(getattr(diag, "source_function", None)) or not state.startswith(UNKNOWN_STATES)
    return severity == "ERROR" and of_server


def _is_row_error(error: sqlite3.Error) -> bool:
    """True for a constraint, a trigger that raises, or a function that fails; not for locks, disks and damage."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, (sqlite3.IntegrityError, sqlite3.DataError))
    return code & 0xFF in (
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_MISMATCH,
    )


def fact_of(error: BaseException) -> str:
    """Return the SQLSTATE or the name of the SQLite error, and the message without values of the row."""
    if isinstance(error, DatabaseRefused):
        return str(error.fields["why"])
    original = _original(error)
    code = _sqlstate(original) or getattr(original, "sqlite_errorname", None) or type(original).__name__
    diag = getattr(original, "diag", None)
    text = f"{code} {_sentences(getattr(diag, 'message_primary', None) or _text(original)).rstrip(' .')}"
    if constraint := getattr(diag, "constraint_name", None):
        return f"{text} (constraint {constraint})"
    place = _FUNCTION.search(getattr(diag, "context", None) or "")
    return f"{text} (function {place[1]})" if place else text


def place_of(error: BaseException) -> RowPlace | None:
    """Return the row for whose lock a statement waited in vain; None if the server did not name it.

    Args:
        error: the error of a driver or of SQLAlchemy, or its translation.
    """
    original = _original(error.__cause__ or error if isinstance(error, StoreError) else error)
    match = _TUPLE.search(getattr(getattr(original, "diag", None), "context", None) or "")
    return RowPlace(match[2], match[1]) if match else None


def is_lock_timeout(error: BaseException) -> bool:
    """Return True if a statement waited for a lock in vain."""
    original = _original(error.__cause__ or error if isinstance(error, StoreError) else error)
    return _sqlstate(original) == LOCK_TIMEOUT


_TUPLE = re.compile(r"""(\(\d+,\d+\))[^()]*?["»«„“]\s?([^"»«„“”]+)""")
"""The address of a row and the name of its table in the context of an error, in any language of the server."""

_FUNCTION = re.compile(r"PL/pgSQL function (\S+?)\(")
"""The function of a trigger in the context of its error; the rest may contain values."""


def retries(error: BaseException, attempt: int, end: float) -> bool:
    """Return True if a transaction that failed because of a concurrent one is repeated.

    Args:
        attempt: number of the attempt that failed, from 1.
        end: value of `time.monotonic()` after which the error goes to the caller.
    """
    if isinstance(error, RowLocked):
        return False  # its caller goes on with the other rows
    cause = error.__cause__ or error
    most = RAISED_ATTEMPTS if is_raised(_original(cause)) else MAX_ATTEMPTS
    return attempt < most and time.monotonic() <= end and is_transient(cause)


def retry_pause(attempt: int) -> float:
    """Return the seconds to wait before a transaction is repeated.

    Args:
        attempt: number of the attempt that failed, from 1.
    """
    return random.uniform(0.0, 0.01 * 2.0**attempt)  # noqa: S311 - jitter, not security


def lost_prepared(error: BaseException) -> bool:
    """Return True if the session does not have the prepared statements of its connection; nothing was executed.

    With a context, a function raised the error.
    """
    original = _original(error)
    return _sqlstate(original) in LOST_STATES and not getattr(getattr(original, "diag", None), "context", None)


def is_answered(error: BaseException | None) -> bool:
    """Return True if the database reported the error of a statement or commit, which therefore changed nothing.

    Args:
        error: the error of a driver or of SQLAlchemy; None if it is unknown.
    """
    original = _original(error) if error is not None else None
    if isinstance(original, sqlite3.Error):
        # After an error of the disk a commit may be in the log, or not; it is not if its last write has failed.
        code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
        return code == sqlite3.SQLITE_IOERR_WRITE or code & 0xFF != sqlite3.SQLITE_IOERR
    return original is not None and (_is_reported(original) or _has_ended_session(original))


def _has_ended_session(error: BaseException) -> bool:
    """True if a server reported the error with which it ended the session, unless a commit may have succeeded."""
    return bool(_sqlstate(error)) and not _sqlstate(error).startswith(UNKNOWN_STATES)


def translate(error: BaseException, url: str) -> StoreError | None:
    """Translate a driver's error.

    Args:
        error: an exception from SQLAlchemy or a driver.
        url: the database URL without its password.

    Returns:
        DatabaseUnavailable, DatabaseLocked or DiskFull if waiting may help; ValueRejected if a value is the cause;
        DatabaseRefused for other causes (permissions, a missing table); None if the database did not raise the error.
    """
    if isinstance(error, (RuntimeError, OSError)) and (limit := reached_limit(error)):
        return ResourceLimitReached(url=url, why=limit)
    if not isinstance(error, (sa.exc.SQLAlchemyError, OSError, TimeoutError)) and not _from_driver(error):
        return None
    original = _original(error)
    why = _sentences(_text(original)).rstrip(" .?!") or type(original).__name__  # the message continues after it
    if (fact := next((each for each in DAMAGED if each in why), None)) and url.startswith(SQLITE):
        why = why.replace(fact, f"{fact} ({url.removeprefix(SQLITE)})", 1)
    if any(sign in why for sign in SQLITE_AGAIN) and _kinds(original) & {"OperationalError"}:
        holder = writer_of(url.removeprefix(SQLITE))
        return DatabaseLocked(url=url, why=f"{why}, held by {holder}" if holder else why)
    if _sqlstate(original) == FULL_STATE or (_is_away(error, original) and any(sign in why for sign in FULL)):
        return DiskFull(url=url, why=why)
    if _is_away(error, original):
        return _unavailable(original, url, why)
    return ValueRejected(why=why) if _is_content(original) and NOT_INSERTED not in why else DatabaseRefused(why=why)


def outage_of_statement(error: BaseException, url: str, *, is_broken: bool = False) -> DatabaseUnavailable | None:
    """Translate the error of a handler's statement if the database is the cause, and not the statement.

    Args:
        error: an exception from SQLAlchemy or a driver.
        url: the database URL without its password.
        is_broken: True if the connection is lost.

    Returns:
        None if the statement or the handler is the cause: a transaction that paused for too long, or an internal error
        of an extension after which the connection continues.
    """
    translated = translate(error, url)
    if not isinstance(translated, DatabaseUnavailable):
        return None
    original = _original(error)
    state, is_interface = _sqlstate(original), "InterfaceError" in _kinds(original)
    if type(original).__module__.startswith(("sqlite", "aiosqlite")):
        return translated
    if state.startswith(PAUSED_STATE) or not (is_broken or state.startswith(OUTAGE_STATES) or not state):
        return None
    return None if is_interface and not (is_broken or state) else translated


def _unavailable(original: BaseException, url: str, why: str) -> DatabaseUnavailable:
    state = _sqlstate(original)
    # SQLite reports a full disk as an error of the disk when it cannot extend the index of its log.
    if "disk I/O error" in why and url.startswith(SQLITE) and (fact := full_disk(url.removeprefix(SQLITE))):
        return DiskFull(url=url, why=f"disk I/O error, {fact}")
    if diagnosis := _diagnosis(original, url):
        return DatabaseNotOpened(url=url, why=f"{str(original).rstrip(' .')}: {diagnosis}")
    if not state and (limit := few_descriptors()):  # the drivers hide errno
        return ResourceLimitReached(url=url, why=f"{why}. {limit}")
    if any(sign in why for sign in NO_LOGIN):
        return LoginRefused(url=url, why=why)
    remedy = SET_OFF if SETTING in why else FIND_PRIMARY
    return UNAVAILABLE.get(state, DatabaseUnavailable)(url=url, why=why, remedy=remedy)


SETTING = "default_transaction_read_only"
SET_OFF = f"Set {SETTING} to off for this database or login, or connect to its primary"
FIND_PRIMARY = (
    "Connect to its primary, or list all hosts in the URL (postgresql://first,second/database): the one that accepts "
    "changes is found"
)
"""The remedies of a database that accepts no changes: of a setting, and of a standby."""


NO_LOGIN = ("no password supplied", "password authentication failed")
"""Messages of libpq and of servers about a password that is missing or wrong."""


NOT_OPENED = ("unable to open database file", "readonly database")
"""SQLite's messages for a file that it may not open or write, with one cause of many."""

UNKNOWN_CAUSE = f"no cause was found. Probably a right is missing. {GRANT_WRITE}"


def _diagnosis(original: BaseException, url: str) -> str:
    """Return the cause of an error of a SQLite file that its message does not name; empty for others."""
    text, path = str(original), url.removeprefix(SQLITE)
    if path == url or not _from_driver(original) or not any(sign in text for sign in NOT_OPENED) or few_descriptors():
        return ""
    moved = getattr(original, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_DBMOVED
    return "" if moved else file_problem(path) or UNKNOWN_CAUSE


def raise_if_final(error: StoreError) -> None:
    """Reject a SQLite file that cannot be opened or written, or is damaged, or whose disk is gone: waiting is in vain.

    A file that cannot be opened for no known reason may be usable soon. Other errors of a disk may pass: a quota is
    raised, or space becomes free.

    Args:
        error: a translated error, raised from that of the driver.

    Raises:
        DatabaseUnusable: the file cannot be read or written.
    """
    original = _original(error.__cause__) if error.__cause__ is not None else None
    code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_OK)
    # A file that was moved away counts as read-only as well; its programs open the new one.
    is_moved = code == sqlite3.SQLITE_READONLY_DBMOVED
    is_read_only = code & 0xFF == sqlite3.SQLITE_READONLY and not is_moved
    is_closed = isinstance(error, DatabaseNotOpened) and UNKNOWN_CAUSE not in error.fields["why"]
    if is_read_only or is_closed or code in (IOERR_CORRUPTFS, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        why = _GONE if code == IOERR_CORRUPTFS else error.fields["why"]
        raise DatabaseUnusable(url=error.fields.get("url", "file"), why=why) from error


def raise_translated(error: Exception, url: str, stage: Stage) -> NoReturn:
    """Raise the translation of a driver's error, or any other error as it is.

    Args:
        url: the database URL without its password.
        stage: the last step that the transaction began.
    """
    translated = translate(error, url)
    if isinstance(translated, DatabaseUnavailable):
        translated.stage = stage
    if translated is None:
        raise error
    raise translated from error


NOT_INSERTED = (
    " submitted tasks not inserted, without an error: a trigger BEFORE INSERT on the table of tasks probably skips "
    "them (RETURN NULL, or RAISE(IGNORE) on SQLite). No task of this submit exists. Change the trigger or the task"
)
"""The reason of a submit that a trigger has skipped, after the numbers of tasks."""

_SKIPPED = re.compile(rf'"(\d+ of \d+{re.escape(NOT_INSERTED)})"')
"""The reason in the error of a statement that inserts all tasks or none."""


def _sentences(text: str) -> str:
    """The lines of a message in one. A line that begins with a capital letter is a sentence of its own."""
    joined = ""
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        stop = "." if joined and line[0].isupper() and joined[-1] not in ".:;,?!" else ""
        joined = f"{joined}{stop} {line}"
    return joined.strip()


_AROUND_FACT = re.compile(r"\n\t[^\n?]+\?|\bconnection (?:failed|is bad): (?=connection to )")
"""libpq's question whether the server runs, in any language, and the beginning by psycopg that its message repeats."""


def _text(original: BaseException) -> str:
    """Return the message of the database without the rejected row or value, which may contain secrets."""
    if skipped := _SKIPPED.search(str(original)):
        return skipped[1]
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    text = primary if primary and _is_content(original) else _AROUND_FACT.sub("", str(original))
    if _sqlstate(original) == MISSING_TABLE:
        text, advice = primary or text, INCOMPLETE  # the language of the message is a setting of the server
    else:
        advice = next((words for sign, words in ADVICE.items() if sign in text), "")
    return f"{text.rstrip(' .')}. {advice}" if advice else text


def _is_away(error: BaseException, original: BaseException) -> bool:
    if isinstance(original, (OSError, TimeoutError, sa.exc.TimeoutError)):
        return True
    if isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated:
        return True
    if getattr(original, "unavailable", False):
        return True
    state = _sqlstate(original)
    if state:
        return state.startswith(AWAY_STATES) and (state.startswith(MACHINE_STATES) or not is_raised(original))
    if not _kinds(original) & {"OperationalError", "InterfaceError"}:
        return False
    return not type(original).__module__.startswith("sqlite") or any(sign in str(original) for sign in SQLITE_AWAY)


def _is_content(original: BaseException) -> bool:
    if state := _sqlstate(original):
        return state.startswith(CONTENT_STATES)
    if getattr(original, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        return False  # RAISE in a trigger, as P0001 of a server: it may accept the same values later
    return type(original).__name__ in ("IntegrityError", "DataError")


def _original(error: BaseException) -> BaseException:
    return getattr(error, "orig", None) or error


def _driver_error(error: BaseException) -> BaseException:
    """Return the error of the driver beneath one of SQLAlchemy or its translation."""
    return _original(error.__cause__ or error if isinstance(error, StoreError) else error)


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def _kinds(error: BaseException) -> set[str]:
    """Return the names of the driver's error class and its bases: a connection timeout is an OperationalError."""
    return {kind.__name__ for kind in type(error).__mro__} if _from_driver(error) else set()


def _from_driver(error: Any) -> bool:
    kinds = type(error).__mro__  # runner.db.server_connection has errors of its own
    return any(kind.__module__.split(".")[0] in ("psycopg", "sqlite3", "aiosqlite") for kind in kinds)
