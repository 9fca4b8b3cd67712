"""DjangoClient: submits through Django's connection, inside the transaction that is open there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from runner.client.client import Client
from runner.errors import DatabaseUnavailable
from runner.model.task import NewTask, SubmitResult

if TYPE_CHECKING:
    from runner.db.database import Database

IN_MEMORY = (
    "Django's database is in memory, where no other connection can read it; for tests that run tasks, set a file name: "
    'DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}'
)


class DjangoClient(Client):
    """The client of a Django process, web server or runner.

    A submit is part of `transaction.atomic()` around it, and commits itself outside of one, as a `save()` does. Reading
    results uses connections of its own.
    """

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks through Django's connection of this thread."""
        connection = connections[self.alias]
        if not connection.get_autocommit():
            connection.validate_no_broken_transaction()
            return self._insert(connection, tasks)
        with transaction.atomic(using=self.alias):
            return self._insert(connection, tasks)

    async def submit_async(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit`, in the thread in which Django's asynchronous queries run."""
        result: SubmitResult = await sync_to_async(self.submit, thread_sensitive=True)(tasks)
        return result

    def _insert(self, connection: Any, tasks: Sequence[NewTask]) -> SubmitResult:
        with connection.wrap_database_errors:
            connection.ensure_connection()
            return self.submit_within(connection.connection, tasks)

    @property
    def alias(self) -> str:
        """The alias of the database with the task tables."""
        from runner.django.apps import database_alias

        return database_alias()

    async def _open(self) -> "Database":
        if self.settings.url.kind == "sqlite" and is_in_memory(self.settings.url.database):
            raise DatabaseUnavailable(url=self.settings.url, why=IN_MEMORY)
        return await super()._open()


def is_in_memory(name: str) -> bool:
    """True if the name of a SQLite database means memory, as in Django's tests."""
    return name == ":memory:" or "mode=memory" in name
