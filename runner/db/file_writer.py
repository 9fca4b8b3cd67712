"""File writer: the writing transactions of a SQLite file, which the thread of one connection executes in turn."""

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple

from runner.db import connect
from runner.db.async_core import AsyncCoreConnection, StatementPool, T
from runner.db.dialects import Dialect
from runner.db.schema import Tables
from runner.db.semaphore import FairSemaphore, SemaphoreRequest, granted_in_thread
from runner.db.statement import Prepared
from runner.db.transaction import Transaction, TransactionStage


class FileWriter:
    """Executes verbs of prepared statements on a SQLite file.

    Args:
        connections: lends the connection whose thread executes the statements.
        lock: serializes the writers of this process.
    """

    def __init__(self, connections: StatementPool, lock: FairSemaphore, tables: Tables, dialect: Dialect) -> None:
        self._connections, self._lock = connections, lock
        self._tables, self._dialect = tables, dialect
        self._waiting: list[FileRun[Any]] = []
        self._file: Any = None
        """The `sqlite3.Connection` that keeps the rows of RETURNING in memory."""

    async def write(self, verb: Callable[[Transaction], Awaitable[T]], progress: TransactionStage) -> T:
        """Run a verb in a transaction of its own, or in one with the verbs that wait for the file at the same time.

        Args:
            verb: executes prepared statements only.

        Raises:
            RuntimeError: the verb awaits something else than a prepared statement.
        """
        async with self._connections.in_turn() as pooled:

            async def work() -> T:
                tx = FileTransaction(pooled.connection, self._tables, self._dialect)
                result = await verb(tx)
                await tx.complete()
                return result

            run = FileRun(work, progress)
            self._waiting.append(run)
            try:
                await pooled.in_thread(partial(self._execute, run))
            finally:
                self._waiting.remove(run)
            return run.result()

    def _execute(self, run: "FileRun[Any]", file: Any) -> None:
        """Wait for the other writers of this process in the thread: the event loop may be busy when they end."""
        request = SemaphoreRequest()
        try:
            self._lock.enter(request)
            granted_in_thread(request)
            if file is not self._file:
                # SQLite collects the rows that a claim returns. In a file, their payloads would be written once more.
                file.execute("PRAGMA temp_store = MEMORY")
                self._file = file
            run.execute(file, self._waiting)
        finally:
            self._lock.release(request)


class FileStatement(NamedTuple):
    """A statement that waits for the thread of a SQLite connection; awaiting it returns its rows.

    Args:
        arguments: its parameters by position.
    """

    sql: str
    arguments: tuple[Any, ...] = ()

    def __await__(self) -> Generator["FileStatement", list[Any], list[Any]]:
        return (yield self)


COMMIT = FileStatement("COMMIT")


class FileTransaction(Transaction):
    """A writing transaction of SQLite whose statements a FileRun executes."""

    __slots__ = ("_completed",)

    def __init__(self, connection: AsyncCoreConnection, tables: Tables, dialect: Dialect) -> None:
        super().__init__(connection, tables, dialect)
        self._completed = False

    async def run(self, prepared: Prepared, parameters: dict[str, Any]) -> list[Any]:
        """Execute a prepared statement and return its rows as plain tuples."""
        return await FileStatement(prepared.sql, prepared.arguments(parameters))

    async def complete(self) -> None:
        """Commit."""
        if not self._completed:
            self._completed = True
            await COMMIT


class FileRun(Generic[T]):
    """One execution of a verb of prepared statements on a SQLite file.

    The event loop computes the first parameters and the result, and the thread of a connection executes the statements.
    The file is locked from the first statement to the commit, and not while a busy event loop holds the interpreter.

    Args:
        work: starts the verb in a new FileTransaction, which it completes.
        progress: receives the stage of the transaction.

    Raises:
        RuntimeError: the verb awaits something else than a prepared statement.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], progress: TransactionStage) -> None:
        self._work, self.progress = work, progress
        self.done = False
        self.error: BaseException | None = None
        """The error that ended this run, or the commit that it shared."""
        self._statement: FileStatement | None = None
        self._start()

    def execute(self, file: Any, waiting: Sequence["FileRun[Any]"] = ()) -> None:
        """Execute the statements and commit, unless an earlier run has done so; on an error nothing is changed.

        Args:
            file: a `sqlite3.Connection` in autocommit mode; the call blocks.
            waiting: all runs that wait for this connection. If another program holds the file, they share one
                transaction: a commit takes as long as the statements for hundreds of tasks.
        """
        if self.error is not None:
            raise self.error
        if self.done or self._statement is COMMIT:
            return
        try:
            was_locked = connect.begin_writing(file)
            others = [run for run in (*waiting,) if run is not self and not run.done]
            if not (was_locked and others and _in_one_transaction(file, [self, *others])):
                _with_fast_text(file, lambda: self.statements(file))
                _commit(file, [self])
        except BaseException as error:
            self.done, self.error = True, error  # the event loop removes it from the waiting ones later
            with suppress(sqlite3.Error):
                file.rollback()
            raise

    def result(self) -> T:
        """Return the result of the verb after `execute`."""
        try:
            self._running.send([])
        except StopIteration as end:
            result: T = end.value
            return result
        raise _refused(self._running)

    def rewind(self) -> None:
        """Forget the statements so far, which were rolled back."""
        self._running.close()
        self._statement = None

    def _start(self) -> None:
        self._running = self._work()
        self._statement = self._checked(self._running.send(None))

    def statements(self, file: Any) -> None:
        """Execute all statements except the commit, in the transaction of the file."""
        if self._statement is None:  # again, after an error
            self._start()
        if not file.in_transaction:
            connect.begin_writing(file)
        self.progress.stage = "statement"
        while (statement := self._statement) is not COMMIT and statement is not None:
            self._statement = None
            try:
                rows = file.execute(*statement).fetchall()
            except BaseException as error:
                self._statement = self._checked(self._running.throw(error))
            else:
                self._statement = self._checked(self._running.send(rows))

    def _checked(self, awaited: Any) -> FileStatement:
        if isinstance(awaited, FileStatement):
            return awaited
        raise _refused(self._running)


def _with_fast_text(file: Any, statements: Callable[[], T]) -> T:
    """Execute statements with the driver's own texts; if one is no UTF-8, execute them again in a new transaction.

    `connect.READABLE` is a call per text, for which a thread waits while the event loop is busy.

    Args:
        file: a `sqlite3.Connection` in autocommit mode.
    """
    file.text_factory = str
    try:
        return statements()
    except sqlite3.OperationalError as error:
        if hasattr(error, "sqlite_errorcode"):  # SQLite itself reports no bad text
            raise
    finally:
        file.text_factory = connect.READABLE
    if file.in_transaction:
        file.execute("ROLLBACK")
    return statements()


def _in_one_transaction(file: Any, runs: list[FileRun[Any]]) -> bool:
    """Execute runs in one transaction; False if one of them fails and all have to start again, each by itself."""
    try:
        file.text_factory = str
        for run in runs:
            run.statements(file)
    except Exception:
        for run in runs:
            run.rewind()
        file.rollback()
        return False
    finally:
        file.text_factory = connect.READABLE
    _commit(file, runs)
    return True


def _commit(file: Any, runs: list[FileRun[Any]]) -> None:
    for run in runs:
        run.progress.stage = "commit"
    try:
        file.execute("COMMIT")
    except BaseException as error:
        for run in runs:
            run.done, run.error = True, error
        raise
    for run in runs:
        run.done = True


def _refused(running: Coroutine[Any, Any, Any]) -> RuntimeError:
    running.close()
    return RuntimeError("a verb of a single statement may execute prepared statements only")
