"""Session: one operator at one database, and the only way of the screens into it."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from runner.errors import DatabaseAway, DatabaseRefused
from runner.migrations.revisions import check, check_in
from runner.people import cells
from runner.people.person import local_zone
from runner.people.sorts import NEWEST, Sort
from runner.people.views import default_path
from runner.settings import Settings
from runner.store.database import Database
from runner.store.filesystem import identity
from runner.store.intervene import By, who
from runner.store.observe import Ping, Standing, clock, ping, staleness, standing
from runner.store.transaction import Transaction
from tasktui.operator.patience import Patience
from tasktui.operator.recall import Recall
from tasktui.operator.work import Work
from tasktui.operator.writing import HELD, STANDBY, FileReplaced, ReadOnly, WriteLock

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate[Transaction, P], Awaitable[T]]

DEADLINE = 5.0
"""Seconds after which the database breaks off a statement of ours: a console must not add to the trouble it shows."""

LONGEST_CHANGE = 15.0
"""The same for one that changes something, which may have to wait for a row that somebody else holds."""

SILENCE = 15.0
"""Seconds after which a database that says nothing, not even that it broke something off, is told to be away."""

LONGEST_SILENCE = 30.0
"""The same for a change: what it did is not known then."""

NOTHING = "it has not answered for {seconds:g} seconds"
NOTHING_TO_A_CHANGE = NOTHING + ", and whether it made the change is not known: look before you do it again"

MINUTE = 60.0
TEN_SECONDS = 10.0

FIVE_SECONDS = 5.0
"""For so long tables are believed to be of this release: somebody may migrate them under an open console."""

PINGS = 3
"""Questions for the time of the database, of which the one counts that was answered first."""


@dataclass(slots=True)
class Session:
    """One operator at one database.

    What is shown is read through connections on which nothing can be changed; one on which something can is opened for
    a change and closed behind it.

    Args:
        database: open, to look only.
        settings: in force.
        lock: whether changes are allowed.
        zone: in which times are shown and read.
        task_id: the task whose story is told.
        wanted: the filter of the list, as text.
        sought: what the next screen is to put its cursor on: the number of a runner, or what an operator changed.
        sort: the order of the list.
        names: that were seen, of queues and handlers, to complete what is typed.
        views: the file of saved filters.
        work: something long that is under way; one at a time.
        ping: how fast the database answered one question, and how far its clock was ahead of ours, when that was
            measured last.
        stale: how old the newest change was that a standby showed when it was measured last, in seconds.
    """

    database: Database
    settings: Settings
    lock: WriteLock = field(default_factory=WriteLock)
    zone: tzinfo = field(default_factory=local_zone)
    task_id: int | None = None
    wanted: str = ""
    sought: str = ""
    sort: Sort = NEWEST
    names: dict[str, Sequence[str]] = field(default_factory=dict)
    views: Path = field(default_factory=default_path)
    work: Work | None = None
    ping: Ping | None = None
    stale: float | None = None
    _fits: Recall[str] = field(default_factory=lambda: Recall(FIVE_SECONDS))
    _following: Recall[tuple[Standing, float | None]] = field(default_factory=lambda: Recall(TEN_SECONDS))
    _ping: Recall[Ping] = field(default_factory=lambda: Recall(TEN_SECONDS))
    _asked: deque[float] = field(default_factory=deque)
    _ahead: dict[object, asyncio.Task[Any]] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _patience: Patience = field(default_factory=Patience)
    _file: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """What the database is called: its profile, or the last part of its URL."""
        return self.settings.called

    @property
    def writable(self) -> bool:
        """Whether changes are allowed at this moment."""
        return self.lock.is_open(time.monotonic())

    def held(self, now: float) -> str:
        """Whether changes are allowed, for the heading; of a standby also how old its news is."""
        old = f", {cells.age(self.stale)} old" if self.stale is not None else ""
        return self.lock.told(now) + old

    @property
    def load(self) -> int:
        """How often we asked the database in the last minute."""
        while self._asked and self._asked[0] < time.monotonic() - MINUTE:
            self._asked.popleft()
        return len(self._asked)

    def learn(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Keep names that were seen, by the fields of a filter, to complete what is typed."""
        for place, found in seen.items():
            self.names[place] = sorted({*self.names.get(place, ()), *found})

    def now(self) -> datetime:
        """The present, for reading what people type."""
        return datetime.now(UTC)

    def by(self, reason: str | None) -> By:
        """Who changes something, from where, and why."""
        return who(reason or self.lock.reason)

    def ask_ahead(self, verb: Verb[[], T]) -> None:
        """Ask already what will be asked first by a screen that is not there yet."""
        self._ahead[verb] = asyncio.create_task(self._read(verb))

    async def read(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a transaction that can change nothing, and not for long."""
        asked = self._ahead.pop(verb, None) if not (args or kwargs) else None
        return cast("T", await asked) if asked is not None else await self._read(verb, *args, **kwargs)

    async def _read(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        async def transaction() -> T:
            async with self.database.reading(DEADLINE) as tx:
                self._file = self._file_now()
                await self._fits.get(None, lambda: check_in(tx, self.database.url))
                return await verb(tx, *args, **kwargs)

        self._asked.append(time.monotonic())
        try:
            return await self._patience.wait(transaction(), SILENCE, self._silence(NOTHING, SILENCE))
        except DatabaseRefused:  # tables of another release are the likeliest reason
            await self._patience.wait(check(self.database), SILENCE, self._silence(NOTHING, SILENCE))
            raise

    async def measure(self) -> None:
        """Find out how fast the database answers and what its clock shows, and a standby's delay, now and then.

        A standby that was promoted takes changes from then on, as far as the login and the profile let it.
        """
        if self.lock.barrier is STANDBY:
            found, self.stale = await self._following.get(None, lambda: self.read(_following))
            self.lock.barrier = HELD[found]
        await self._ping.get(None, self.pinged)

    async def pinged(self) -> Ping:
        """Measure how fast the database answers one question; what is told of that anywhere is this."""
        self.ping = await ping(lambda: self.read(clock), PINGS)
        return self.ping

    async def write(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb of the store in a transaction that may change things.

        Raises:
            ReadOnly: changes are not allowed at this moment.
            StoreError: the tables are of another release, or the database refuses.
        """
        self._asked.append(time.monotonic())
        async with self._turn:
            if not self.writable:
                raise ReadOnly(why=self.lock.why)
            if self._file not in (None, self._file_now()):
                raise FileReplaced(path=self.settings.url.database)
            silence = self._silence(NOTHING_TO_A_CHANGE, LONGEST_SILENCE)
            return await self._patience.wait(self._change(verb, *args, **kwargs), LONGEST_SILENCE, silence)

    async def _change(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        database = Database.of(self.settings, deadline=LONGEST_CHANGE)

        async def checked(tx: Transaction) -> T:
            await check_in(tx, self.database.url)
            return await verb(tx, *args, **kwargs)

        try:
            return await database.write(checked)
        finally:
            await database.dispose()

    async def ended(self) -> None:
        """Wait until nothing is under way any more: only then the database may be closed."""
        await asyncio.gather(*self._ahead.values(), return_exceptions=True)
        await self._patience.ended()

    def _file_now(self) -> tuple[int, int] | None:
        """Which file the database is, if it is one and there is one."""
        if self.settings.url.kind == "sqlite":
            with suppress(FileNotFoundError):
                return identity(self.settings.url.database)
        return None

    def _silence(self, why: str, seconds: float) -> DatabaseAway:
        return DatabaseAway(url=self.database.url, why=why.format(seconds=seconds))


async def _following(tx: Transaction) -> tuple[Standing, float | None]:
    """What the server is by now, and how old its news while it is a standby."""
    found = await standing(tx)
    return found, await staleness(tx) if found is Standing.STANDBY else None
