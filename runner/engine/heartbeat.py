"""Lease: the time until which a runner counts as alive, and its renewal by heartbeats."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import sqlalchemy as sa

from runner.db import connect
from runner.db.database import Database
from runner.db.errors import raise_if_final
from runner.db.transaction import BlockingTransaction
from runner.engine.slots import InFlight
from runner.errors import StoreError
from runner.handlers.parameters import stored_signatures
from runner.handlers.registry import Handler
from runner.policy.claim_order import parse_order
from runner.policy.polling import describe_polling, parse_poll_mode
from runner.policy.selection import described_selection
from runner.settings import Settings
from runner.store.heartbeat import (
    UNKNOWN_USAGE,
    HeartbeatReply,
    Identity,
    LoopBlock,
    Renewal,
    Usage,
    acknowledge,
    heartbeat,
    leave,
    register,
    renew,
    suspects,
)
from runner.store.rescue import Rescuer
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
        self._failing_since: float | None = None
        self._trusts_from = 0.0
        self.declared_lost = False
        """True after a rescue declared this runner lost; it must register again."""

    @property
    def is_valid(self) -> bool:
        """True while other runners consider this one alive."""
        return self.id != 0 and not self.declared_lost and elapsed() - self._renewed < self._seconds * MARGIN

    @property
    def may_rescue(self) -> bool:
        """True while this runner may declare others lost.

        During a database outage no runner can renew, and every lease may expire. A runner rescues others only after it
        has renewed its own lease without a gap for one whole lease: every other runner then had the same time to renew.
        This period starts with the registration and after every gap.
        """
        return self.is_valid and elapsed() >= self._trusts_from

    @property
    def rescuer(self) -> Rescuer:
        """This runner as a rescuer; the database checks with its own clock how long it has been registered."""
        return Rescuer(self.id, self._seconds)

    def distrust(self) -> None:
        """Give all other runners one lease to renew before any of them counts as lost."""
        self._trusts_from = elapsed() + self._seconds

    async def register(self) -> None:
        """Register as a new runner."""
        started = elapsed()
        self.id = await self._database.write(register, self.identity, self._seconds)
        self._renewed = started
        self.distrust()
        self.declared_lost = False

    async def renew(
        self,
        running: int,
        on_reply: Callable[[HeartbeatReply], None],
        abandoned: tuple[int, int] = (0, 0),
        usage: Usage = UNKNOWN_USAGE,
    ) -> None:
        """Send a heartbeat.

        Args:
            running: number of tasks in flight.
            on_reply: called with the reply.
            abandoned: number of abandoned threads, and of replaced ones.
            usage: the resources in use.

        Raises:
            DatabaseRefused: all heartbeats of one lease failed; the SQLite file is read-only, damaged or unreachable.
        """
        started, own = elapsed(), self.id
        report = (running, self._gap, abandoned, usage)
        try:
            reply = await self._database.write_single(heartbeat, own, self._seconds, *report)
        except StoreError as error:
            log.warning("could not renew the lease: %s", error)
            if self._failing_since is None:
                self._failing_since = elapsed()
            # After a stop of the process the lease has expired before the first error, which may pass.
            if not self.is_valid and elapsed() - self._failing_since >= self._seconds * MARGIN:
                raise_if_final(error)
            return
        self._failing_since = None
        if self.id != own:
            return  # deregistered while the statement ran
        if reply.alive:
            if reply.late or not self.is_valid:
                self.distrust()
            self._renewed = started
        else:
            self.declared_lost = True
        on_reply(reply)

    def note_renewal(self, own: int, started: float, alive: bool, late: bool) -> None:
        """Record a renewal from another thread. The next heartbeat cancels the tasks if the runner was declared lost.

        Args:
            own: the id that was renewed.
            started: start of the renewal in monotonic seconds.
            alive: False if the runner was declared lost.
            late: True if the lease had expired.
        """
        if self.id != own:
            return
        if not alive:
            self._renewed = 0.0  # claim nothing until a heartbeat confirms it
        else:
            if late or not self.is_valid:
                self.distrust()
            self._renewed = max(self._renewed, started)

    async def acknowledge(self, command: str, rest: str | None, capacity: int, threads: int, processes: int) -> None:
        """Store that a command was executed except for the rest, with the new capacity."""
        self.identity = self.identity._replace(capacity=capacity, threads=threads, processes=processes)
        await self._database.write(acknowledge, self.id, command, rest, capacity, threads, processes)

    async def deregister(self) -> None:
        """Deregister. No tasks may be in flight."""
        await self._database.write(leave, self.id)
        self.id = 0


class BlockingRenewal:
    """Renews a lease on a connection of its own, without an event loop.

    Args:
        settings: the database URL and the lease.
        database: the database, for its tables.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._engine: sa.Engine | None = None

    def renew(self, runner_id: int, block: LoopBlock) -> Renewal:
        """Renew the lease of a runner, and store why its heartbeat does not."""
        with self._open() as tx:
            return tx.follow(renew(tx, runner_id, self._settings.lease_timeout.total_seconds(), block))

    def suspects(self, runner_id: int) -> list[tuple[int, str]]:
        """Read id and handler of the tasks that the runner executes."""
        with self._open() as tx:
            return tx.follow(suspects(tx, runner_id))

    @contextmanager
    def _open(self) -> Iterator[BlockingTransaction]:
        with self._get_engine().connect() as connection, connection.begin():
            yield BlockingTransaction(connection, self._database.tables, self._database.dialect)

    def close(self) -> None:
        """Close the connection."""
        if self._engine is not None:
            self._engine.dispose()

    def _get_engine(self) -> sa.Engine:
        if self._engine is None:
            url = sync_url(self._settings.url)
            options = connect.options(url) | {"pool_size": 1, "max_overflow": 0}
            engine = sa.create_engine(url, hide_parameters=True, **options)
            connect.prepare(engine, self._settings.sqlite_synchronous)
            self._engine = engine.execution_options(**connect.SINGLE[engine.dialect.name])
        return self._engine


def identity(handlers: Mapping[str, Handler], settings: Settings, in_flight: InFlight) -> Identity:
    """Return the identity of a runner in this process.

    Raises:
        InvalidSettings: a policy or a selection in the settings is not valid.
    """
    in_processes = sorted(name for name, handler in handlers.items() if handler.in_process)
    threaded = [name for name, handler in handlers.items() if not handler.is_async and not handler.in_process]
    names, queue_names, threads = sorted(handlers), sorted(settings.queues), in_flight.in_threads.size
    slices, buckets = described_selection(settings.slice, settings.buckets)
    limits = {name: handler.defaults.limits for name, handler in handlers.items() if handler.defaults.limits}
    breakers = {name: breaker.columns for name, handler in handlers.items() if (breaker := handler.defaults.breaker)}
    made = Identity(socket.gethostname(), os.getpid(), release(), names, in_flight.capacity, queue_names, threads)
    return made._replace(
        threaded=sorted(threaded),
        processes=in_flight.in_processes.size,
        in_processes=in_processes,
        limits=limits,
        breakers=breakers,
        signatures=stored_signatures(handlers, settings.retry, settings.max_attempts),
        claim_order=str(parse_order(settings.claim_order)),
        polling=describe_polling(parse_poll_mode(settings.poll_mode), settings.poll_interval, settings.scans),
        slice=slices,
        buckets=buckets,
    )


def release() -> str:
    """The version of this program."""
    try:
        return version("tasktui")
    except PackageNotFoundError:
        return "unknown"
