"""Loop statements: the prepared statements of one connection of psycopg, whose answers an event loop reads itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus

from runner.db.server_encoding import ArrayText, codec_of, escaped

FLOAT = 701
"""The type of a float on the server, which takes the type of all other values from the statement: it could take an
integer for the fraction of a number of seconds."""

UNKNOWN = 0

LOOK_SECONDS = 0.1
"""The seconds after which a statement looks for its answer without an event of the socket."""

BEGIN, COMMIT = "BEGIN ISOLATION LEVEL READ COMMITTED", "COMMIT"

NUL = "PostgreSQL text fields cannot contain NUL (0x00) bytes"


class LoopStatements:
    """Executes statements one after the other, each of which commits by itself unless `whole` is open.

    A cursor of psycopg takes two to three times the CPU. It converts each parameter by its type, keeps its own books of
    prepared statements, and registers the socket again for each answer.

    Args:
        driver: the connection of psycopg, for event loops; the caller lends it to one statement at a time.
        prepare_after: executions of a statement before it is prepared.
    """

    def __init__(self, driver: Any, prepare_after: int) -> None:
        self._driver = driver
        self._server = driver.pgconn
        self._socket: int = self._server.socket
        self._loop = asyncio.get_running_loop()
        self._codec = codec_of(driver.info.parameter_status("server_encoding") or "UTF8")
        self._rows = Transformer(driver)
        self._prepare_after = prepare_after
        self._uses: dict[object, int] = {}
        self._names: dict[object, bytes] = {}
        """The names of the prepared statements, by text, and types if there are floats."""
        self._answer: asyncio.Future[Any] | None = None
        self._result: Any = None
        self._results: list[Any] | None = None
        """The results of a round trip of several statements; None for one statement."""
        self._begins = False
        """True if the next statement begins a transaction."""
        self._is_whole = False
        """True in a transaction of several round trips."""
        self._commits = False
        """True if its next round trip commits it."""
        self._has_committed = False
        """True from this round trip to the end of the transaction."""
        self._look_timer: asyncio.TimerHandle | None = None
        self.is_reading = False
        """True while the event loop watches the socket for this object."""

    async def run(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows.

        Args:
            sql: with parameters by position, `$1`.
            values: its parameters.
        """
        if self._begins or self._commits or self._has_committed:
            return (await self.run_all([(sql, values)]))[0]
        driver = self._driver
        parameters, types, key = self._bound(sql, values)
        driver.start()
        try:
            driver.check_fault()
            name = self._names.get(key) or await self._prepared(key, sql, types)
            self._send(name, sql, parameters, types)
            result = await self._answered()
        except BaseException as error:
            await self._end_failed(error)
            raise
        driver.end()
        return self._load(result)

    async def run_all(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[list[tuple[Any, ...]]]:
        """Execute statements in one round trip, and return the rows of each.

        If one of them fails, the others are not executed, and the connection must be closed.

        Raises:
            RuntimeError: the transaction has committed; see `commit_next`.
        """
        if self._has_committed:
            raise RuntimeError("a statement follows the round trip that commits its transaction")
        begins, self._begins = self._begins, False
        all_ = [(BEGIN, ()), *statements] if begins else statements
        last = len(all_)
        if self._commits:
            self._commits, self._has_committed = False, True
            all_ = [*all_, (COMMIT, ())]
        bound = [(sql, *self._bound(sql, values)) for sql, values in all_]
        driver, server = self._driver, self._server
        driver.start()
        try:
            driver.check_fault()
            names = [self._names.get(key) or await self._prepared(key, sql, types) for sql, _, types, key in bound]
            server.enter_pipeline_mode()
            self._results = []
            for name, (sql, parameters, types, _) in zip(names, bound, strict=True):
                self._send(name, sql, parameters, types)
            server.pipeline_sync()
            results = await self._answered()
            server.exit_pipeline_mode()
        except BaseException as error:
            await self._end_failed(error)
            raise
        driver.end()
        return [self._load(result) for result in results[begins:last]]

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """Make the statements of a block one transaction; the connection must be closed if the block raises."""
        self._begins = self._is_whole = True
        self._has_committed = False
        yield
        self._is_whole = self._commits = False
        if self._begins or self._has_committed:
            self._begins = self._has_committed = False
        else:
            await self.run(COMMIT, ())

    def commit_next(self) -> None:
        """Let the next round trip of a whole transaction commit it."""
        self._commits = self._is_whole

    def _bound(self, sql: str, values: Sequence[Any]) -> tuple[list[bytes | None], list[int] | None, object]:
        """The parameters of a statement, their types if there are floats, and its key among the prepared ones."""
        parameters = [None if value is None else self._bytes(value) for value in values]
        if float not in map(type, values):
            return parameters, None, sql
        types = [FLOAT if type(value) is float else UNKNOWN for value in values]
        return parameters, types, (sql, *types)

    def _send(self, name: bytes | None, sql: str, parameters: list[bytes | None], types: list[int] | None) -> None:
        if name is None:
            self._server.send_query_params(sql.encode(), parameters, types)
        else:
            self._server.send_query_prepared(name, parameters)

    async def _end_failed(self, error: BaseException) -> None:
        """Raise the error of a statement as the connection explains it, or end one whose caller was cancelled."""
        driver = self._driver
        if isinstance(error, psycopg.Error):
            if self._server.status != ConnStatus.OK:
                self.stop_reading()  # a send that fails closes the socket
            driver.raise_fault(error)
        driver.unanswered, driver.since = driver.since, 0.0
        if self._answer is not None:
            await driver.cancel_statement()

    def _load(self, result: Any) -> list[tuple[Any, ...]]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._rows.set_pgresult(result)
        rows: list[tuple[Any, ...]] = self._rows.load_rows(0, result.ntuples, tuple)
        self._rows.set_pgresult(None)  # it may be large
        return rows

    def stop_reading(self) -> None:
        """Stop watching the socket. Call it before the socket is closed: another one may get its number."""
        if self.is_reading:
            self.is_reading = False
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)

    def _bytes(self, value: Any) -> bytes:
        if type(value) is int:
            return b"%d" % value
        if isinstance(value, str):
            if self._codec is not None:
                value = escaped(str(value), self._codec, "\\\\u" if type(value) is ArrayText else "\\u")
            data = str.encode(value)
            if b"\0" in data:
                raise psycopg.DataError(NUL)
            return data
        return str(value).encode()

    async def _prepared(self, key: object, sql: str, types: list[int] | None) -> bytes | None:
        """Prepare a frequent statement and return its name; None for a rare one."""
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        if uses <= self._prepare_after:
            return None
        name = f"runner_{len(self._names)}".encode()
        self._server.send_prepare(name, sql.encode(), types)
        await self._answered()
        self._names[key] = name
        return name

    def _answered(self) -> "asyncio.Future[Any]":
        """Send the rest of a statement, and return its result when it arrives."""
        answer = self._answer = self._loop.create_future()
        if not self.is_reading:
            self._start_reading()
        if self._server.flush():
            self._loop.add_writer(self._socket, self._write_on)
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look)
        return answer

    def _start_reading(self) -> None:
        try:
            self._loop.add_reader(self._socket, self._read)
        except OSError as error:
            raise psycopg.OperationalError(f"the connection is lost: {error.strerror}") from None
        self.is_reading = True

    def _look(self) -> None:
        """Read without an event of the socket.

        Code of an application may have closed the socket: no event follows, and the event loop watches no new
        socket that has the number of a watched one.
        """
        self._look_timer = None
        if self._answer is None:
            return
        self.stop_reading()
        try:
            if self._server.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection is closed")
            self._driver.check_fault()
            self._start_reading()
            if self._server.flush():
                self._loop.add_writer(self._socket, self._write_on)
        except psycopg.Error as error:
            self._fail(error)
            return
        self._read()
        if self._answer is not None:
            self._look_timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _write_on(self) -> None:
        """Send the rest of a large statement as soon as the socket takes it."""
        try:
            if not self._server.flush():
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._fail(error)

    def _read(self) -> None:
        if self._answer is None:  # a message, or the end of the connection, which the next statement meets
            self.stop_reading()
            return
        server = self._server
        try:
            server.consume_input()
            while not server.is_busy():
                result = server.get_result()
                if self._results is not None:
                    if self._ends_round(self._results, result):
                        return
                elif result is None:
                    self._complete()
                    return
                else:
                    self._result = result
        except psycopg.Error as error:
            # The server reports the end of a session as the error of the statement, and then closes the connection.
            if self._result is None:
                self._fail(_first_error(self._results or ()) or error)
            else:
                self.stop_reading()
                self._complete()

    def _complete(self) -> None:
        answer, result = self._answer, self._result
        self._answer = self._result = None
        if answer is None or answer.done():
            return
        if result is None:
            answer.set_exception(psycopg.OperationalError("the connection is lost"))
        elif result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
            answer.set_result(result)
        else:
            answer.set_exception(error_from_result(result))

    def _ends_round(self, results: list[Any], result: Any) -> bool:
        """Keep a result of a round trip of several statements, and return True after the last one.

        Raises:
            psycopg.OperationalError: no result is left although the server has not ended the round trip.
        """
        if result is None and (not results or results[-1] is None):  # one null follows each result
            raise psycopg.OperationalError("the connection is lost")
        if result is None or result.status != ExecStatus.PIPELINE_SYNC:
            results.append(result)
            return False
        answer, self._answer, self._results = self._answer, None, None
        if answer is not None and not answer.done():
            if (error := _first_error(results)) is not None:
                answer.set_exception(error)
            else:
                answer.set_result([each for each in results if each is not None])
        return True

    def _fail(self, error: psycopg.Error) -> None:
        """Report an error of the connection."""
        self.stop_reading()
        answer, self._answer, self._result, self._results = self._answer, None, None, None
        if answer is not None and not answer.done():
            answer.set_exception(error)


def _first_error(results: Sequence[Any]) -> psycopg.Error | None:
    """The error of the statement of a round trip that failed; the server did not execute those after it."""
    failed = (each for each in results if each is not None and each.status == ExecStatus.FATAL_ERROR)
    return next(map(error_from_result, failed), None)
