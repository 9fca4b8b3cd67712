"""Shards: the clients of several databases as one, by the routes of tasks.

Each submit goes to one shard as a whole, so that it stays one transaction.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from runner.client.commit import Template
from runner.client.database_client import Client
from runner.client.payload_sealing import PayloadSealing
from runner.client.placement import Placement
from runner.errors import InvalidTask, ShardNotChosen, TwoShards
from runner.model.shard import ShardId
from runner.model.task import NewTask, SubmitResult
from runner.policy.shard_rule import owner_of
from runner.settings import Settings
from runner.settings.shards import shard_settings

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.db.database_identity import DatabaseIdentity
    from runner.db.statement import SingleInsert, Steps, StepsBuilder

T = TypeVar("T")


class ShardClient(Client):
    """The client of one shard."""

    @property
    def shard(self) -> str:
        """The name of the shard."""
        return self.settings.profile or ""

    _identity: "Future[DatabaseIdentity] | None" = None

    def identity(self) -> "Future[DatabaseIdentity]":
        """Read the identity of its database, once unless that fails."""
        from runner.db.database_identity import database_identity

        if self._identity is None or (self._identity.done() and self._identity.exception()):
            self._identity = self.run(lambda database: database.read(database_identity))
        return self._identity

    def _submission(self, tasks: Sequence[NewTask]) -> "StepsBuilder[SubmitResult]":
        """Check the database of an application's connection before the submit."""
        submission, expected = super()._submission(tasks), self.identity().result()

        def checked(driver: Any) -> "Steps[SubmitResult]":
            from runner.db.database_identity import identity_steps

            if (yield from identity_steps(driver)) != expected:
                why = f"the route of the task is in {self.shard}, and the connection tx leads to another database"
                raise TwoShards(why=why)
            return (yield from submission(driver))

        return checked


class ShardClients(Client):
    """The clients of the shards of a profile, as one client; it has no connection of its own.

    Args:
        settings: settings with shards. If they are those of one shard, as in a process of a runner, a task without a
            route belongs to it.

    Raises:
        InvalidSettings: a shard has no profile, or the rule cannot be loaded.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.pid = settings, os.getpid()
        self.sealing = PayloadSealing(settings)
        # Not the constructor of a client, which opens what each shard has.
        self.frame = None
        self.placement = Placement(settings)
        self.by_shard = {name: ShardClient(own) for name, own in shard_settings(settings).items()}
        """The client of each shard, by its name."""

    def insert_of(self, template: Template) -> "SingleInsert | None":  # noqa: ARG002 - other clients need it
        """None: each submit has a route."""
        return None

    def load_now(self) -> None:
        """Import the packages of a submit; see `Client.load_now`."""
        for client in self.by_shard.values():
            client.load_now()
            self.frame = client.frame

    async def load(self) -> None:
        """Import the packages of a submit in threads."""
        for client in self.by_shard.values():
            await client.load()
            self.frame = client.frame

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks of one shard in a separate transaction."""
        client, placed = self._placed(tasks)
        return _of(client, client.submit(placed))

    async def submit_async(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit`, without blocking the caller's event loop."""
        client, placed = self._placed(tasks)
        return _of(client, await client.submit_async(placed))

    def submit_within(self, tx: object, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks in the transaction of an application's connection to their shard."""
        client, placed = self._placed(tasks)
        return _of(client, client.submit_within(tx, placed))

    async def submit_within_async(self, tx: object, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit_within`, for an async connection."""
        client, placed = self._placed(tasks)
        await asyncio.wrap_future(client.identity())
        return _of(client, await client.submit_within_async(tx, placed))

    def _placed(self, tasks: Sequence[NewTask]) -> tuple[ShardClient, Sequence[NewTask]]:
        shard, placed = self.placement.place(tasks)
        return self.by_shard[shard], placed

    def run(self, work: "Callable[[Database], Coroutine[Any, Any, T]]") -> Future[T]:  # noqa: ARG002 - as above
        """Refuse work for one database.

        Raises:
            ShardNotChosen: always.
        """
        raise ShardNotChosen(profile=self.settings.called, shards=", ".join(self.settings.shards))

    def client_of(self, id: int) -> Client:
        """Return the client of the shard of a task.

        Raises:
            InvalidTask: the id has no shard, or another one.
        """
        client = self.by_shard.get((id.shard if isinstance(id, ShardId) else self.placement.own) or "")
        if client is None:
            shards = " or ".join(self.settings.shards)
            why = f"an id is unique within its shard only: put {shards} and a colon before it, such as 'eu:17'"
            raise InvalidTask(field="id", value=str(id), why=why)
        return client

    def owner_of(self, schedule: str) -> Client:
        """The client of the shard that owns a schedule."""
        return self.by_shard[owner_of(schedule, self.settings.shards)]

    def each(self) -> list[Client]:
        """The clients of all shards."""
        return [*self.by_shard.values()]

    def close(self) -> None:
        """Close the connections of all shards."""
        for client in self.by_shard.values():
            client.close()


def _of(client: ShardClient, result: SubmitResult) -> SubmitResult:
    shard = client.shard
    return result._replace(ids=[ShardId(shard, id) for id in result.ids])
