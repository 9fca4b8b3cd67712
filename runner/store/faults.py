"""What a database driver's error means to us: away, refused, or worth another try."""

from typing import Any

import sqlalchemy as sa

from runner.errors import ContentRefused, DatabaseAway, DatabaseRefused, StoreError

AWAY_STATES = ("08", "25006", "53", "57P", "58", "XX")
"""SQLSTATE classes that say the server is not there for us now: connection, a standby that only reads, resources,
shutdown, system, internal.
"""

CONTENT_STATES = ("22", "23")
"""SQLSTATE classes that say a value is to blame: data, integrity."""

AGAIN_STATES = ("40001", "40P01", "55P03")
"""Serialization failure, deadlock, lock not available: the same transaction may well succeed the next time."""

SQLITE_AGAIN = ("database is locked", "database table is locked")
SQLITE_AWAY = ("disk", "unable to open", "readonly database", "database is locked")

_DAMAGED = "Stop what uses the file, then restore a backup, or save what can be read: sqlite3 FILE .recover"

ADVICE = {
    "due to statement timeout": "Somebody may hold a lock, or there is too much to read: try again, or ask for less",
    "permission denied for": "The roles that runner migrate --roles prints have the rights that are needed",
    "database disk image is malformed": _DAMAGED,
    "file is not a database": _DAMAGED,
    "disk is full": "Make room where its files lie",
    "No space left on device": "Make room where its files lie",
    "database is locked": "Another program has been writing to it for long: let that end first",
}
"""What to do about an error whose own words do not say it, by a part of them."""


def is_transient(error: BaseException) -> bool:
    """Tell whether the transaction lost against another one and should be tried again."""
    original = _original(error)
    state = _sqlstate(original)
    return state in AGAIN_STATES if state else any(sign in str(original) for sign in SQLITE_AGAIN)


def translate(error: BaseException, url: str) -> StoreError | None:
    """Turn a driver's error into one of ours.

    Args:
        error: what came out of SQLAlchemy or a driver.
        url: the database, without its password.

    Returns:
        DatabaseAway when waiting may help, ContentRefused when a value is to blame, DatabaseRefused when something
        else is (rights, a missing table), None when it is no database's error.
    """
    if not isinstance(error, (sa.exc.SQLAlchemyError, OSError, TimeoutError)) and not _from_driver(error):
        return None
    original = _original(error)
    why = " ".join(_said(original).split()).rstrip(" .?!") or type(original).__name__  # our sentence goes on behind it
    if _is_away(error, original):
        return DatabaseAway(url=url, why=why)
    return ContentRefused(why=why) if _is_content(original) else DatabaseRefused(why=why)


def _said(original: BaseException) -> str:
    """What the database said; without the row or the value that it refused, which may hold secrets."""
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    said = primary if primary and _is_content(original) else str(original)
    advice = next((words for sign, words in ADVICE.items() if sign in said), "")
    return f"{said.rstrip(' .')}. {advice}" if advice else said


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
    """What a driver calls such an error, also where it has a finer name: a connection that timed out is operational."""
    return {kind.__name__ for kind in type(error).__mro__} if _from_driver(error) else set()


def _from_driver(error: Any) -> bool:
    return type(error).__module__.split(".")[0] in ("psycopg", "sqlite3", "aiosqlite")
