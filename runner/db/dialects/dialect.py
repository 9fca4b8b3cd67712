"""Dialect: the features that differ between databases."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

import sqlalchemy as sa

from runner.db.schema import Tables

Same = Callable[[Any, Any], sa.ColumnElement[bool]]
"""Takes a table or alias and a batch; returns the condition that their rows match."""


class Dialect(Protocol):
    """The features that differ between databases; one object per database.

    A database without a feature, such as SQLite, inherits the answer that does without it.

    `rows` and its `parameters` belong together: a batch of rows is sent as parameters of one statement.
    """

    name: str
    is_server: bool = False
    """True if a server runs the statements; False if the program itself reads and writes a file."""
    row_locks: bool = False
    """True if rows are locked individually; False if each write, even of one statement, waits for the only writer."""
    row_addresses: bool = False
    """True if a row has a physical address, which is faster than its id; see `row_address`."""
    last_row_id: bool = False
    """True if the driver knows the id of the row that it inserted last: a RETURNING takes a tenth of the INSERT."""
    writing_ctes: bool = False
    """True if one statement can move rows: a WITH may contain INSERT, UPDATE and DELETE with RETURNING."""
    laterals: bool = False
    """True if a subquery in FROM may refer to the tables before it."""
    schemas: bool = False
    """True if the tables may be in a schema of their own."""
    without_bitmap_scans: tuple[str, str] | None = None
    """Disable bitmap scans, and restore them as they were in this transaction; None if the database has none."""
    begin: str
    """The statement that begins a writing transaction."""
    begin_reading: str | None = None
    """The statement that begins a transaction of RoundTrips; None if statements make no round trips."""
    unprepared: Mapping[str, Any] = MappingProxyType({})
    """Options of the driver for a statement that is not prepared."""
    partitions: bool = False
    """True if the history has partitions; False if it is one table."""

    def __hash__(self) -> int:
        """Statements are cached by dialect."""
        return id(self)

    @property
    def by_position(self) -> sa.Dialect:
        """SQLAlchemy's dialect for statements with parameters by position."""

    async def fetch_all(self, connection: Any, statements: Sequence[tuple[str, Any]]) -> list[list[Any]]:
        """Execute statements on the driver's connection, and return the rows of each; see `fetch`."""
        return [await self.fetch(connection, *statement) for statement in statements]

    def whole(self, connection: Any) -> AbstractAsyncContextManager[None]:  # noqa: ARG002 - for a database that has it
        """Make the statements of a block one transaction on the driver's connection."""
        return nullcontext()

    def commit_next(self, connection: Any) -> bool:  # noqa: ARG002 - for a database that has it
        """Let the next round trip of a whole transaction commit it; return False if the commit needs one of its own."""
        return False

    async def await_locks(self, connection: Any, sql: str, arguments: Any, timeout: str) -> bool:  # noqa: ARG002 - for a database that has it
        """Execute a statement that waits for locks; return False if they do not become available in time."""
        return True

    def cursor_by_position(self, connection: Any) -> Any:
        """Open a cursor of the blocking driver that takes parameters by position."""

    def rows(self, name: str, columns: dict[str, Any]) -> sa.FromClause:
        """Return a table expression for a batch of rows; `parameters` provides its values."""

    def parameters(self, name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Return the parameters for `rows(name, ...)`: the values of every column, in order."""

    def row_parameters(self, name: str, columns: Collection[str], rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
        """Return the parameters for `rows(name, ...)`: rows with one value per column."""

    def for_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Join each row of `outer` with the rows of `inner`, a limited selection of `row`'s ids.

        Returns:
            The joined expression, and the columns of `row` within it.
        """

    def first_of_each(self, outer: sa.FromClause, inner: sa.Select[Any], row: sa.Table) -> tuple[sa.FromClause, Any]:
        """Join each row of `outer` with the one row of `inner`, as `for_each` does."""
        return self.for_each(outer, inner, row)

    def one_by_one(
        self, batch: sa.FromClause, table: sa.Table, same: Same, compared: Sequence[str] = ()
    ) -> tuple[sa.FromClause, Any]:
        """Look up the row of a table for each row of a batch, in an update or a delete.

        With a plain join, a planner that expects a small table would read all of it for each batch.

        Args:
            compared: the columns that the statement compares with the table once more. A planner that knows them to be
                equal to those of the batch would join all rows with the whole batch first.

        Returns:
            The batch for use in the statement, with its columns, and the condition that selects the rows. In a table
            with partitions, the condition also selects rows at the same place of other partitions: compare ids too.
        """

    def position(self, moment: datetime) -> Any:
        """Return a time as runner.db.types.PositionTime."""

    def instant(self, value: Any) -> Any:
        """Convert a time to the form that `rows` accepts."""
        return value

    def announcing(self, insert: Any, tables: Tables) -> Any:  # noqa: ARG002 - for a database that has it
        """Make a statement that returns ids also wake the listening runners, once."""
        return insert

    def inserting_all(self, insert: Any, tables: Tables, *, notify: bool) -> Any:  # noqa: ARG002 - for a database that has it
        """Make an insert that commits by itself fail if a trigger skips a row; `expected` is the number of rows."""
        return insert

    def announcement(self, table: sa.Table) -> sa.Update | None:  # noqa: ARG002 - for a database that has it
        """Return a statement that wakes runners after an update of rows; None if `announcing` does it.

        Args:
            table: a table whose rows have ids.
        """
        return None

    def insert(self, table: sa.Table) -> Any:
        """Return an insert that supports `on_conflict_do_update`."""

    def one_of(self, column: sa.ColumnElement[Any], values: Sequence[int | str]) -> sa.ColumnElement[bool]:
        """The condition that a column has one of the values, which are a single parameter."""

    def in_batch(self, column: sa.ColumnElement[int], name: str) -> sa.ColumnElement[bool]:
        """The condition that a column has one of the ids of a batch; `parameters(name, {"id": ids})` provides them."""

    def matches(self, column: sa.ColumnElement[str], pieces: Sequence[str]) -> sa.ColumnElement[bool]:
        """The condition that a text consists of these pieces with any text between them; case-sensitive."""

    def member(self, payload: sa.ColumnElement[Any], path: Sequence[str]) -> sa.ColumnElement[str]:
        """A member of a JSON object as text: strings without quotes; NULL if it does not exist or is unreadable."""

    def encoding(self) -> sa.ColumnElement[str]:
        """The encoding of the database, by PostgreSQL's name."""

    def permissions(self, tables: Tables) -> Mapping[str, sa.ColumnElement[bool]]:
        """Return the conditions for runner.queries.health.

        Returns:
            `intervenes`: this login may change tasks and write audit entries; `follows`: this is a standby;
            `closed`: the database is set to read-only; `reads_audit`: this login may read the audit.
        """

    def staleness(self) -> sa.ColumnElement[Any]:
        """Age of the newest replayed change of a standby in seconds; NULL without a standby."""
        return sa.null()

    def vitals(self, tables: Tables) -> Mapping[str, sa.Executable]:
        """Return the statements for runner.queries.health, by name."""

    async def fetch(self, connection: Any, sql: str, arguments: Any) -> list[Any]:
        """Execute a statement on the driver's own connection, and return its rows as tuples."""

    def keep_plans_in_thread(self, connection: Any) -> bool:  # noqa: ARG002 - for a database that has it
        """The blocking form of `keep_plans`."""
        return False

    async def keep_plans(self, connection: Any) -> bool:  # noqa: ARG002 - for a database that has it
        """Let the driver's connection prepare its frequent statements, if its session belongs to it alone.

        Returns:
            False if the connection stays as it is: behind a pooler, or on a database that needs no preparation.
        """
        return False

    def along_indexes(self) -> str | None:
        """Return a statement that makes the planner keep to an index walk; None if not needed."""
        return None

    def pause_limit(self) -> sa.ColumnElement[Any]:
        """Limit the time for which the program may pause in this transaction; add it to the statement that locks rows.

        A runner that is frozen would hold its locks, and stop other runners, for as long as it is frozen. The database
        ends its transaction instead. NULL where that is not possible.
        """
        return sa.null()

    def lock_limit(self, limit: str) -> sa.ColumnElement[bool]:  # noqa: ARG002 - for a database that has it
        """A condition that is true, and limits the wait for each lock until the transaction ends.

        It needs no statement of its own, and no session, which a pooler may share. A wait that exceeds the limit fails.

        Args:
            limit: such as 100ms.
        """
        return sa.true()

    def order_lock(self, table: sa.Table) -> sa.Executable | None:  # noqa: ARG002 - for a database that has it
        """Return a statement that waits for the commits of tasks with an order key, and holds up others until the end.

        Statements that begin later see these tasks. None if there is only one writer at a time.
        """
        return None

    def readers_ended(self, table: sa.Table, seconds: float) -> sa.Executable | None:  # noqa: ARG002 - for a database that has it
        """Return a statement that waits for transactions that have read a table, and keeps others out until the end.

        Statements that begin later see the changes of this transaction. If the wait takes longer, or the login lacks
        the privilege, it does nothing. None if there is only one writer at a time.

        Args:
            table: a small table that no transaction reads for long.
            seconds: maximum wait; statements that begin in the meantime wait behind this one.
        """
        return None

    def readable_time(self, moment: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return a time in a form that can always be fetched, even for invalid values of foreign clients."""
