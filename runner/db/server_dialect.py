"""ServerDialect: SQLAlchemy's dialect for psycopg, which learns about a server what the server reports by itself.

SQLAlchemy asks for these facts on the first connection, in five round trips. A server reports them while it connects.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg, PGDialectAsync_psycopg
from sqlalchemy.engine.interfaces import IsolationLevel


class BlockingServerDialect(PGDialect_psycopg):
    """The dialect of blocking connections to PostgreSQL."""

    supports_statement_cache = True

    def _get_server_version_info(self, connection: sa.Connection) -> tuple[int, int]:
        version = _driver(connection).info.server_version
        return version // 10_000, version % 10_000

    def _get_default_schema_name(self, connection: sa.Connection) -> str:
        raise NotImplementedError  # PostgreSQL follows its search path for a table without a schema

    def get_default_isolation_level(self, dbapi_conn: Any) -> IsolationLevel:  # noqa: ARG002 - of SQLAlchemy
        """The level of connections in the pool; each transaction sets its own."""
        return "READ COMMITTED"

    def _set_backslash_escapes(self, connection: sa.Connection) -> None:
        reported = _driver(connection).info.parameter_status("standard_conforming_strings")
        self._backslash_escapes = reported == "off"


class ServerDialect(BlockingServerDialect, PGDialectAsync_psycopg):
    """The dialect of awaitable connections to PostgreSQL."""

    supports_statement_cache = True


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection
