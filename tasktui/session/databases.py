"""Databases: the sessions of a console with several databases, of which one is in front."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tasktui.session.session import Job, Session

ALARMS_EVERY = 10.0
"""Seconds between reads of the databases behind the one in front."""


def mode_name(screen: str, place: int) -> str:
    """The name by which the application knows a screen of a database."""
    return f"{screen}@{place}" if place else screen


class Databases:
    """The databases of a console.

    Each has screens of its own, with their cursors, marks and filters. A screen belongs to its database as long as the
    console runs, so that a key acts on the database that its screen shows.

    Args:
        sessions: one for each database; the first one is in front.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self.sessions = tuple(sessions)
        self._place = 0
        self._last: dict[int, str] = {}

    @property
    def front(self) -> Session:
        """The session with the database in front."""
        return self.sessions[self._place]

    @property
    def jobs(self) -> list[Job]:
        """The bulk operations in progress."""
        return [session.work for session in self.sessions if session.work is not None]

    def mode(self, screen: str) -> str:
        """Note that the database in front shows a screen, and return the name of the screen for this database."""
        self._last[self._place] = screen
        return mode_name(screen, self._place)

    def next(self) -> str | None:
        """Bring the next database to the front.

        Returns:
            The screen that it showed last; None if it has shown none.
        """
        self._place = (self._place + 1) % len(self.sessions)
        return self._last.get(self._place)

    async def watch(self, read_alarm: Callable[[Session], Awaitable[tuple[str, str]]]) -> None:
        """Count the problems of the databases behind the one in front, until the console ends."""
        while len(self.sessions) > 1:
            for session in self.sessions:
                if session is not self.front:
                    session.alarm = await read_alarm(session)
            await asyncio.sleep(ALARMS_EVERY)
