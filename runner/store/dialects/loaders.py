"""How texts are read from PostgreSQL; imported only where there is a connection, because the driver takes its time."""

from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.string import TextLoader

__all__ = ["Forgiving", "TextLoader"]


class Forgiving(Loader):
    """Reads texts of a database in SQL_ASCII, which holds whatever bytes a foreign client wrote.

    One row that is no UTF-8 must not fail every claim and list; SQLite's connections do the same.
    """

    def load(self, data: Buffer) -> str:
        """Read a text, with a sign in place of what is none."""
        return bytes(data).decode("utf-8", "replace")
