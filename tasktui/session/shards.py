"""ShardsSession: the session over all shards of a profile, which reads and changes each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, Self, TypeVar

from runner.db.transaction import Transaction
from runner.errors import InvalidInput, RunnerError
from runner.model.shard import ShardId
from runner.queries.task_list.row import TaskRow
from runner.settings import Settings
from tasktui.session.session import Session

T = TypeVar("T")


class OneShardNeeded(InvalidInput):
    """This shows all shards of {profile}, and that needs one of them. Choose it: {commands}."""


@dataclass(slots=True)
class ShardsSession(Session):
    """One operator's session with all shards of a profile.

    Its screens and actions use the session of each shard. Nothing reads or changes a database through this one.

    Args:
        shards: the sessions of the shards, in the order of the profile.
        silent: the names of those without an answer to the last read.
    """

    shards: Sequence[Session] = ()
    silent: frozenset[str] = frozenset()

    @classmethod
    def over(cls, settings: Settings, shards: Sequence[Session]) -> Self:
        """Make the session over shards.

        Args:
            settings: those of the profile that names them.
            shards: their sessions.
        """
        first = shards[0]
        return cls(first.database, settings, zone=first.zone, views=first.views, shards=tuple(shards))

    def shard(self, name: str) -> Session:
        """The session of a shard."""
        return next(shard for shard in self.shards if shard.name == name)

    @property
    def heading(self) -> str:
        """The profile with the number of its shards."""
        return f"{self.name}, {len(self.shards)} shards"

    @property
    def writable(self) -> bool:
        """True if changes of a shard are allowed now."""
        return any(shard.writable for shard in self.shards)

    @property
    def why_locked(self) -> str:
        """The reason why changes of all shards are forbidden."""
        return self.shards[0].why_locked

    def lock_label(self, now: float) -> str:
        """The label of all shards, or those of the shards that have one."""
        labels = {shard.name: shard.lock_label(now) for shard in self.shards}
        if len(set(labels.values())) == 1:
            return labels[self.shards[0].name]
        return ", ".join(f"{name} {label}" for name, label in labels.items() if label)

    @property
    def is_lost(self) -> bool:
        """True while no shard answers."""
        return all(shard.is_lost for shard in self.shards)

    @property
    def distance(self) -> float:
        """Seconds that the queries of a screen spend on the way to the farthest server."""
        return max(shard.distance for shard in self.shards)

    @property
    def load(self) -> int:
        """Number of queries in the last minute, of all shards."""
        return sum(shard.load for shard in self.shards)

    async def go_to(self, _typed: str) -> None:
        """Refuse a past time.

        Raises:
            OneShardNeeded: always.
        """
        _refuse(self)

    async def open(self) -> None:
        """Do nothing: each shard is opened by its own session."""

    async def measure(self) -> None:
        """Measure the shards that answer; the slowest one counts."""
        answering = [shard for shard in self.shards if shard.name not in self.silent]
        await asyncio.gather(*map(_measured, answering))
        pings = [shard.ping for shard in answering if shard.ping is not None]
        self.ping = max(pings, key=lambda ping: ping.took, default=self.ping)

    async def _answer(self, _verb: Callable[[Transaction], Awaitable[T]], _seconds: float) -> T:
        _refuse(self)


def _refuse(session: ShardsSession) -> NoReturn:
    commands = ", ".join(f":db {shard.name}" for shard in session.shards)
    raise OneShardNeeded(profile=session.name, commands=commands)


async def _measured(shard: Session) -> None:
    with suppress(RunnerError):  # The next read of the shard reports an error that persists.
        await shard.measure()


def with_all_shards(sessions: Sequence[Session], profiles: Sequence[Settings]) -> list[Session]:
    """Put a session over all shards before those of each profile that has several.

    Args:
        profiles: the settings of each profile on the command line.
    """
    by_name = {session.name: session for session in sessions}
    listed: list[Session] = []
    for settings in profiles:
        if len(settings.shards) > 1 and settings.shard is None:
            shards = [by_name[name] for name in settings.shards]
            listed += [ShardsSession.over(settings, shards), *shards]
    return [*listed, *(session for session in sessions if session not in listed)]


def each_database(session: Session) -> Sequence[Session]:
    """The sessions of the databases that a session reads: those of its shards, or itself."""
    return session.shards if isinstance(session, ShardsSession) else (session,)


IdT = TypeVar("IdT", int, int | None)


def database_of(session: Session, id: IdT) -> tuple[Session, IdT]:
    """The session with the database of a task, and the id of the task there."""
    if isinstance(session, ShardsSession) and isinstance(id, ShardId):
        return session.shard(id.shard), int(id)
    return session, id


def shard_row(session: Session, name: str, task: TaskRow) -> TaskRow:
    """A task of a database with an id that has the shard, if the session has several."""
    return task._replace(id=ShardId(name, task.id)) if isinstance(session, ShardsSession) else task
