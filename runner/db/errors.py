"""Translation of driver errors: unavailable, refused, or transient."""

import random
import sqlite3
import time
from typing import Any, Literal, NoReturn

import sqlalchemy as sa

from runner.errors import DatabaseLocked, DatabaseRefused, DatabaseUnavailable, DiskFull, StoreError, ValueRejected

MAX_ATTEMPTS = 8
"""Attempts of a transaction that fails because of a concurrent one: lock, deadlock, serialization."""

AWAY_STATES = ("08", "25006", "25P03", "53", "57P", "58", "XX")
"""SQLSTATE classes of an unavailable server: connection, read-only standby, end of a transaction that paused,
resources, shutdown, system, internal."""

CONTENT_STATES = ("22", "23")
"""SQLSTATE classes of rejected values: data, integrity."""

UNKNOWN_STATES = ("08", "40003")
"""SQLSTATE classes of a statement that may have been executed: broken connection, completion unknown."""

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
    "permission denied for": "Run `runner migrate --roles` for the required roles",
    "database disk image is malformed": _DAMAGED,
    "file is not a database": _DAMAGED,
    "readonly database": "Give this user the right to write the file and its folder",
    "unable to open database file": "Its folder must exist, and this user needs the right to write the file and folder",
    "no such table": INCOMPLETE,
    "disk I/O error": "Check its disk, the permissions of its folder and the quota of the user",
}
"""Advice by a part of the error message."""


def is_transient(error: BaseException) -> bool:
    """Return True if the transaction lost against another one and a retry may succeed."""
    original = _original(error)
    state = _sqlstate(original)
    if state == UNIQUE_VIOLATION:
        return (getattr(getattr(original, "diag", None), "constraint_name", None) or "").endswith(ONE_RUNS)
    return state in AGAIN_STATES + LOST_STATES if state else any(sign in str(original) for sign in SQLITE_AGAIN)


def is_locked(error: sqlite3.OperationalError) -> bool:
    """Return True if another writer of SQLite held the lock, so that the statement changed nothing."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_lock_timeout(error: BaseException) -> bool:
    """Return True if another transaction held a row for longer than the statement may wait."""
    return _sqlstate(_original(error)) == LOCK_TIMEOUT


def retries(error: BaseException, attempt: int, end: float) -> bool:
    """Return True if a transaction that failed because of a concurrent one is repeated.

    Args:
        error: the error of the transaction.
        attempt: number of the attempt that failed, from 1.
        end: value of `time.monotonic()` after which the error goes to the caller.
    """
    return attempt < MAX_ATTEMPTS and time.monotonic() <= end and is_transient(error.__cause__ or error)


def retry_pause(attempt: int) -> float:
    """Return the seconds to wait before a transaction is repeated.

    Args:
        attempt: number of the attempt that failed, from 1.
    """
    return random.uniform(0.0, 0.01 * 2.0**attempt)  # noqa: S311 - jitter, not security


def lost_prepared(error: BaseException) -> bool:
    """Return True if the session does not have the prepared statements of its connection; nothing was executed."""
    return _sqlstate(_original(error)) in LOST_STATES


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
    state = _sqlstate(original) if original is not None else ""
    return bool(state) and not state.startswith(UNKNOWN_STATES)


def translate(error: BaseException, url: str) -> StoreError | None:
    """Translate a driver's error.

    Args:
        error: an exception from SQLAlchemy or a driver.
        url: the database URL without its password.

    Returns:
        DatabaseUnavailable, DatabaseLocked or DiskFull if waiting may help; ValueRejected if a value is the cause;
        DatabaseRefused for other causes (permissions, a missing table); None if the database did not raise the error.
    """
    if not isinstance(error, (sa.exc.SQLAlchemyError, OSError, TimeoutError)) and not _from_driver(error):
        return None
    original = _original(error)
    why = _sentences(_text(original)).rstrip(" .?!") or type(original).__name__  # the message continues after it
    if any(sign in why for sign in SQLITE_AGAIN) and _kinds(original) & {"OperationalError"}:
        return DatabaseLocked(url=url, why=why)
    if _sqlstate(original) == FULL_STATE or (_is_away(error, original) and any(sign in why for sign in FULL)):
        return DiskFull(url=url, why=why)
    if _is_away(error, original):
        return DatabaseUnavailable(url=url, why=why)
    return ValueRejected(why=why) if _is_content(original) else DatabaseRefused(why=why)


def raise_if_final(error: StoreError) -> None:
    """Reject a SQLite file that this user cannot write, or that is damaged, or whose disk is gone: waiting is in vain.

    Other errors of a disk may pass: a quota is raised, or space becomes free.

    Args:
        error: a translated error, raised from that of the driver.

    Raises:
        DatabaseRefused: the file cannot be used.
    """
    original = _original(error.__cause__) if error.__cause__ is not None else None
    code = getattr(original, "sqlite_errorcode", sqlite3.SQLITE_OK)
    # A file that was moved away counts as read-only as well; its programs open the new one.
    if code in (IOERR_CORRUPTFS, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or (
        code & 0xFF == sqlite3.SQLITE_READONLY and code != sqlite3.SQLITE_READONLY_DBMOVED
    ):
        raise DatabaseRefused(why=_GONE if code == IOERR_CORRUPTFS else error.fields["why"]) from error


def raise_translated(error: Exception, url: str, stage: Literal["connect", "statement", "commit"]) -> NoReturn:
    """Raise the translation of a driver's error, or any other error as it is.

    Args:
        error: the error.
        url: the database URL without its password.
        stage: the last step that the transaction began.
    """
    translated = translate(error, url)
    if isinstance(translated, DatabaseUnavailable):
        translated.stage = stage
    if translated is None:
        raise error
    raise translated from error


def _sentences(text: str) -> str:
    """The lines of a message in one. A line that begins with a capital letter is a sentence of its own."""
    joined = ""
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        stop = "." if joined and line[0].isupper() and joined[-1] not in ".:;,?!" else ""
        joined = f"{joined}{stop} {line}"
    return joined.strip()


def _text(original: BaseException) -> str:
    """Return the message of the database without the rejected row or value, which may contain secrets."""
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    text = primary if primary and _is_content(original) else str(original)
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
    state = _sqlstate(original)
    if state:
        return state.startswith(AWAY_STATES)
    if not _kinds(original) & {"OperationalError", "InterfaceError"}:
        return False
    return not type(original).__module__.startswith("sqlite") or any(sign in str(original) for sign in SQLITE_AWAY)


def _is_content(original: BaseException) -> bool:
    state = _sqlstate(original)
    return state.startswith(CONTENT_STATES) if state else type(original).__name__ in ("IntegrityError", "DataError")


def _original(error: BaseException) -> BaseException:
    return getattr(error, "orig", None) or error


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or ""


def _kinds(error: BaseException) -> set[str]:
    """Return the names of the driver's error class and its bases: a connection timeout is an OperationalError."""
    return {kind.__name__ for kind in type(error).__mro__} if _from_driver(error) else set()


def _from_driver(error: Any) -> bool:
    return type(error).__module__.split(".")[0] in ("psycopg", "sqlite3", "aiosqlite")
