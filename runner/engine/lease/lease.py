"""Lease: the time until which a runner counts as alive, and its renewal by heartbeats."""

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf

import sqlalchemy as sa

from runner.db import connect
from runner.db.async_core import close_connection, invalidate_closed
from runner.db.connector import Connector
from runner.db.database import Database
from runner.db.errors import raise_if_final
from runner.db.row_locks import locks_of
from runner.db.server_watch import AnswerLimits, answer_within, renewal_limit
from runner.db.transaction import BlockingTransaction
from runner.errors import DatabaseUnavailable, StoreError
from runner.model.stuck_row import BlockingSession
from runner.settings import Settings
from runner.store.heartbeat import (
    UNKNOWN_USAGE,
    HeartbeatReply,
    LoopBlock,
    Renewal,
    Usage,
    acknowledge,
    end_lease,
    heartbeat,
    renew,
    suspects,
)
from runner.store.registration import ExecutorSlots, Identity, enter_handlers, leave, register, resize_executors
from runner.store.rescue import Rescuer
from runner.text.formatting import age
from runner.text.sanitize import one_line
from runner.text.stuck_row import holder_text, place_text
from runner.urls import sync_url

log = logging.getLogger("runner.lease")

STEADY = 0.6
"""The fraction of a lease between two heartbeats above which the database counts as unavailable in between.

A runner that renews every fifth of its lease has a lease that is at most one fifth old when such an outage starts. When
the outage ends, another fifth remains, which is time for one more heartbeat.
"""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock of the lease. The monotonic clock of Linux stops while the machine is suspended; the lease does not."""

MARGIN = 0.8
"""The fraction of its lease after which a runner stops trusting it. It allows for clock differences."""


ANSWERS = 8
"""Number of the last renewals of which the fastest one counts as the answer of an idle database."""

NEGLECT = 2
"""Leases without a renewal after which a runner counts as stuck, if the database was available."""

elapsed = partial(time.clock_gettime, CLOCK)
"""Returns the seconds on the clock of the lease, which administrators cannot set."""


class Lease:
    """The lease of one runner process.

    Args:
        database: the database that stores the lease.
        seconds: length of the lease.
        identity: host, process and capabilities of the runner.
        period: seconds between heartbeats; default: a fifth of the lease.
    """

    def __init__(self, database: Database, seconds: float, identity: Identity, period: float | None = None) -> None:
        self._database = database
        self._seconds = seconds
        self._gap = max(STEADY * seconds, 1.5 * (seconds / 5 if period is None else period))
        self.identity = identity
        self.id = 0
        self._renewed = 0.0
        self._is_confirmed = True
        self._unavailable_at = -inf
        self._failing_since: float | None = None
        self._answers = deque[float](maxlen=ANSWERS)
        self._trusts_from = 0.0
        self._unentered: list[str] = []
        self._logged: dict[str, int | None] = {}
        """The sessions that were logged, by handler."""
        self._is_leaving = False
        self.declared_lost = False
        """True after a rescue declared this runner lost; it must register again."""

    @property
    def is_valid(self) -> bool:
        """True while other runners consider this one alive."""
        is_trusted = self.id != 0 and not self.declared_lost and self._is_confirmed
        return is_trusted and elapsed() - self._renewed < self._seconds * MARGIN

    @property
    def renewal_age(self) -> float:
        """Seconds since the last renewal, or since the registration."""
        return elapsed() - self._renewed

    def answer_time(self) -> float:
        """Seconds of the fastest of the last renewals, which read rows by their ids; infinite before the first one.

        A disk or a processor that is busy for some seconds does not make a slow survey quick.
        """
        return min(self._answers, default=inf)

    @property
    def answers(self) -> bool:
        """True if a renewal succeeded in the last two leases. The first one of a busy process may be late."""
        return self.id != 0 and self.renewal_age < NEGLECT * self._seconds

    @property
    def is_neglected(self) -> bool:
        """True if no renewal succeeded for two leases, and the database was not unavailable in them."""
        limit = elapsed() - NEGLECT * self._seconds
        return self.id != 0 and self._renewed < limit and self._unavailable_at < limit

    @property
    def may_rescue(self) -> bool:
        """True while this runner may declare others lost.

        During a database outage no runner can renew, and every lease may expire. A runner rescues others only after one
        whole lease in which the database was available: every other runner then had the same time to renew. After a
        gap in its own heartbeats, a runner waits for one lease by its own clock. The database knows since when it was
        available; see `rescuer`.
        """
        return self.is_valid and elapsed() >= self._trusts_from

    @property
    def rescuer(self) -> Rescuer:
        """This runner as a rescuer; the database checks with its own clock for how long it was available."""
        return Rescuer(self.id, self._seconds)

    def distrust(self) -> None:
        """Give all other runners one lease to renew before any of them counts as lost."""
        self._trusts_from = elapsed() + self._seconds

    async def register(self) -> None:
        """Register as a new runner. A handler that is still locked at the next heartbeat is logged then."""
        started = elapsed()
        id = await self._database.write(register, self.identity, self._seconds, self._gap, self._leave_out)
        self._renewed, self._is_confirmed = started, True  # before the id: other threads read them
        self.id = id
        self.declared_lost = False

    async def enter_rest(self) -> None:
        """Enter the handlers that the registration left out, because another transaction locked their rows."""
        if not self._unentered:
            return
        before = self._unentered
        rest = self.identity._replace(
            handlers=before,
            limits={name: values for name, values in self.identity.limits.items() if name in before},
            breakers={name: values for name, values in self.identity.breakers.items() if name in before},
        )
        try:
            self._leave_out(await self._database.write(enter_handlers, rest))
        except StoreError as error:
            log.debug("could not enter handlers: %s", error)
            return
        for name in sorted(self._logged.keys() & set(before) - set(self._unentered)):
            log.info("handler %s: row no longer locked, its declarations are in force", one_line(name))
        await self._report_locked()

    def _leave_out(self, locked: list[str]) -> None:
        self._unentered = locked

    async def _report_locked(self) -> None:
        """Log each session that locks the row of a handler, once."""
        column, sessions = self._database.tables.handler.c.name, dict[str, BlockingSession]()
        with contextlib.suppress(StoreError):
            sessions = await self._database.read(locks_of, column, self._unentered) if self._unentered else {}
        for name in self._unentered:
            session = sessions.get(name)
            fact = f"{place_text(column.table.name, name)} is locked"
            text = f"{fact}, {holder_text(session)}" if session else fact
            pid = session.pid if session else None
            if name not in self._logged or self._logged[name] != pid:
                self._logged[name] = pid
                log.warning("%s: the handler keeps the signature, limits and breaker of the row until then", text)
        self._logged = {name: pid for name, pid in self._logged.items() if name in self._unentered}

    async def renew(
        self,
        running: int,
        on_reply: Callable[[HeartbeatReply], None],
        abandoned: tuple[int, int] = (0, 0),
        usage: Usage = UNKNOWN_USAGE,
        tasks: Collection[int] = (),
    ) -> StoreError | None:
        """Send a heartbeat.

        Args:
            running: number of tasks in flight.
            on_reply: called with the reply.
            abandoned: number of abandoned threads, and of replaced ones.
            tasks: their ids.

        Returns:
            The error of a heartbeat that failed; None for one that was answered.

        Raises:
            DatabaseUnusable: all heartbeats of one lease failed; the SQLite file is read-only, damaged or unreachable.
        """
        started, own = elapsed(), self.id
        report = (running, self._gap, abandoned, usage, tasks)
        try:
            with answer_within(renewal_limit(self._seconds)):
                reply = await self._database.write(heartbeat, own, self._seconds, *report)
        except StoreError as error:
            self.note_failure(error)
            if self._failing_since is None:
                self._failing_since = elapsed()
                log.warning("could not renew the lease: %s", error)
            # After a stop of the process the lease has expired before the first error, which may pass.
            if not self.is_valid and elapsed() - self._failing_since >= self._seconds * MARGIN:
                raise_if_final(error)
            return error
        if self._failing_since is not None:
            log.info("the lease is renewed again after %s", age(elapsed() - self._failing_since))
        self._failing_since = None
        self._answers.append(elapsed() - started)
        if self._is_leaving or self.id != own:
            return None  # deregistered while the statement ran
        if reply.alive:
            if reply.late or not self.is_valid:
                self.distrust()
            self._renewed, self._is_confirmed = started, True
        else:
            self.declared_lost = True
        on_reply(reply)
        return None

    def note_renewal(self, own: int, started: float, alive: bool, late: bool) -> None:
        """Record a renewal from another thread. The next heartbeat cancels the tasks if the runner was declared lost.

        Args:
            started: start of the renewal in monotonic seconds.
            alive: False if the runner was declared lost.
            late: True if the lease had expired.
        """
        if self._is_leaving or self.id != own:
            return
        if not alive:
            self._is_confirmed = False  # claim nothing until a heartbeat confirms it
        else:
            if late or not self.is_valid:
                self.distrust()
            self._renewed, self._is_confirmed = max(self._renewed, started), True

    def note_failure(self, error: BaseException | None) -> None:
        """Record a renewal that failed, from any thread."""
        if isinstance(error, DatabaseUnavailable):
            self._unavailable_at = elapsed()

    async def acknowledge(self, command: str, rest: str | None, capacity: int, threads: int, processes: int) -> None:
        """Store that a command was executed except for the rest, with the new capacity."""
        self.identity = self.identity._replace(capacity=capacity, threads=threads, processes=processes)
        await self._database.write(acknowledge, self.id, command, rest, capacity, threads, processes)

    async def resize_executors(self, capacity: int, sizes: Mapping[str, int]) -> None:
        """Store the slots of the external executors, with the new capacity."""
        before = self.identity.executors
        executors = {name: ExecutorSlots(slots=size, handlers=before[name]["handlers"]) for name, size in sizes.items()}
        self.identity = self.identity._replace(capacity=capacity, executors=executors)
        await self._database.write(resize_executors, self.id, capacity, executors)

    async def deregister(self) -> None:
        """Deregister. No tasks may be in flight."""
        self._is_leaving = True  # a heartbeat beside it would find the runner lost
        await self._database.write(leave, self.id, self._gap)
        self.id = 0


class BlockingRenewal:
    """Renews a lease on a connection of its own, without an event loop.

    Args:
        settings: the database URL and the lease.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        limit = renewal_limit(settings.lease_timeout.total_seconds())
        self._connector = Connector(AnswerLimits(limit, limit, limit), strict=True)
        self._engine: sa.Engine | None = None

    def renew(self, runner_id: int, block: LoopBlock) -> Renewal:
        """Renew the lease of a runner, and store why its heartbeat does not."""
        with self._open() as tx:
            return tx.follow(renew(tx, runner_id, self._settings.lease_timeout.total_seconds(), block))

    def end(self, runner_id: int) -> None:
        """End the lease of a runner whose process has ended."""
        with self._open() as tx:
            tx.follow(end_lease(tx, runner_id))

    def suspects(self, runner_id: int) -> list[tuple[int, str]]:
        """Read id and handler of the tasks that the runner executes."""
        with self._open() as tx:
            return tx.follow(suspects(tx, runner_id))

    @contextmanager
    def _open(self) -> Iterator[BlockingTransaction]:
        with ExitStack() as stack:
            connection = self._get_engine().connect()
            stack.callback(close_connection, connection)
            stack.enter_context(connection.begin())
            try:
                yield BlockingTransaction(connection, self._database.tables, self._database.dialect)
            except Exception:
                invalidate_closed(connection)
                raise

    def close(self) -> None:
        """Close the connection."""
        if self._engine is not None:
            self._engine.dispose()

    def _get_engine(self) -> sa.Engine:
        if self._engine is None:
            url = sync_url(self._settings.url)
            options = connect.options(url) | {"pool_size": 1, "max_overflow": 0}
            engine = sa.create_engine(url, hide_parameters=True, **options)
            connect.prepare(engine, self._settings.sqlite_synchronous, self._connector)
            self._engine = engine.execution_options(**connect.SINGLE[engine.dialect.name])
        return self._engine
