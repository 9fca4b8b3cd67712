"""Watchdog: a thread that renews the lease while the event loop is blocked, and logs the handler that blocks it."""

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import sqlalchemy as sa

from runner.db import connect
from runner.db.database import Database
from runner.db.errors import translate
from runner.db.transaction import BlockingTransaction
from runner.engine.heartbeat import Lease
from runner.engine.slots import Running
from runner.settings import Settings
from runner.store.heartbeat import renew
from runner.urls import sync_url

log = logging.getLogger("runner.watchdog")

EVERY = 1.0
"""Seconds between two pings to the event loop; a ping without a response by the next one means blocked."""

LONGEST_BLOCK = 300.0
"""Seconds for which the watchdog renews the lease of a blocked runner; then other runners may rescue its tasks."""

JOIN_TIMEOUT = 2.0
"""Maximum wait in seconds for the end of the thread."""


class Watchdog:
    """Watches one event loop from a thread.

    The thread connects only while the loop is blocked, so that a healthy runner needs no extra connection.

    Args:
        settings: the database URL and the heartbeat interval.
        database: the database, for its tables.
        lease: the lease to renew.
        in_flight: returns the tasks in flight.
    """

    def __init__(
        self, settings: Settings, database: Database, lease: Lease, in_flight: Callable[[], Iterable[Running]]
    ) -> None:
        self._settings, self._database, self._lease, self._in_flight = settings, database, lease, in_flight
        self._stopping = threading.Event()
        self._ponged = time.monotonic()
        self._engine: sa.Engine | None = None
        self._reported: Any = None
        self._expiry_logged = False
        self._last_renewal = 0.0

    def start(self) -> None:
        """Start the thread. Call it on the running event loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._ponged = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="runner-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                pinged = time.monotonic()
                try:
                    self._loop.call_soon_threadsafe(self._pong)
                except RuntimeError:  # the loop is closed
                    return
                self._stopping.wait(EVERY)
                blocked = time.monotonic() - self._ponged
                if self._ponged < pinged and not self._stopping.is_set():
                    self._renew_for_loop(blocked)
                else:
                    self._reported, self._expiry_logged = None, False
        finally:
            if self._engine is not None:
                self._engine.dispose()

    def _pong(self) -> None:
        self._ponged = time.monotonic()

    def _renew_for_loop(self, blocked: float) -> None:
        try:
            job = asyncio.current_task(self._loop)
            if job is not None and job is not self._reported:
                self._reported = job
                log.warning("%s", self._culprit(blocked, job))
            if blocked > LONGEST_BLOCK:
                self._log_expiry(blocked)
            elif time.monotonic() - self._last_renewal >= min(EVERY, self._settings.heartbeat_interval.total_seconds()):
                self._last_renewal = time.monotonic()
                self._renew()
        except Exception as error:  # without the thread the next block would cost the lease
            error_text = translate(error, self._database.url)
            log.warning("could not renew the lease while the event loop is blocked: %s", error_text or repr(error))

    def _log_expiry(self, blocked: float) -> None:
        if not self._expiry_logged:
            self._expiry_logged = True
            log.error("event loop blocked for %.0f s: the lease expires, other runners rescue its tasks", blocked)

    def _renew(self) -> None:
        runner_id, started = self._lease.id, time.monotonic()
        if not runner_id:
            return
        with self._get_engine().connect() as connection, connection.begin():
            tx = BlockingTransaction(connection, self._database.tables, self._database.dialect)
            reply = tx.follow(renew(tx, runner_id, self._settings.lease_timeout.total_seconds()))
        self._lease.note_renewal(runner_id, started, reply.alive, reply.late)

    def _get_engine(self) -> sa.Engine:
        if self._engine is None:
            url = sync_url(self._settings.url)
            options = connect.options(url) | {"pool_size": 1, "max_overflow": 0}
            engine = sa.create_engine(url, hide_parameters=True, **options)
            connect.prepare(engine, self._settings.sqlite_synchronous)
            self._engine = engine.execution_options(**connect.SINGLE[engine.dialect.name])
        return self._engine

    def _culprit(self, blocked: float, job: Any) -> str:
        """Describe the task that blocks the loop and the line of its handler, without any values."""
        running = next((each for each in tuple(self._in_flight()) if each.job is job), None)
        line = _line(sys._current_frames().get(self._loop_thread), running)  # noqa: SLF001 - the only access to another thread's frames
        name = f"task {running.task.id} ({running.task.handler})" if running is not None else _coroutine(job)
        advice = "make it a plain function, or use asyncio.to_thread"
        return f"event loop blocked for {blocked:.1f} s by {name} at {line}: {advice}"


def _coroutine(job: Any) -> str:
    return f"coroutine {getattr(job.get_coro(), '__qualname__', 'unknown')}"


def _line(frame: FrameType | None, running: Running | None) -> str:
    """Return the innermost line in the handler's own file; without a handler, the innermost line."""
    path = _file(running) if running is not None else None
    inner = frame
    while frame is not None and path is not None:
        if frame.f_code.co_filename == path:
            inner = frame
            break
        frame = frame.f_back
    return "unknown" if inner is None else f"{inner.f_code.co_filename}:{inner.f_lineno}"


def _file(running: Running) -> str | None:
    code = getattr(inspect.unwrap(running.handler.function), "__code__", None)
    return None if code is None else str(code.co_filename)
