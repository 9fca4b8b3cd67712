"""A database of which a test replaces the function that executes prepared statements."""

from collections.abc import Awaitable, Callable
from typing import Any

from runner.db.database import Database

Fetch = Callable[[Any, str, Any], Awaitable[list[Any]]]


class _Dialect:
    def __init__(self, dialect: Any, fetch: Fetch) -> None:
        self._dialect = dialect
        self.fetch = fetch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)


def replace_fetch(database: Database, replacement: Callable[[Fetch], Fetch]) -> None:
    """Replace `fetch` of the dialect of one database; `replacement` receives the function that was there."""
    dialect: Any = _Dialect(database.dialect, replacement(database.dialect.fetch))
    database.dialect = dialect
