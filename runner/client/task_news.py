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
"""Seconds between two requests for the same tasks: a runner may have started, and others forget requests."""

IDLE_ROUNDS = 6
"""Requests without a waiting caller after which the connection is closed."""

SILENCE = 30.0
"""Seconds without a notification after which the server is asked for a sign of life."""

CHECK_EVERY = 1.0
"""Longest time in seconds between two checks of a file whose changes are reported."""


class Hearer(Protocol):
    """A poller that looks early after news."""

    @property
    def watched(self) -> list[int]:
        """The tasks that callers wait for."""
        ...

    def hear(self, ids: Iterable[int] | None) -> None:
        """Look at tasks that have changed, or at all."""
        ...


class TaskNews:
    """Makes a poller look as soon as a task may have changed. Polling finds the changes without it.

    On PostgreSQL it asks runners for notices. On SQLite it watches the file. Both begin with the first waiting caller,
    and end some time after the last one.

    Args:
        database: opens the database.
        settings: names the file, and says whether to listen.
    """

    hearer: Hearer

    def __init__(self, database: "Callable[[], Awaitable[Database]]", settings: Settings) -> None:
        self._get_database, self._settings = database, settings
        self._client = secrets.token_hex(8)
        self._following: asyncio.Task[None] | None = None
        self._listener: Listener | None = None

    def begin(self, ids: Sequence[int]) -> None:
        """Ask for the news of more tasks. Call it on the event loop of the client."""
        if not self._settings.notify:
            return
        self._request(ids)
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
                ids = self.hearer.watched
                rounds = 0 if ids else rounds + 1
                self._request(ids)
        finally:
            news.cancel()
            await asyncio.wait([news])
            if not news.cancelled() and (error := news.exception()) is not None:
                log.debug("no news of tasks, polling instead: %s", error)

    async def _listen(self) -> None:
        from runner.db.listener import Listener
        from runner.db.watch_request import notice_channel, read_ids

        def hear(text: str) -> None:
            self.hearer.hear(read_ids(text))

        def on_connect() -> None:
            self._request(self.hearer.watched)
            self.hearer.hear(None)  # a notice may have been lost

        database = await self._get_database()
        channels = {notice_channel(database.tables, self._client): hear}
        self._tables = database.tables
        self._listener = Listener(database, channels, on_connect, SILENCE, log)
        try:
            await self._listener.run()
        finally:
            self._listener = None

    def _request(self, ids: Sequence[int]) -> None:
        if self._listener is None or not ids:
            return
        from runner.db.watch_request import Watch, WatchRequest, request_channel

        for text in WatchRequest(self._client, Watch.END, [*ids]).texts():
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
                        self.hearer.hear(None)
                if not changes.follow(path):  # this system does not report changes
                    return
                await changes.pause(CHECK_EVERY)
