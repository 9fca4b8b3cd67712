"""Loop statements: the prepared statements of one connection of psycopg, whose answers an event loop reads itself."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus

from runner.db.in_place import Answer
from runner.db.server_encoding import ArrayText, codec_of, escaped

FLOAT = 701
"""The type of a float on the server, which takes the type of all other values from the statement: it could take an
integer for the fraction of a number of seconds."""

UNKNOWN = 0

LOOK_SECONDS = 0.1
"""The seconds after which a statement looks for its answer without an event of the socket."""

NUL = "PostgreSQL text fields cannot contain NUL (0x00) bytes"


class LoopStatements:
    """Executes statements one after the other, each of which commits by itself.

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
        self._answer: Answer | None = None
        self._result: Any = None
        self._look_timer: asyncio.TimerHandle | None = None
        self.is_reading = False
        """True while the event loop watches the socket for this object."""

    async def run(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Execute a statement and return its rows.

        Args:
            sql: with parameters by position, `$1`.
            values: its parameters.
        """
        driver = self._driver
        parameters = [None if value is None else self._bytes(value) for value in values]
        types = [FLOAT if type(value) is float else UNKNOWN for value in values] if float in map(type, values) else None
        key = sql if types is None else (sql, *types)
        driver.start()
        try:
            driver.check_fault()
            name = self._names.get(key) or await self._prepared(key, sql, types)
            if name is None:
                self._server.send_query_params(sql.encode(), parameters, types)
            else:
                self._server.send_query_prepared(name, parameters)
            result = await self._answered()
        except psycopg.Error as error:
            if self._server.status != ConnStatus.OK:
                self.stop_reading()  # a send that fails closes the socket
            driver.raise_fault(error)
        except BaseException:
            driver.unanswered, driver.since = driver.since, 0.0
            if self._answer is not None:
                await driver.cancel_statement()
            raise
        driver.end()
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

    def _answered(self) -> Answer:
        """Send the rest of a statement, and return its result when it arrives."""
        answer = self._answer = Answer(loop=self._loop)
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
                if result is None:
                    self._complete()
                    return
                self._result = result
        except psycopg.Error as error:
            # The server reports the end of a session as the error of the statement, and then closes the connection.
            if self._result is None:
                self._fail(error)
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

    def _fail(self, error: psycopg.Error) -> None:
        """Report an error of the connection."""
        self.stop_reading()
        answer, self._answer, self._result = self._answer, None, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
