"""Blocking: transactions for plain functions, which run in threads and have no event loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import sqlalchemy as sa

from runner.schema import Tables
from runner.store import connecting
from runner.store.dialects import Dialect
from runner.store.statement import compiled_for
from runner.store.steps import Step, Steps, follow

T = TypeVar("T")


class BlockingTransaction:
    """An open transaction on a connection that blocks; what Transaction is where statements are awaited.

    Args:
        connection: with its transaction begun; whoever opened it ends it.
        tables: of the installation that the statements are for.
        dialect: the differences of this database.
    """

    def __init__(self, connection: sa.Connection, tables: Tables, dialect: Dialect) -> None:
        self.connection = connection
        self.tables = tables
        self.dialect = dialect

    @property
    def driver(self) -> sa.Dialect:
        """What statements are compiled for."""
        return compiled_for(self.connection.dialect)

    def follow(self, steps: Steps[T]) -> T:
        """Execute the statements of a verb, one after the other, and return what it returns."""
        return follow(steps, self._execute)

    def _execute(self, step: Step) -> list[Any]:
        driver: Any = self.connection.connection.driver_connection
        cursor = driver.execute(step.prepared.sql, step.prepared.arguments(step.parameters))
        return list(cursor.fetchall()) if cursor.description else []


class Blocking:
    """Connections that block, opened when they are first needed.

    Args:
        url: where to.
        synchronous: SQLite's promise, see Database.open.
    """

    def __init__(self, url: sa.URL, synchronous: str) -> None:
        self._url = url
        self._synchronous = synchronous

    @cached_property
    def _engine(self) -> sa.Engine:
        # As many connections as there are threads: they are the bound.
        engine = sa.create_engine(
            self._url, hide_parameters=True, **connecting.options(self._url) | {"max_overflow": -1}
        )
        connecting.prepare(engine, self._synchronous)
        return engine.execution_options(**connecting.WRITING[engine.dialect.name])

    @contextmanager
    def connected(self) -> Iterator[sa.Connection]:
        """Open a transaction that may change things; it commits unless an exception leaves the block."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        if "_engine" in self.__dict__:
            self._engine.dispose()
