"""Databases: the sessions of a console with several databases, of which one is in front."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from runner.errors import DatabaseUnavailable, InvalidInput, RunnerError
from tasktui.session.opened import Opened
from tasktui.session.session import Alarm, Job, Session
from tasktui.session.shards import ShardsSession

LIST, TASK = "tasks", "task"
"""The task list, and the screen of a task of the list."""

ALARMS_EVERY = 10.0
"""Seconds between reads of the databases behind the one in front."""

OPEN_TIMEOUT = 3.0
"""Seconds that the start waits for further databases once one has answered."""


def mode_name(screen: str, place: int, *, past: bool = False) -> str:
    """The name by which the application knows a screen of a database, at present or at a past time."""
    name = f"{screen}@{place}" if place else screen
    return f"{name}@past" if past else name


class Databases:
    """The databases of a console.

    Each has screens of its own, with their cursors, marks and filters. A screen belongs to its database as long as the
    console runs, so that a key acts on the database that its screen shows.

    Args:
        sessions: one for each database; the first one is in front.
        first: the screen that each shows first.
    """

    def __init__(self, sessions: Sequence[Session], first: str) -> None:
        self.sessions = tuple(sessions)
        self._first = first
        self._opened = tuple(Opened() for _ in self.sessions)
        self._place = 0
        self._last: dict[int, str] = {}
        self._now: tuple[int, str] | None = None
        """The place of the database on the screen, and its screen; None at the start."""
        self._trails: tuple[list[tuple[int, str]], ...] = tuple([] for _ in self.sessions)
        """The screens, of any database, from which the one of each place was opened."""

    @property
    def front(self) -> Session:
        """The session with the database in front."""
        return self.sessions[self._place]

    @property
    def opened(self) -> Opened:
        """The arguments of the screens of the database in front."""
        return self.opened_of(self.front)

    def opened_of(self, session: Session) -> Opened:
        """The arguments of the screens of a database."""
        return next(opened for each, opened in zip(self.sessions, self._opened, strict=True) if each is session)

    @property
    def shown(self) -> str:
        """The screen that the database in front shows."""
        return self._last.get(self._place, self._first)

    @property
    def is_list_shown(self) -> bool:
        """True if the screen shows the task list of the database in front, which another one may just have opened."""
        return self._now == (self._place, LIST)

    @property
    def jobs(self) -> list[Job]:
        """The bulk operations in progress."""
        return [session.work for session in self.sessions if session.work is not None]

    def mode(self, screen: str, *, by_key: bool = False) -> str:
        """Note that the database in front shows a screen, and return the name of the screen for this database.

        Args:
            by_key: its key or a tab opens it, so that it has no opener; the key of the opener returns to that.
        """
        now, then, trail = self._now or (self._place, self._first), (self._place, screen), self._trails[self._place]
        opener = self._trails[now[0]]
        if (by_key or now[0] != self._place) and opener[-1:] == [then]:
            opener.pop()
        elif by_key and (now[1], screen) != (LIST, TASK):
            trail.clear()
        elif now not in (then, *trail[-1:]):
            trail.append(now)
        return self._show(screen)

    def back(self) -> str:
        """Return to the screen from which the one in front was opened, of any database; empty after its key."""
        trail = self._trails[self._place]
        if not trail:
            return self._show(LIST) if self.shown == TASK else ""
        self._place, screen = trail.pop()
        return self._show(screen)

    def _show(self, screen: str) -> str:
        self._now, self._last[self._place] = (self._place, screen), screen
        return mode_name(screen, self._place, past=self.front.at is not None)

    def next(self) -> str:
        """Bring the next database to the front, and return the screen that it shows."""
        self._place = (self._place + 1) % len(self.sessions)
        return self.shown

    def bring(self, session: Session) -> str:
        """Bring the database of a session to the front, and return the screen that it shows."""
        self._place = next(place for place, each in enumerate(self.sessions) if each is session)
        return self.shown

    def choose(self, name: str) -> str:
        """Bring a database to the front.

        Args:
            name: its name; the beginning is enough if no other one has it.

        Returns:
            The screen that it shows.

        Raises:
            InvalidInput: no database of the console has this name, or several begin with it.
        """
        names = [session.name for session in self.sessions]
        places = [place for place, each in enumerate(names) if each == name]
        places = places or [place for place, each in enumerate(names) if name and each.startswith(name)]
        if len(places) != 1:
            why = f"{name!r} begins several names" if places else f"this console has no database {name!r}"
            if len(names) == 1:
                why += "; start it with tasktui --profile A --profile B"
            raise InvalidInput(why=f"{why}. Its databases: {', '.join(names)}")
        return self.bring(self.sessions[places[0]])

    @property
    def behind(self) -> list[Session]:
        """The sessions with the other databases."""
        others = (session for session in self.sessions if session is not self.front)
        return [session for session in others if not isinstance(session, ShardsSession)]

    async def watch(self, read_alarm: Callable[[Session], Awaitable[Alarm]]) -> None:
        """Count the problems of the databases behind the one in front, until the console ends."""

        async def count(session: Session) -> None:
            session.alarm = await read_alarm(session)

        while len(self.sessions) > 1:
            await asyncio.gather(*(count(session) for session in self.behind))
            await asyncio.sleep(ALARMS_EVERY)


async def reached(sessions: Sequence[Session]) -> list[Session]:
    """Open the databases. One that cannot be opened keeps no other one from the start; the console tries it again.

    Args:
        sessions: the sessions, in the order of the command line.

    Returns:
        The sessions in the same cycle; the first one is open. The alarms of the others have their errors.

    Raises:
        StoreError: no database can be opened; the error of the first one.
    """
    opening = [asyncio.ensure_future(session.open()) for session in sessions]
    pending = set(opening)
    while pending and not any(_is_open(task) for task in opening):
        _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    if pending:
        _, pending = await asyncio.wait(pending, timeout=OPEN_TIMEOUT)
    for task in pending:
        task.cancel()  # The session lets the transaction end.
    first = next((place for place, task in enumerate(opening) if _is_open(task)), None)
    for session, task in zip(sessions, opening, strict=True):
        if task in pending:
            why = f"no answer for {OPEN_TIMEOUT:g} seconds"
            session.alarm = Alarm.of(DatabaseUnavailable(url=session.database.url, why=why))
        elif isinstance(error := task.exception(), RunnerError) and first is not None:
            session.alarm = Alarm.of(error)
        elif error is not None:
            raise error
    return [*sessions[first:], *sessions[:first]]


def _is_open(task: asyncio.Future[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
