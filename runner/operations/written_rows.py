"""write_rows: change locked rows, and refuse a change that the database did not make without an error."""

from typing import Any

from runner.db.transaction import Transaction
from runner.errors import DatabaseRefused

UNCHANGED = (
    "the change reached {changed} of {expected} rows of {table}, without an error: a trigger on it probably skips the "
    "others (RETURN NULL, or RAISE(IGNORE) on SQLite), or a policy hides them"
)
"""The reason of an operation that changed fewer rows than it has locked."""


async def write_rows(tx: Transaction, statement: Any, expected: int = 1, parameters: Any = None) -> list[Any]:
    """Execute an insert, an update or a delete, and require that it changes all its rows.

    Args:
        tx: a writing transaction.
        statement: the statement; its first column is returned if it returns none itself.
        expected: the number of rows.
        parameters: the parameters of the statement.

    Returns:
        The returned rows.

    Raises:
        DatabaseRefused: the database changed fewer rows; the transaction must not commit.
    """
    if not statement._returning:  # noqa: SLF001 - it has no public form
        statement = statement.returning(next(iter(statement.table.c)))
    rows = list(await tx.rows(statement, parameters))
    if len(rows) < expected:
        raise DatabaseRefused(why=UNCHANGED.format(changed=len(rows), expected=expected, table=statement.table.name))
    return rows
