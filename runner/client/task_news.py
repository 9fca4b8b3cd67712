"""TaskNews: learns of changes of tasks while callers wait for them, on one connection of the process."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Protocol

from runner.settings import Settings

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.db.listener import Listener

log = logging.getLogger("runner.client")

REQUEST_EVERY = 10.0
"""Seconds between two requests for the same tasks: runners forget requests."""

IDLE_ROUNDS = 6
"""Requests without a waiting caller after which the connection is closed."""

SILENCE = 30.0
"""Seconds without a notification after which the server is asked for an answer."""

CHECK_EVERY = 1.0
"""Longest time in seconds between two checks of a file whose changes are reported."""


class Hearer(Protocol):
    """A poller that looks early after news."""

    @property
    def watched(self) -> list[int]:
        """The tasks that callers wait for."""

    def hear(self, ids: Iterable[int] | None) -> None:
        """Look at tasks that have changed, or at all."""


class TaskNews:
    """Makes pollers look as soon as a task may have changed. Polling finds the changes without it.

    On PostgreSQL it asks runners for notices. On SQLite it watches the file. Both begin with the first waiting caller,
    and end some time after the last one.

    Args:
        database: opens the database.
        settings: names the file, and says whether to listen.
    """

    def __init__(self, database: "Callable[[], Awaitable[Database]]", settings: Settings) -> None:
        self._get_database, self._settings = database, settings
        self._client = secrets.token_hex(8)
        self._hearers: dict[str, Hearer] = {}
        self._following: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    def add(self, watch: str, hearer: Hearer) -> None:
        """Add a poller.

        Args:
            watch: the value of the Watch that it asks for.
        """
        self._hearers[watch] = hearer

    def begin(self, watch: str, ids: Sequence[int]) -> None:
        """Ask for the news of more tasks. Call it on the event loop of the client.

        Args:
            watch: the poller that asks.
        """
        if not self._settings.notify:
            return
        self._request(watch, ids)
        if self._following is None or self._following.done():
            self._following = asyncio.ensure_future(self._follow())

    async def end(self) -> None:
        """Close the connection."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _follow(self) -> None:
        """Follow the news until no caller has waited for some time."""
        file = self._settings.url.file
        news = asyncio.ensure_future(self._listen() if file is None else self._watch(str(file)))
        rounds = 0
        try:
            while rounds < IDLE_ROUNDS:
                await asyncio.sleep(REQUEST_EVERY)
                rounds = 0 if self._request_all() else rounds + 1
        finally:
            news.cancel()
            await asyncio.wait([news])
            if not news.cancelled() and (error := news.exception()) is not None:
                log.debug("no news of tasks, polling instead: %s", error)

    async def _listen(self) -> None:
        from runner.db.listener import Listener
        from runner.db.watch_request import notice_channel, read_ids, start_channel

        def on_connect() -> None:
            self._request_all()
            self._hear(None)  # a notice may have been lost

        database = await self._get_database()
        channels: dict[str, Callable[[str], object]] = {
            notice_channel(database.tables, self._client): lambda text: self._hear(read_ids(text)),
            start_channel(database.tables): lambda _: self._request_all(),
        }
        self._tables = database.tables
        self._listener = Listener(database, channels, on_connect, SILENCE, log)
        try:
            await self._listener.run()
        finally:
            self._listener = None

    def _hear(self, ids: Sequence[int] | None) -> None:
        for hearer in self._hearers.values():
            hearer.hear(ids)

    def _request_all(self) -> bool:
        """Ask for the news of all tasks that callers wait for; False if there are none."""
        watched = {watch: hearer.watched for watch, hearer in self._hearers.items()}
        for watch, ids in watched.items():
            self._request(watch, ids)
        return any(watched.values())

    def _request(self, watch: str, ids: Sequence[int]) -> None:
        if self._listener is None or not ids:
            return
        from runner.db.watch_request import Watch, WatchRequest, request_channel

        for text in WatchRequest(self._client, Watch(watch), [*ids]).texts():
            self._listener.send(request_channel(self._tables), text)

    async def _watch(self, path: str) -> None:
        """Report each write to a SQLite file."""
        import sqlite3

        from runner.db.file_changes import FileChanges

        last = None
        with FileChanges() as changes, closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
            while True:
                with suppress(sqlite3.Error):  # another process has locked the file
                    version = connection.execute("PRAGMA data_version").fetchone()
                    if version != last:
                        last = version
                        self._hear(None)
                if not changes.follow(path):  # this system does not report changes
                    return
                await changes.pause(CHECK_EVERY)
