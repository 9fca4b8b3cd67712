"""Connections to PostgreSQL that an event loop reads itself: single submits of coroutines, without a thread."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from psycopg import OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus

from runner.db import connect
from runner.db.dialects.postgresql import PREPARE_AFTER
from runner.db.errors import is_answered, lost_prepared, raise_translated, retries, retry_pause
from runner.db.server_connection import ReadOnlyServer
from runner.db.server_encoding import codec_of, escaped
from runner.db.statement import SingleInsert, require_inserted
from runner.db.thread_connections import ThreadConnection, ThreadConnections

if TYPE_CHECKING:
    from runner.errors import Stage

CLOSE_TIMEOUT = 5.0
"""Seconds allowed for the statements of event loops in other threads when the connections close."""


class LoopConnection:
    """A connection whose answers an event loop reads when they arrive.

    psycopg's own asynchronous connection takes four times the CPU: it registers its socket again for each answer.

    Args:
        connection: the connection, which nothing else uses.
        pool: takes it back after each statement.
        prepares: prepare frequent statements.
    """

    def __init__(self, connection: ThreadConnection, pool: "LoopPool", *, prepares: bool) -> None:
        self._connection = connection
        self._driver = connection.driver
        self._server = connection.driver.pgconn
        self._socket: int = self._server.socket
        self._pool = pool
        self._prepares = prepares
        self._codec = codec_of(connection.driver.info.parameter_status("server_encoding") or "UTF8")
        self._uses: dict[str, int] = {}
        self._names: dict[str, bytes] = {}
        """The names of the prepared statements."""
        self._result: Any = None
        self._answer: asyncio.Future[int] | None = None
        self._arguments: tuple[bytes, list[bytes | None]] | None = None
        """The statement that follows its preparation, and its parameters."""
        pool.loop.add_reader(self._socket, self._read)

    @property
    def works(self) -> bool:
        """False if the server has closed the connection: otherwise it sends nothing without a statement."""
        return self._server.status == ConnStatus.OK and not self._connection.has_answer(0)

    def send(self, insert: SingleInsert, payload: str) -> "asyncio.Future[int]":
        """Submit one task.

        Returns:
            The id when it is durable. Cancelling it does not stop the statement.
        """
        self._answer = answer = self._pool.loop.create_future()
        self._driver.start()
        values = (*insert.before, payload, *insert.after)
        if (codec := self._codec) is not None:
            values = tuple(value if value is None else escaped(str(value), codec) for value in values)
        parameters = [None if value is None else str(value).encode() for value in values]
        try:
            if (name := self._names.get(insert.sql)) is not None:
                self._server.send_query_prepared(name, parameters)
            else:
                self._send_new(insert.sql, parameters)
            self._write()
        except Exception as error:
            self._fail(error)
        return answer

    def _send_new(self, sql: str, parameters: list[bytes | None]) -> None:
        uses = self._uses[sql] = self._uses.get(sql, 0) + 1
        if not self._prepares or uses <= PREPARE_AFTER:
            self._server.send_query_params(sql.encode(), parameters)
            return
        name = f"runner_{len(self._names)}".encode()
        self._names[sql] = name
        self._arguments = name, parameters
        self._server.send_prepare(name, sql.encode())

    def _write(self) -> None:
        """Send the rest of a large statement as soon as the socket takes it."""
        if self._server.flush():
            self._pool.loop.add_writer(self._socket, self._write_on)

    def _write_on(self) -> None:
        try:
            if not self._server.flush():
                self._pool.loop.remove_writer(self._socket)
        except Exception as error:
            self._fail(error)

    def _read(self) -> None:
        try:
            self._server.consume_input()
            while not self._server.is_busy():
                result = self._server.get_result()
                if result is None:
                    self._complete()
                    return
                self._result = result
        except Exception as error:
            self._fail(error)

    def _complete(self) -> None:
        """Handle the end of a statement, or a message of the server without one."""
        result, self._result = self._result, None
        if result is None:
            if self._server.status != ConnStatus.OK:
                raise OperationalError("the server closed the connection")
        elif result.status == ExecStatus.COMMAND_OK and self._arguments is not None:
            (name, parameters), self._arguments = self._arguments, None
            self._server.send_query_prepared(name, parameters)
            self._write()
        elif result.status == ExecStatus.TUPLES_OK:
            self._driver.end()
            (id,) = require_inserted([int(result.get_value(row, 0)) for row in range(result.ntuples)])
            answer, self._answer = self._answer, None
            if answer is not None and not answer.done():
                answer.set_result(id)
            self._pool.put(self)
        elif self._server.status != ConnStatus.OK or not result.error_field(DiagnosticField.SQLSTATE):
            raise OperationalError(result.error_message.decode(errors="replace").strip())
        else:
            raise error_from_result(result)

    def _fail(self, error: Exception) -> None:
        """Close the connection, on which something failed."""
        try:
            self._driver.raise_fault(error)
        except Exception as cause:
            error = cause
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        self.close()
        self._pool.remove(self, error)

    def close(self) -> None:
        """Close the connection in any state."""
        with suppress(Exception):  # the event loop has ended
            self._pool.loop.remove_reader(self._socket)
            self._pool.loop.remove_writer(self._socket)
        self._connection.close()


class LoopPool:
    """The connections of one event loop.

    Args:
        loop: the event loop, whose thread calls all methods except `end`.
        threads: opens the connections.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: ThreadConnections) -> None:
        self.loop = loop
        self._threads = threads
        self._idle: list[LoopConnection] = []
        self._count = 0
        self._requests: deque[asyncio.Future[LoopConnection]] = deque()
        self._closed = False
        self._end = asyncio.Event()
        self._lifetime: AsyncGenerator[None, None] | None = None

    async def take(self) -> LoopConnection:
        """Take an idle connection that works, or wait for one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.works:
                return connection
            self._close(connection)
        if self._lifetime is None:
            self._lifetime = self._until_end()
            await anext(self._lifetime)
        request: asyncio.Future[LoopConnection] = self.loop.create_future()
        self._requests.append(request)
        self._open()
        try:
            return await request
        except asyncio.CancelledError:
            if request.done() and not request.cancelled() and request.exception() is None:
                self.put(request.result())
            raise

    def put(self, connection: LoopConnection) -> None:
        """Give a connection to the first request, or keep it."""
        while self._requests:
            request = self._requests.popleft()
            if not request.done():
                request.set_result(connection)
                return
        if self._closed:
            self._close(connection)
        else:
            self._idle.append(connection)

    def remove(self, connection: LoopConnection, error: Exception) -> None:
        """Forget a connection that is closed, and open another one for the first request."""
        self._forget()
        with suppress(ValueError):
            self._idle.remove(connection)
        if lost_prepared(error):
            self._threads.prepares = False
        if not is_answered(error) or isinstance(error, ReadOnlyServer):
            while self._idle:  # they go to the same server
                self._close(self._idle.pop())
        if self._requests:
            self._open()

    def _open(self) -> None:
        if self._count < connect.LOOP_CONNECTIONS:
            self._count += 1
            self.loop.run_in_executor(None, self._threads.open).add_done_callback(self._opened)

    def _opened(self, opening: "asyncio.Future[ThreadConnection]") -> None:
        try:
            self.put(LoopConnection(opening.result(), self, prepares=self._threads.prepares))
        except BaseException as error:
            self._forget()
            request = next((request for request in self._requests if not request.done()), None)
            if request is not None:
                self._requests.remove(request)
                request.set_exception(error)

    def close(self) -> None:
        """Close the idle connections now, and each other one after its statement."""
        self._closed = True
        while self._idle:
            self._close(self._idle.pop())

    def _close(self, connection: LoopConnection) -> None:
        connection.close()
        self._forget()

    def _forget(self) -> None:
        self._count -= 1
        if self._closed and not self._count:
            self._end.set()

    async def finish(self) -> None:
        """Close the connections, and wait for the statements that run."""
        self.close()
        if self._count:
            await self._end.wait()

    async def _until_end(self) -> AsyncGenerator[None, None]:
        """Close the connections at the end of `asyncio.run`, which ends all generators that a loop has begun."""
        try:
            yield
        finally:
            self.close()


class LoopConnections:
    """Submits single tasks of coroutines on connections of their own event loops.

    Args:
        name: the URL without its password, for messages.
    """

    def __init__(self, threads: ThreadConnections, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pools: dict[asyncio.AbstractEventLoop, LoopPool] = {}

    async def insert(self, insert: SingleInsert, payload: str) -> int:
        """Submit one task and return its id; retry if a concurrent transaction made it fail.

        Raises:
            StoreError: an error of the database.
        """
        pool = self._pools.get(asyncio.get_running_loop()) or self._new_pool()
        attempt, end = 1, time.monotonic() + connect.BUSY_SECONDS
        while True:
            stage: Stage = "connect"
            try:
                connection = await pool.take()
                stage = "commit"
                return await connection.send(insert, payload)
            except Exception as error:
                if not retries(error, attempt, end):
                    raise_translated(error, self._name, stage)
            await asyncio.sleep(retry_pause(attempt))
            attempt += 1

    def _new_pool(self) -> LoopPool:
        for loop, pool in list(self._pools.items()):
            if loop.is_closed():
                pool.close()
                self._pools.pop(loop, None)
        loop = asyncio.get_running_loop()
        return self._pools.setdefault(loop, LoopPool(loop, self._threads))

    def close_own(self) -> None:
        """Close the connections of the running event loop, from its own thread, which may not wait for itself."""
        with suppress(RuntimeError, KeyError):
            self._pools.pop(asyncio.get_running_loop()).close()

    def close(self) -> None:
        """Close the connections of all event loops; those in other threads after their statements."""
        others: list[Future[None]] = []
        while self._pools:
            loop, pool = self._pools.popitem()
            if loop.is_running():
                others.append(asyncio.run_coroutine_threadsafe(pool.finish(), loop))
            else:
                pool.close()
        wait(others, CLOSE_TIMEOUT)
