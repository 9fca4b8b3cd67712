"""Text loaders for PostgreSQL; imported only with a connection, because psycopg is slow to import."""

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.string import TextLoader

__all__ = ["TextLoader", "TolerantTextLoader"]


class TolerantTextLoader(Loader):
    """Reads text from a SQL_ASCII database, which accepts any bytes from foreign clients.

    One row with invalid UTF-8 must not fail every claim and list; SQLite connections do the same.
    """

    def load(self, data: Buffer) -> str:
        """Decode a text and replace invalid bytes."""
        return bytes(data).decode("utf-8", "replace")
