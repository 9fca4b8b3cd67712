"""Connections of the blocking driver: short transactions in any thread."""

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import sqlalchemy as sa

from runner.db import connect
from runner.db.connector import DEFAULT_CONNECTOR, Connector
from runner.db.dialects import DIALECTS
from runner.db.errors import is_locked, lost_prepared, raise_translated, retries, retry_pause
from runner.db.file_identity import OpenFiles
from runner.db.needs import Needs, needs_of
from runner.db.readiness import readiness
from runner.db.schema import Tables
from runner.db.semaphore import FairSemaphore, InterruptibleLock, SemaphoreRequest, granted_in_thread
from runner.db.statement import SingleInsert, StatementFrame, Steps, compiled_for, require_inserted

if TYPE_CHECKING:
    from runner.errors import Stage

T = TypeVar("T")

sa.dialects.registry.register("postgresql.runner_threads", "runner.db.server_dialect", "BlockingServerDialect")

Row = list[tuple[str, Any]]
"""The names and values of the columns."""

Reader = Callable[[str], list[Row]]
"""Executes a statement without parameters, and returns its rows."""


class ThreadConnection(NamedTuple):
    """A connection of the driver, in autocommit mode.

    Args:
        driver: a `psycopg.Connection` or `sqlite3.Connection`.
        cursor: its cursor for all statements; a new one for each would cost a third of the CPU of a single submit.
        by_position: its cursor for statements with parameters by position.
        files: the SQLite files that it has open; None for a server.
        has_answer: returns whether the server has sent anything within some seconds; None for a file.
    """

    driver: Any
    cursor: Any
    by_position: Any
    files: OpenFiles | None
    has_answer: Any

    def close(self) -> None:
        """Close the connection in any state; a statement that was interrupted would keep a file locked."""
        for each in (self.cursor, self.by_position, self.driver):
            with suppress(Exception):
                each.close()


class ThreadConnections:
    """Runs short transactions in the thread of the caller, on a connection of the driver.

    An event loop and its asyncio driver cost a single submit three times the CPU of a blocking driver. The connections
    belong to no pool of SQLAlchemy, which would close the connections of the parent in a forked child.

    Args:
        name: the URL without its password, for messages.
        synchronous: SQLite's durability, see Database.open.
        writer_lock: serializes the writers of this process; None if the database allows concurrent writers.
        prepares: prepare frequent statements, unless a pooler is in between.
    """

    def __init__(
        self,
        url: sa.URL,
        name: str,
        synchronous: str,
        tables: Tables,
        writer_lock: FairSemaphore | None,
        *,
        prepares: bool,
        connector: Connector = DEFAULT_CONNECTOR,
    ) -> None:
        limits = connector.limits
        self._connector = connector._replace(limits=limits._replace(transaction=limits.statement))
        self._url, self._name, self._synchronous, self._tables = url, name, synchronous, tables
        self._dialect = DIALECTS[url.get_backend_name()]
        self._path = str(Path(url.database or "").absolute()) if writer_lock is not None else ""
        self._readers = FairSemaphore(connect.THREAD_CONNECTIONS)
        self._semaphore = writer_lock or self._readers
        self.prepares = prepares
        """True while statements may be prepared: False behind a pooler."""
        self._creation = InterruptibleLock()
        self._engine: sa.Engine | None = None
        self._frame: StatementFrame | None = None
        self._idle: list[ThreadConnection] = []  # appending and removing are safe in threads
        self._closed = False

    def run(self, work: Callable[[ThreadConnection], T], needs: Needs, *, writes: bool = True) -> T:
        """Call a function in a transaction. A connection on which something failed is closed.

        Args:
            work: executes the statements; called again if a concurrent transaction made them fail.
            needs: Needs.PREPARED if each statement commits by itself; statements that read never begin a transaction.
            writes: False for statements that read, each a snapshot of its own, and do not wait for writers.

        Raises:
            StoreError: an error of the database.
        """
        begin = None if needs is Needs.PREPARED or not writes else self._dialect.begin
        semaphore = self._semaphore if writes else self._readers
        attempt, end = 1, time.monotonic() + connect.BUSY_SECONDS
        while True:
            stage: Stage = "connect"
            request = SemaphoreRequest()
            try:
                try:
                    semaphore.enter(request)
                    granted_in_thread(request)
                    connection = self._take() or self.open()
                    try:
                        if writes and self._path:
                            connection.driver.limit_checkpoints()
                        stage = "statement" if begin or not writes else "commit"
                        if begin is not None:
                            self._begin(connection, begin)
                        try:
                            result = work(connection)
                        except sqlite3.OperationalError as error:
                            result = self._repeat(work, connection, error, begin)
                        stage = "commit"
                        if begin is not None:
                            connection.cursor.execute("COMMIT", **self._dialect.unprepared)
                    except BaseException as error:
                        self.discard(connection, error)
                        raise
                    connection.close() if self._closed else self._idle.append(connection)
                    return result
                finally:
                    semaphore.release(request)
            except BaseException as error:
                semaphore.release(request)  # a signal may have interrupted the first call
                if not isinstance(error, Exception):
                    raise
                if not retries(error, attempt, end):
                    raise_translated(error, self._name, stage)
            time.sleep(retry_pause(attempt))
            attempt += 1

    def _begin(self, connection: ThreadConnection, begin: str) -> None:
        if self._path:
            connect.when_unlocked(partial(connection.cursor.execute, begin))
        else:
            connection.cursor.execute(begin, **self._dialect.unprepared)

    @staticmethod
    def _repeat(
        work: Callable[[ThreadConnection], T],
        connection: ThreadConnection,
        error: sqlite3.OperationalError,
        begin: str | None,
    ) -> T:
        """Execute a statement of its own again, if a writer of another process held the lock."""
        if begin is not None or not is_locked(error):
            raise error
        return connect.when_unlocked(partial(work, connection))[0]

    def read(self, verb: Callable[..., Steps[T]], *args: Any) -> T:
        """Execute the steps of a verb that reads, each on a snapshot of its own, and return its result.

        Args:
            verb: takes the frame of its statements and `args`, and returns its steps.
        """
        return self.run(self._follow(verb, args, needs_of(verb, self._dialect, *args)), Needs.PREPARED, writes=False)

    def write(self, verb: Callable[..., Steps[T]], *args: Any) -> T:
        """Execute the steps of a verb in a transaction of its own, as it declares in `Needs`, and return its result.

        Args:
            verb: takes the frame of its statements and `args`, and returns its steps.
        """
        needs = needs_of(verb, self._dialect, *args)
        return self.run(self._follow(verb, args, needs), needs)

    def _follow(
        self, verb: Callable[..., Steps[T]], args: tuple[Any, ...], needs: Needs
    ) -> Callable[[ThreadConnection], T]:
        options = self._dialect.unprepared if needs is Needs.TRANSACTION else {}

        def work(connection: ThreadConnection) -> T:
            # The driver reads the server's version, on which the statements depend, as it connects.
            frame = self._frame = self._frame or self._new_frame()
            cursor, steps = connection.cursor, verb(frame, *args)
            rows: Any = None
            try:
                while True:
                    step = steps.send(rows)
                    cursor.execute(step.prepared.sql, step.prepared.arguments(step.parameters), **options)
                    rows = list(cursor.fetchall()) if cursor.description else []
            except StopIteration as end:
                result: T = end.value
                return result

        return work

    def _new_frame(self) -> StatementFrame:
        return StatementFrame(self._tables, self._dialect, compiled_for(self._get_engine().dialect))

    def insert(self, insert: SingleInsert, payload: str) -> int:
        """Submit one task and return its id."""
        return self.run(partial(self._insert, insert, payload), Needs.PREPARED)

    def insert_all(self, group: Sequence[tuple[SingleInsert, str]]) -> list[int]:
        """Submit tasks, each with its payload, in one transaction, and return their ids in this order."""

        def work(connection: ThreadConnection) -> list[int]:
            return [self._insert(insert, payload, connection) for insert, payload in group]

        return self.run(work, Needs.PREPARED_TRANSACTION)

    @staticmethod
    def _insert(insert: SingleInsert, payload: str, connection: ThreadConnection) -> int:
        cursor = connection.by_position
        cursor.execute(insert.sql, (*insert.before, payload, *insert.after))
        if not cursor.description:  # SQLite has the id of an earlier row if this one was skipped
            return require_inserted([cursor.lastrowid][: cursor.rowcount])[0]
        return require_inserted([row[0] for row in cursor.fetchall()])[0]

    def look(self, function: Callable[[Reader], T]) -> T:
        """Call a function that reads, on a connection that the next submit takes.

        Raises:
            StoreError: an error of the database.
        """

        def work(connection: ThreadConnection) -> T:
            cursor = connection.cursor

            def read(sql: str) -> list[Row]:
                cursor.execute(sql, **self._dialect.unprepared)
                names = [column[0] for column in cursor.description]
                return [[*zip(names, row, strict=True)] for row in cursor.fetchall()]

            return function(read)

        return self.run(work, Needs.PREPARED, writes=False)

    def close(self) -> None:
        """Close the idle connections now, and each other one when its transaction ends."""
        self._closed = True
        self._close_idle()

    def _take(self) -> ThreadConnection | None:
        """Take an idle connection that works: its server has not closed it, and no other file has replaced its file."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.files is not None:
                    works = self._has_files(connection, connection.files)
                else:  # an idle server sends nothing until it closes the connection
                    works = not connection.driver.closed and not connection.has_answer(0)
                    works = works and connection.driver.expires > time.monotonic()
                if works:
                    return connection
                connection.close()
        return None

    def _has_files(self, connection: ThreadConnection, files: OpenFiles) -> bool:
        """False if another file has replaced that of a connection.

        Raises:
            DatabaseFileReplaced: the file was deleted, or its log is not the one of the connection.
        """
        if files.are_current():
            return True
        change = files.change()
        if change is not None and (change.name != self._path or change.current is None):
            connection.close()
            self._close_idle()  # the last connection writes its log into the file
            raise change.error
        return change is None

    def open(self) -> ThreadConnection:
        """Open a connection, which the caller closes."""
        pooled = self._get_engine().raw_connection()
        driver: Any = pooled.driver_connection
        pooled.detach()
        try:
            if self.prepares:
                self.prepares = self._dialect.keep_plans_in_thread(driver)
            cursor, by_position = driver.cursor(), self._dialect.cursor_by_position(driver)
            if self._path:
                connect.prepare_submits(cursor)
                return ThreadConnection(driver, cursor, by_position, OpenFiles(self._path), None)
            return ThreadConnection(driver, cursor, by_position, None, readiness(driver.fileno()))
        except BaseException:
            driver.close()
            raise

    def discard(self, connection: ThreadConnection, error: BaseException) -> None:
        """Close a connection on which something failed, and the others if they fail too: another session, no answer."""
        if lost_prepared(error):  # a pooler that passed for a server
            self.prepares = False
            self._close_idle()
        elif getattr(connection.driver, "closed", False):
            self._close_idle()
        connection.close()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _get_engine(self) -> sa.Engine:
        return self._engine or self._creation.call(self._create_engine)

    def _create_engine(self) -> sa.Engine:
        if self._engine is None:
            pool = ("pool_size", "max_overflow", "pool_use_lifo")
            options = {name: value for name, value in connect.options(self._url).items() if name not in pool}
            options |= {"poolclass": sa.NullPool, "isolation_level": "AUTOCOMMIT"}
            url = self._url if self._path else self._url.set(drivername="postgresql+runner_threads")
            engine = sa.create_engine(url, hide_parameters=True, **options)
            connect.prepare(engine, self._synchronous, self._connector)
            self._engine = engine
        return self._engine
