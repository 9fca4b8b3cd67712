"""A client: the connections of a process to one database, for submitting and for reading results.

Every submit passes through the functions of @around_submit.

The two forms of a call, `submit` and `submit_async`, share all but the wait. One body for both would be a generator
with a driver: each submit would pass more functions, and the signatures, which are most of the second form, would stay.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from runner.client.commit import (
    MOST,
    Coalescer,
    GroupedSubmits,
    SubmitThreads,
    Template,
    raise_explained,
    shares_commits,
    submit_alone,
)
from runner.client.event_poller import EventPoller
from runner.client.payload_sealing import PayloadSealing
from runner.client.result_poller import ResultPoller
from runner.client.task_news import TaskNews
from runner.errors import DatabaseRefused, DatabaseUnavailable
from runner.handlers.hooks import LIFE_CYCLE, submitting
from runner.handlers.inherited_headers import may_inherit
from runner.handlers.keyring import Keyring
from runner.model.task import NewTask, SubmitResult
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.db.database import Database
    from runner.db.migrations.revisions import StoredRevision
    from runner.db.migrations.sequences import LateSequence
    from runner.db.statement import SingleInsert, StatementFrame, StepsBuilder
    from runner.db.thread_connections import Reader

T = TypeVar("T")
log = logging.getLogger("runner")

CLOSE_TIMEOUT = 10.0
"""Seconds allowed for unfinished work when the client closes."""


class Client:
    """Connections for submitting and for reading results; code with and without an event loop uses the same client.

    A submit runs in the thread of its caller, or for an event loop in a thread of the client. An event loop of the
    client decides when to read results, and a thread reads them.

    Args:
        settings: names the database.
    """

    is_replaceable = True
    """False for the client of a test's store, which `connect` and `disconnect` of the application leave in place."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.sealing = PayloadSealing(settings)
        self._loop = asyncio.new_event_loop()
        self._news = TaskNews(self._get_database, settings)
        begin = self._news.begin
        self.waiting = ResultPoller(partial(_look, self, _opened_endings), self._loop, partial(begin, "end"))
        """Callers that wait for tasks to finish."""
        self.following = EventPoller(partial(_look, self, _event_facts), self._loop, partial(begin, "change"))
        """Callers that follow the events of tasks."""
        self._news.add("end", self.waiting)
        self._news.add("change", self.following)
        self._coalescer = Coalescer(self._submit_chunk, self._loop) if settings.coalesce else None
        self._threads = SubmitThreads()
        self._grouped = GroupedSubmits(self._threads, partial(_submit_group, self))
        self._database: asyncio.Future[Database] | None = None
        self._opened_database: Database | None = None
        self.frame: StatementFrame | None = None
        """The frame of the statements of submits; None before the packages are loaded."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="runner-client", daemon=True)
        self._thread.start()

    def client_of(self, id: int) -> "Client":  # noqa: ARG002 - those of shards differ
        """The client of the database of a task: this one."""
        return self

    def owner_of(self, schedule: str) -> "Client":  # noqa: ARG002
        """The client of the database of a schedule: this one."""
        return self

    def each(self) -> "list[Client]":
        """The clients of all databases: this one."""
        return [self]

    async def load(self) -> None:
        """Import the packages of a submit in a thread: the event loop of the caller continues."""
        self.frame = await self._threads.run(load_packages, self.settings)

    def load_now(self) -> None:
        """Import the packages of a submit.

        Raises:
            DriverMissing: the driver of the database is not installed.
        """
        self.frame = load_packages(self.settings)

    def insert_of(self, template: Template) -> "SingleInsert | None":
        """Return the statement that submits a task in one step; None if its submit needs more.

        Args:
            template: keeps the statement for the next submit.

        Raises:
            InvalidTask: a value cannot be stored.
        """
        if self._coalescer is not None or LIFE_CYCLE.callbacks.get("around_submit") or may_inherit():
            return None
        client, insert = template.entry
        if client is not self:
            insert = self._new_insert(template.task)
            template.entry = self, insert
        return insert

    def _new_insert(self, task: NewTask) -> "SingleInsert | None":
        self.frame = self.frame or load_packages(self.settings)
        from runner.store.submit import single_insert

        return single_insert(self.frame, task, self.settings.notify)

    def submit_one(self, insert: "SingleInsert", payload: str) -> int:
        """Submit one task in a separate transaction and return its id.

        Args:
            insert: the statement.
            payload: JSON text as Signature.encode writes it.
        """
        payload = self.sealing.payload(insert.task.handler, payload)
        try:
            return (self._opened_database or self._open_database()).threads.insert(insert, payload)
        except DatabaseUnavailable as error:
            raise_explained(error, [insert.task])

    async def submit_one_async(self, insert: "SingleInsert", payload: str) -> int:
        """Same as `submit_one`, without blocking the caller's event loop."""
        opens = self.settings.url.file is None  # `close` waits for the whole call in a thread
        database = self._opened_database or (await self._threads.run(self._open_database) if opens else None)
        if self.sealing.may_block([insert.task]):
            payload = await self._threads.run(self.sealing.payload, insert.task.handler, payload)
        else:
            payload = self.sealing.payload(insert.task.handler, payload)
        if database is None or (loops := database.loops) is None:
            return await self._grouped.put(insert, payload)
        try:
            return await loops.insert(insert, payload)
        except DatabaseUnavailable as error:
            raise_explained(error, [insert.task])

    def submit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks in a separate transaction."""
        if not (LIFE_CYCLE.callbacks.get("around_submit") or may_inherit()):
            return self._commit(tasks)
        with submitting(tasks) as around:
            around.result = self._commit(around.tasks)
        return around.result

    async def submit_async(self, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit`, without blocking the caller's event loop."""
        with submitting(tasks) as around:
            if self._coalescer is not None and shares_commits(around.tasks):
                if self.sealing.may_block(around.tasks):
                    (task,) = await self._threads.run(self.sealing.tasks, around.tasks)
                else:
                    (task,) = self.sealing.tasks(around.tasks)
                around.result = await asyncio.wrap_future(self._coalescer.put(task))
            else:
                around.result = await self._threads.run(self._commit, around.tasks)
        return around.result

    def _commit(self, tasks: Sequence[NewTask]) -> SubmitResult:
        tasks = self.sealing.tasks(tasks)
        if self._coalescer is not None and shares_commits(tasks):
            return self._coalescer.put(tasks[0]).result()
        from runner.db.server_watch import answer_within
        from runner.store.submit import submit_steps

        threads = (self._opened_database or self._open_database()).threads
        submit = partial(threads.write, submit_steps, tasks, self.settings.notify)
        try:
            if len(tasks) <= MOST:
                return submit()
            with answer_within(None):  # a million tasks take minutes
                return submit()
        except DatabaseUnavailable as error:
            raise_explained(error, tasks)

    def _open_database(self) -> "Database":
        return asyncio.run_coroutine_threadsafe(self._get_database(), self._loop).result()

    async def _submit_chunk(self, tasks: Sequence[NewTask]) -> SubmitResult:
        return await submit_alone(await self._get_database(), tasks, notify=self.settings.notify)

    def submit_within(self, tx: object, tasks: Sequence[NewTask]) -> SubmitResult:
        """Submit tasks in the transaction of an application's connection, without any other connection."""
        from runner.client.external import explained, follower

        with explained(), submitting(tasks) as around:
            around.result = follower(tx)(tx, self._submission(self.sealing.tasks(around.tasks)))
        return around.result

    async def submit_within_async(self, tx: object, tasks: Sequence[NewTask]) -> SubmitResult:
        """Same as `submit_within`, for an async connection."""
        from runner.client.external import explained, follower_async

        with explained(), submitting(tasks) as around:
            blocks = self.sealing.may_block(around.tasks)
            tasks = await (asyncio.to_thread if blocks else _at_once)(self.sealing.tasks, around.tasks)
            around.result = await follower_async(tx)(tx, self._submission(tasks))
        return around.result

    def _submission(self, tasks: Sequence[NewTask]) -> "StepsBuilder[SubmitResult]":
        from runner.db.statement import StatementFrame
        from runner.store.submit import submit_steps

        return lambda driver: submit_steps(StatementFrame.of(self.settings, driver), tasks, self.settings.notify)

    def begin(self, verb: "Callable[..., Awaitable[T]]", *arguments: Any, reads: bool) -> "Future[T]":
        """Begin a read or a change in a transaction of its own.

        Args:
            verb: a query or an operation.
            reads: True if it only reads.
        """
        return self.run(lambda database: (database.read if reads else database.write)(verb, *arguments))

    def opening(self) -> Future[None]:
        """Open the database if it is not open; the future resolves when that has succeeded or failed."""

        async def attempt() -> None:
            with contextlib.suppress(Exception):  # the next query opens it again, and reports the error
                await self._get_database()

        if self._database is not None and self._database.done():
            opened: Future[None] = Future()
            opened.set_result(None)
            return opened
        return asyncio.run_coroutine_threadsafe(attempt(), self._loop)

    def run(self, work: "Callable[[Database], Coroutine[Any, Any, T]]") -> Future[T]:
        """Run a coroutine with the database on the client's loop."""

        async def with_database() -> T:
            from runner.db.connect import requires_packages

            with requires_packages():
                return await work(await self._get_database())

        return asyncio.run_coroutine_threadsafe(with_database(), self._loop)

    async def _get_database(self) -> "Database":
        if self._database is None or (self._database.done() and self._database.exception()):
            self._database = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._database)

    async def _open(self) -> "Database":
        from runner.db.database import Database
        from runner.db.migrations.apply import accept, explaining_packages
        from runner.db.migrations.revisions import current_revision
        from runner.db.migrations.sequences import advance

        database = Database.of(self.settings)
        try:
            frame = self.frame or load_packages(self.settings)
            try:
                revision, late = await asyncio.to_thread(database.threads.look, partial(_tables_of, frame))
            except DatabaseRefused:
                revision, late = None, []
            with explaining_packages():
                revision = revision or await current_revision(database)  # which also explains why there is none
            if await accept(database, revision):
                if revision is None:
                    log.warning("created the tables of the new database %s", database.url)
            elif late:
                await advance(database, late)  # a new task must not get the id of an earlier one
        except BaseException:
            await database.dispose()
            raise
        self._opened_database = database
        return database

    def close(self) -> None:
        """Close the connections and end the thread."""
        if self._loop.is_closed() or os.getpid() != self.pid:
            return
        self._threads.close(CLOSE_TIMEOUT)
        if self._opened_database is not None and self._opened_database.loops is not None:
            self._opened_database.loops.close_own()
        asyncio.run_coroutine_threadsafe(self._dispose(), self._loop).result(timeout=CLOSE_TIMEOUT)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=CLOSE_TIMEOUT)
        self._loop.close()

    async def _dispose(self) -> None:
        if self._coalescer is not None:
            await self._coalescer.end()
        await self._news.end()
        disconnected = DatabaseUnavailable(url=self.settings.url, why="this program has disconnected from it")
        await self.waiting.end(disconnected)
        await self.following.end(disconnected)
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        if unfinished:
            await asyncio.wait(unfinished, timeout=CLOSE_TIMEOUT / 2)
        if self._database is not None:
            with contextlib.suppress(Exception):  # opening it failed, and its callers received the error
                await (await self._database).dispose()


async def _at_once(function: Callable[[Sequence[NewTask]], T], tasks: Sequence[NewTask]) -> T:
    """Call a function that does not block."""
    return function(tasks)


async def _look(client: Client, query: "Callable[[Database, Keyring, Any], Any]", requests: Sequence[Any]) -> Any:
    """Run a query in a thread."""
    database = await client._get_database()  # noqa: SLF001 - of this file
    return await asyncio.to_thread(query, database, client.sealing.keyring, requests)


def _opened_endings(database: "Database", keyring: Keyring, ids: Sequence[int]) -> Any:
    from runner.client.sealed_results import opened
    from runner.queries.task.results import endings

    return opened(database.threads.read(endings, ids), keyring)


def _event_facts(database: "Database", _: Keyring, requests: Sequence[Any]) -> Any:
    from runner.queries.task.event_facts import event_facts

    return database.threads.read(event_facts, requests)


def _submit_group(client: Client, group: "Sequence[tuple[SingleInsert, str]]") -> list[int]:
    """Submit tasks in one transaction, or a single one by its statement, which commits by itself."""
    threads = (client._opened_database or client._open_database()).threads  # noqa: SLF001 - of this file
    try:
        return [threads.insert(*group[0])] if len(group) == 1 else threads.insert_all(group)
    except DatabaseUnavailable as error:
        raise_explained(error, [insert.task for insert, _ in group])


def _tables_of(frame: "StatementFrame", read: "Reader") -> "tuple[StoredRevision | None, list[LateSequence]]":
    """The revision of the tables, and the late sequences of current ones, on one connection."""
    from runner.db.errors import translate
    from runner.db.migrations.revisions import HEAD, revision_of, revision_text
    from runner.db.migrations.sequences import last_ids_text, late_sequences_of

    revision = revision_of(read(revision_text(frame.tables)))
    if revision is None or (revision.number != HEAD and not revision.supports_older):
        return revision, []
    try:
        (row,) = read(last_ids_text(frame.tables, frame.driver))
    except Exception as error:  # a login that may only submit cannot read them: the runners repair them
        if not isinstance(translate(error, ""), DatabaseRefused):
            raise
        return revision, []
    return revision, late_sequences_of([value for _, value in row], frame.tables)


def load_packages(settings: Settings) -> "StatementFrame":
    """Import the packages of a submit, which takes 0.1 to 0.4 s, and return the frame of its statements.

    Raises:
        DriverMissing: the driver of the database is not installed.
    """
    from runner.db import connect, database  # noqa: F401 - a submit opens the database
    from runner.db.dialects import DIALECTS
    from runner.db.migrations import apply, sequences  # noqa: F401 - opening looks for the tables
    from runner.db.statement import StatementFrame
    from runner.store import submit

    dialect = DIALECTS[settings.url.kind]
    connect.require_driver(dialect.name)
    if dialect.is_server:
        from runner.db import loop_connections, server_dialect  # noqa: F401
    frame = StatementFrame.of(settings, dialect.by_position)
    submit.single_insert(frame, NewTask("any"), settings.notify)  # compiles the most frequent statement
    sequences.last_ids_text(frame.tables, frame.driver)
    return frame
