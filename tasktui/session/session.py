"""The operator's session. The screens access the database and running bulk operations only through it."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar, cast

from runner.db.database import Database, StoreVerb
from runner.db.file_identity import identity
from runner.db.migrations.revisions import HEAD, check, check_in
from runner.db.transaction import Transaction, clock
from runner.errors import DatabaseRefused, DatabaseUnavailable, RunnerError, SchemaMissing
from runner.filter.saved import default_path
from runner.operations.results import Actor, Result, local_actor
from runner.queries.health import Permission, Ping, connection_permission, ping, staleness
from runner.settings import Settings
from runner.text import formatting
from runner.text.operator import local_zone
from tasktui.session.cache import DEADLINE, LONGEST_CHANGE, LONGEST_SILENCE, SILENCE, Timeout, TtlCache
from tasktui.session.write_lock import (
    BARRIERS,
    CLOSED,
    FILE,
    UNOPENED,
    FileReplaced,
    ReadOnly,
    ReadOnlyReason,
    WriteLock,
)


@dataclass(slots=True)
class Job:
    """A running operation.

    Args:
        what: name of the operation.
        total: number of tasks to change; None if the count stopped at its cap.
        began: start in seconds on the clock of `now`.
        done: number of tasks changed so far.
        stopping: no further chunk starts.
        note: the present stage, or the reason why it ended early; sanitized.
        before: number of tasks changed before the present shard.
        parts: the result in each shard; sanitized.
        undo: how to undo it.
    """

    what: str
    total: int | None
    began: float
    done: int = 0
    stopping: bool = False
    note: str = ""
    before: int = 0
    parts: list[str] = field(default_factory=list)
    undo: str = "8 Z undoes"

    def update(self, result: Result) -> None:
        """Update the progress."""
        self.done = self.before + len(result.changed)

    def stop(self) -> None:
        """Stop after the current chunk."""
        self.stopping = True

    def label(self, now: float) -> str:
        """The progress, and the key that stops the operation."""
        end = "stopping" if self.stopping else "ctrl+x stops it"
        note = f"; {self.note}" if self.note else ""
        took = 0.0 if self.note else now - self.began  # The rate of a stage does not predict the next one.
        return f"{self.what}: {formatting.progress(self.done, self.total, took)}{note}; {end}"


class Alarm(NamedTuple):
    """The problems of a database while another one is in front.

    Args:
        text: text beside its name; empty before the first read.
        error: why it cannot be read; empty if it can.
    """

    text: str = ""
    role: str = "muted"
    error: str = ""

    @classmethod
    def of(cls, error: RunnerError) -> Self:
        """The alarm of a database that cannot be read."""
        cause = error.fields["why"] if isinstance(error, DatabaseUnavailable) else error
        return cls("◌ unavailable", "lost", str(cause))


T = TypeVar("T")
P = ParamSpec("P")

NOTHING = "no answer for {seconds:g} seconds"
NOTHING_TO_A_CHANGE = NOTHING + "; the change may or may not have been made, so check before you repeat it"

MINUTE, TEN_SECONDS, FIVE_SECONDS = 60.0, 10.0, 5.0

EFFECTIVE = os.access in os.supports_effective_ids
RECENT = timedelta(minutes=10)
"""Age of the failures that the tabs count."""

ROUND_TRIPS = 3
"""Maximum number of round trips of the queries of a screen, unless it shows something deep."""

PINGS = 3
"""Clock queries per measurement, of which the fastest one counts."""


@dataclass(slots=True)
class Session:
    """One operator's session with one database.

    Queries use read-only connections. Each change opens a writable connection and closes it afterwards.

    Args:
        database: the database, opened read-only.
        lock: whether changes are allowed.
        zone: time zone of displayed and typed times.
        names: known queue and handler names, for completion.
        views: file of saved filters.
        work: the running bulk operation, at most one.
        ping: latency of one query and clock skew at the last measurement.
        round_trip: seconds of the fastest round trip of the last queries; 0 for a file.
        stale: age in seconds of the newest change on a standby at the last measurement.
        counts: text and role beside the tab of a screen where something needs attention, by name of the screen.
        alarm: its problems while another database is in front.
        at: the past moment that the screens show; None for the present.
    """

    database: Database
    settings: Settings
    lock: WriteLock = field(default_factory=WriteLock)
    zone: tzinfo = field(default_factory=local_zone)
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    views: Path = field(default_factory=default_path)
    work: Job | None = None
    ping: Ping | None = None
    round_trip: float = 0.0
    stale: float | None = None
    counts: dict[str, tuple[str, str]] = field(default_factory=dict)
    alarm: Alarm = field(default_factory=Alarm)
    at: datetime | None = None
    _schema_check: TtlCache[str] = field(default_factory=lambda: TtlCache(FIVE_SECONDS))
    _permission_check: TtlCache[tuple[Permission, float | None]] = field(default_factory=lambda: TtlCache(TEN_SECONDS))
    _counts: TtlCache[dict[str, tuple[str, str]]] = field(default_factory=lambda: TtlCache(TEN_SECONDS))
    _ping: TtlCache[Ping] = field(default_factory=lambda: TtlCache(TEN_SECONDS, share=0))
    _query_times: deque[float] = field(default_factory=deque)
    _prefetched: dict[object, asyncio.Task[Any]] = field(default_factory=dict)
    _change_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _reads: Timeout = field(default_factory=Timeout)
    _changes: Timeout = field(default_factory=Timeout)
    _file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The name of the database: its profile, or the last part of its URL."""
        return self.settings.called

    @property
    def heading(self) -> str:
        """The name as the heading shows it."""
        return self.name

    @property
    def writable(self) -> bool:
        """True if changes are allowed now."""
        return self.at is None and self.lock.is_open(time.monotonic())

    @property
    def why_locked(self) -> str:
        """The reason why changes are forbidden, for messages."""
        return self.lock.why if self.at is None else "it shows a past time; :at now returns to the present"

    async def go_to(self, typed: str) -> None:
        """Show a past moment, or the present with `now`.

        Raises:
            InvalidInput: the text is not a known past moment.
        """
        from runner.queries.past.as_of import read_moment  # The first screen does not need it.

        self.at = None if typed.strip() == "now" else await self.read(read_moment, typed, self.zone)

    def lock_label(self, now: float) -> str:
        """The label for the heading: the past moment, or the write lock, on a standby with the age of its data."""
        if self.at is not None:
            return f"AT {formatting.clock(self.at, self.now(), self.zone, seconds=bool(self.at.second))}"
        age = f", {formatting.age(self.stale)} old" if self.stale is not None else ""
        return (self.lock.label(now) or "WRITE" * self.settings.production) + age

    @property
    def load(self) -> int:
        """Number of queries in the last minute."""
        while self._query_times and self._query_times[0] < time.monotonic() - MINUTE:
            self._query_times.popleft()
        return len(self._query_times)

    async def open(self) -> None:
        """Check the tables, and read the rights of the login unless something else forbids changes.

        Raises:
            DatabaseUnavailable: the database cannot be reached.
            SchemaMissing: the file does not exist, or the tables do not.
            SchemaTooOld: the tables must be migrated first.
            SchemaTooNew: a later release created the tables.
        """
        url = self.settings.url
        if url.file is not None and not url.file.exists():
            raise SchemaMissing(url=url, needed=HEAD)
        permission = await self._checked(connection_permission, LONGEST_SILENCE)
        if self.lock.barrier is UNOPENED:
            self.lock.barrier = _barrier(self.settings, permission)

    def add_names(self, names: Mapping[str, Iterable[str]]) -> None:
        """Add names for completion, by filter field."""
        for field_name, values in names.items():
            self.names[field_name] = sorted({*self.names.get(field_name, ()), *values})

    def now(self) -> datetime:
        """The current time, for parsing input."""
        return datetime.now(UTC)

    def by(self, reason: str | None) -> Actor:
        """The actor of a change, with the reason."""
        return local_actor(reason or self.lock.reason)

    @property
    def is_lost(self) -> bool:
        """True while the database does not answer."""
        return self._reads.is_lost

    def start_read(self, verb: StoreVerb[[], T]) -> asyncio.Task[T]:
        """Start the first query of a screen before the screen exists; `read` returns its result."""
        return self._prefetched.get(verb) or self._prefetched.setdefault(verb, asyncio.create_task(self._read(verb)))

    async def read(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a store function in a short read-only transaction."""
        task = self._prefetched.pop(verb, None) if not (args or kwargs) else None
        return cast("T", await task) if task is not None else await self._read(verb, *args, **kwargs)

    async def _read(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._query_times.append(time.monotonic())
        return await self._checked(lambda tx: verb(tx, *args, **kwargs), SILENCE)

    async def _checked(self, verb: Callable[[Transaction], Awaitable[T]], seconds: float) -> T:
        """Run a store function; if the database refuses it, the state of the tables is the error, unless it is right.

        Raises:
            SchemaMissing: the tables do not exist; see also the other errors of `check`.
        """
        try:
            return await self._answer(verb, seconds)
        except DatabaseRefused:
            await self._reads.wait(check(self.database), seconds, self._timeout_error(NOTHING, seconds))
            raise

    async def _answer(self, verb: Callable[[Transaction], Awaitable[T]], seconds: float) -> T:
        """Run a store function, and return its result before the end of its transaction on a server."""
        answer: asyncio.Future[T] | None = None
        if self.database.dialect.is_server:
            answer = asyncio.get_running_loop().create_future()

        async def transaction() -> T:
            trips: list[float] = []

            def on_answer(took: float) -> None:
                self._reads.hear()
                trips.append(took)

            async with self.database.reading(DEADLINE, on_answer) as tx:
                self._file = self._file_now()
                check_schema = self._schema_check.get(None, lambda: check_in(tx, self.database.url))
                _, result = await tx.gather(check_schema, verb(tx))
                self.round_trip = min(trips, default=0.0)
                if answer is not None and not answer.done():
                    answer.set_result(result)
                return result

        return await self._reads.wait(transaction(), seconds, self._timeout_error(NOTHING, seconds), answer)

    @property
    def distance(self) -> float:
        """Seconds that the queries of a screen spend on the way to the server.

        Queries that travel together have one answer, which is late if one of them is slow. The ping has no work.
        """
        return ROUND_TRIPS * min(self.round_trip, self.round_trip if self.ping is None else self.ping.took)

    async def measure(self) -> None:
        """Measure latency and clock skew, the lag of a standby, and the counts of the tabs, at intervals.

        After the promotion of a standby, changes are allowed as far as login and profile permit. The same holds after
        the end of each other reason that may end, such as a database that could not be reached at the start.
        """
        if self.lock.barrier is UNOPENED:
            await self.open()
        elif self.lock.barrier is not None and self.lock.barrier.end:
            permission, self.stale = await self._permission_check.get(None, partial(self.read, _permission, self))
            self.lock.barrier = _barrier(self.settings, permission)
        await (self.pinged() if self.ping is not None and self.ping.slow else self._ping.get(None, self.pinged))
        self.counts = await self._counts.get(None, lambda: self.read(_tab_counts), self.distance)

    async def pinged(self) -> Ping:
        """Measure the latency of one query; every screen shows this value."""
        self.ping = await ping(lambda: self.read(clock), PINGS)
        return self.ping

    async def write(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a store function in a writable transaction.

        Raises:
            ReadOnly: changes are forbidden now.
            StoreError: the tables are of another release, or the database rejects the change.
        """
        self._query_times.append(time.monotonic())
        async with self._change_lock:
            if not self.writable:
                raise ReadOnly(why=self.why_locked)
            if self._file not in (None, self._file_now()):
                raise FileReplaced(path=self.settings.url.database)
            timeout_error = self._timeout_error(NOTHING_TO_A_CHANGE, LONGEST_SILENCE)
            return await self._changes.wait(self._change(verb, *args, **kwargs), LONGEST_SILENCE, timeout_error)

    async def _change(self, verb: StoreVerb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        database = Database.of(self.settings, deadline=LONGEST_CHANGE, connector=self.database.connector)

        async def checked(tx: Transaction) -> T:
            await check_in(tx, self.database.url)
            return await verb(tx, *args, **kwargs)

        try:
            return await database.write(checked)
        finally:
            await database.dispose()

    @property
    def is_changing(self) -> bool:
        """True while a change is written."""
        return self._changes.is_busy

    async def finish(self) -> None:
        """Cancel the running queries, and wait for the running changes; the database may be closed only then."""
        await self._reads.cancelled(self.database.interrupt_reads)
        await asyncio.gather(*self._prefetched.values(), return_exceptions=True)
        await self._changes.wait_idle()

    def _file_now(self) -> tuple[int, int] | None:
        """The identity of the database file, if it exists."""
        return identity(self.settings.url.database) if self.settings.url.file is not None else None

    def _timeout_error(self, why: str, seconds: float) -> DatabaseUnavailable:
        return DatabaseUnavailable(url=self.database.url, why=why.format(seconds=seconds))


async def _permission(tx: Transaction, session: Session) -> tuple[Permission, float | None]:
    """The permissions on the server, and the age of its data while it is a standby.

    A connection keeps the default of its database with which it began, so a new one reads it.
    """
    if session.lock.barrier is CLOSED:
        database = Database.of(session.settings, read_only=True, connector=session.database.connector)
        try:
            return await database.read(connection_permission), None
        finally:
            await database.dispose()
    permission = await connection_permission(tx)
    return permission, await staleness(tx) if permission is Permission.STANDBY else None


def _barrier(settings: Settings, permission: Permission) -> ReadOnlyReason | None:
    file = settings.url.file
    is_protected = file is not None and not os.access(file, os.W_OK, effective_ids=EFFECTIVE)
    return FILE if is_protected else BARRIERS[permission]


async def _tab_counts(tx: Transaction) -> dict[str, tuple[str, str]]:
    """The failure groups of the last minutes, and a sign for a silent runner and for a late or invalid schedule."""
    from runner.queries.failures import number_of_groups  # The first screen does not need these.
    from runner.queries.runners import silent_runners
    from runner.queries.schedules import schedules

    at = await clock(tx)
    failing, silent, planned = await tx.gather(
        number_of_groups(tx, at - RECENT), silent_runners(tx), schedules(tx, runs=1)
    )
    counts: dict[str, tuple[str, str]] = {}
    if failing.number:
        counts["failures"] = (str(failing), "dead")
    if silent:
        counts["runners"] = ("!", "lost")
    if any(row.error is not None or row.lateness(at) is not None for row in planned):
        counts["schedules"] = ("!", "retrying")
    return counts
