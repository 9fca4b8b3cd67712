"""DependencyResolver: unblocks or cancels the dependents of finished tasks."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from runner.db.database import Database
from runner.db.errors import row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import AttemptsEnded, Events, TasksCancelled, TasksRescued, TasksSubmitted
from runner.engine.stuck_rows import StuckRows, set_locked_apart
from runner.errors import DatabaseUnavailable, StoreError
from runner.event_wait import within
from runner.model.outcome import Suspended
from runner.model.task import MOVES, Claimed
from runner.policy.polling import Pace
from runner.store.dependencies.followers import has_followers, release_followers
from runner.store.dependencies.resolve import (
    NEWEST,
    Dependency,
    FinishedParent,
    any_open,
    close_moot,
    find_strays,
    handlers_of,
    open_dependencies,
    resolve,
)

if TYPE_CHECKING:
    from runner.model.stuck_row import RowFault

log = logging.getLogger("runner.dependency_resolver")

FINAL = frozenset(verb for verb, move in MOVES.items() if move.target.final)
"""The moves to a final state."""

PAUSES = ("snooze", "retry")
"""The moves of a task that waits for its children."""

CHECK_INTERVAL = 0.05
"""Seconds between two checks for open dependencies while there are none."""

LOCK_RETRY = 0.02
"""Seconds until the next attempt on a task that another transaction has locked."""

ATTEMPTS = 5
"""Attempts on locked tasks before the next sweep takes over; other dependents must not wait long."""

SWEEP_TIME = 0.05
"""Seconds that one sweep spends on a long list; the next one continues from there."""


MAX_SWEEP_PAUSE = 5.0
"""Maximum pause between sweeps in seconds, and the maximum delay for a missed dependent."""


class DependencyResolver:
    """Resolves the dependencies on finished tasks.

    It runs in parallel to settling and never delays it. Tasks that finish while it works form the next round.

    Args:
        notify: wake other runners for unblocked tasks (PostgreSQL).
        events: has the finished tasks, and receives the unblocked and the cancelled ones.
    """

    def __init__(
        self,
        database: Database,
        notify: bool,
        events: Events,
        stuck: StuckRows,
    ) -> None:
        self._database = database
        self._stuck = stuck
        self._skipped = set[int]()
        """Tasks of the last call that another transaction has locked."""
        self._notify = notify
        self._events = events
        self._parents: list[FinishedParent | Claimed] = []
        self._children: list[FinishedParent] = []
        """Children of tasks that wait for them since the last round, and that may have ended during the settle."""
        self._not_empty = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pace = Pace(every=CHECK_INTERVAL)
        self._unconfirmed: list[Claimed] = []
        """Tasks of the last settle, which saw no open dependency: one that committed while it ran may have them as its
        parents. A later settle that sees none confirms it; without one a look does."""
        self._unconfirmed_since = 0.0
        self._confirmation: asyncio.TimerHandle | None = None
        self._followed: list[FinishedParent] = []
        """Finished tasks whose followers were released, and whose other dependents are not resolved yet."""
        self._check_pace = Pace(every=CHECK_INTERVAL)
        self._sweep_pace = Pace(every=0.0, most=MAX_SWEEP_PAUSE)
        self._sweep_below = NEWEST
        self._swept = set[int]()
        """The tasks that the pages of the current sweep have found."""
        events.subscribe(AttemptsEnded, self._add_ended)
        events.subscribe(TasksRescued, self._add_rescued)
        events.subscribe(TasksCancelled, self._add_cancelled)

    def _add_ended(self, event: AttemptsEnded) -> None:
        if event.verb in FINAL:
            tasks = [running.task for running, _ in event.attempts]
            if event.saw_none:
                self._confirm_later(tasks)
            else:
                self.add(tasks)
        elif event.verb in PAUSES:
            outcomes = [each.outcome for _, each in event.attempts if isinstance(each.outcome, Suspended)]
            self._children += [FinishedParent(child, "", None) for each in outcomes for child in each.children]
            if self._children:
                self._idle.clear()
                self._not_empty.set()

    def _confirm_later(self, tasks: list[Claimed]) -> None:
        """Keep the tasks of a settle that saw no open dependency: it began after the end of the one before."""
        loop = asyncio.get_running_loop()
        self._unconfirmed, self._unconfirmed_since = tasks, loop.time()
        if self._confirmation is None:
            self._confirmation = loop.call_later(CHECK_INTERVAL, self._confirm)

    def _confirm(self) -> None:
        """Look for dependents if no settle has seen that there are none."""
        loop, self._confirmation = asyncio.get_running_loop(), None
        wait = self._unconfirmed_since + CHECK_INTERVAL - loop.time()
        if wait > 0:
            self._confirmation = loop.call_later(wait, self._confirm)
        else:
            self._add_unconfirmed()

    def _add_unconfirmed(self) -> None:
        tasks, self._unconfirmed = self._unconfirmed, []
        self.add(tasks)

    def _add_rescued(self, event: TasksRescued) -> None:
        ended = [(id, task) for id, task in event.tasks.items() if task.verb in FINAL]
        self.add([FinishedParent(id, task.handler, task.key) for id, task in ended])

    def _add_cancelled(self, event: TasksCancelled) -> None:
        self.add(event.tasks)

    def add(self, tasks: Sequence[FinishedParent | Claimed]) -> None:
        """Queue finished tasks."""
        self._parents += tasks
        if tasks:
            self._idle.clear()
            self._not_empty.set()

    async def run(self) -> None:
        """Resolve dependencies until cancelled."""
        while True:
            await self._not_empty.wait()
            await asyncio.sleep(self._pace.remaining(time.monotonic()))
            self._not_empty.clear()
            parents, self._parents = self._parents, []
            self._followed += self._children
            self._children = []
            try:
                await self._resolve_dependents(parents)
            except asyncio.CancelledError:  # `run` may start again
                self._parents[:0] = parents
                self._not_empty.set()
                raise
            except Exception as error:  # the sweep repairs omissions
                self._followed = []
                if not isinstance(error, StoreError):
                    log.exception("could not resolve the dependents of %d tasks", len(parents))
            if self._followed and not self._not_empty.is_set():
                asyncio.get_running_loop().call_later(CHECK_INTERVAL, self._not_empty.set)
            elif not self._not_empty.is_set():
                self._idle.set()

    async def drain(self, timeout: float) -> None:
        """Wait until the queue is empty.

        Args:
            timeout: maximum wait in seconds.
        """
        self._add_unconfirmed()
        await within(self._idle, timeout)

    @property
    def idle(self) -> bool:
        """True if the queue is empty. Tasks whose settle saw no open dependency may wait for a confirmation."""
        return self._idle.is_set()

    async def sweep(self) -> None:
        """Resolve missed dependencies. A long list takes several calls."""
        started = time.monotonic()
        if not self._sweep_pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            if await self._database.read(any_open):  # the statement of a page takes long to plan
                await self._sweep_page(NEWEST)
            else:
                self._stuck.retain("resolve", ())
            while self._sweep_below < NEWEST and time.monotonic() < started + SWEEP_TIME:
                await self._sweep_page(self._sweep_below)
        self._sweep_pace.record(started, time.monotonic())

    async def resolve_all(self) -> bool:
        """Check all dependencies and resolve the missed ones; return True if there were none."""
        page = await self._sweep_page(NEWEST)
        while self._sweep_below < NEWEST:
            page += await self._sweep_page(self._sweep_below)
        return not page

    async def _resolve_dependents(self, finished: Sequence[FinishedParent | Claimed]) -> None:
        started = time.monotonic()
        if not self._followed and not await self._database.read(any_open):
            self._pace.record(started, time.monotonic())
            return
        parents = [FinishedParent(task.id, task.handler, task.key) for task in finished]
        self._followed += parents
        if parents and await self._release(parents) and not self._check_pace.is_due(started):
            return  # a chain of tasks that do nothing asks for their other dependents at intervals
        pending, self._followed = self._followed, []
        attempts = ATTEMPTS
        while attempts and (dependencies := await self._database.read(open_dependencies, pending)):
            if not await self._resolve(dependencies):
                attempts -= 1
                await asyncio.sleep(LOCK_RETRY)
        self._check_pace.record(started, time.monotonic())

    async def _release(self, parents: Sequence[FinishedParent]) -> int:
        """Release the next tasks of order keys, and return their number."""
        ids = [parent.id for parent in parents]
        try:
            # Without row locks a release would wait for all other writers.
            if not self._database.dialect.row_locks and not await self._database.read(has_followers, ids):
                return 0
            released = await self._database.write(release_followers, ids, notify=self._notify)
        except StoreError as error:
            if row_fault(error) is None:
                raise
            return 0  # they are resolved like the other dependents, which finds the row
        if released:
            self._events.publish(TasksSubmitted())
        return released

    async def _sweep_page(self, below: int) -> int:
        page = await self._database.read(find_strays, below)
        if self._sweep_below == NEWEST:
            self._swept.clear()
        self._swept.update(dependency.task_id for dependency in (*page.moot, *page.dependencies))
        if self._sweep_below in (below, NEWEST):
            self._sweep_below = NEWEST if page.lowest is None else page.lowest
            if page.lowest is None:
                self._stuck.retain("resolve", self._swept | self._stuck.resting("resolve"))
        await self._in_halves(page.moot, self._close_moot)
        resolved = await self._resolve(page.dependencies)
        if self._skipped:
            await set_locked_apart(self._database, self._stuck, "resolve", await self._handlers(self._skipped))
        return resolved

    async def _close_moot(self, part: Sequence[Dependency]) -> None:
        await self._database.write(close_moot, part)

    async def _resolve(self, dependencies: Sequence[Dependency]) -> int:
        """Resolve dependencies and return the number of them that need no further attempt."""
        done, self._skipped = 0, set()

        async def write(part: Sequence[Dependency]) -> None:
            nonlocal done
            result = await self._database.write(resolve, part, notify=self._notify)
            if result.cancelled:
                self._events.publish(TasksCancelled([child.as_parent for child in result.cancelled], expired=False))
            if result.unblocked:
                self._events.publish(TasksSubmitted())
            done += len(part) - len(result.skipped)
            skipped = {dependency.task_id for dependency in result.skipped}
            self._skipped |= skipped
            self._stuck.free("resolve", {dependency.task_id for dependency in part} - skipped)

        await self._in_halves(dependencies, write)
        return done

    async def _in_halves(
        self, dependencies: Sequence[Dependency], write: Callable[[Sequence[Dependency]], Awaitable[object]]
    ) -> None:
        """Write dependencies in one call, or in parts; set the tasks apart that the database refuses to change."""
        resting = self._stuck.resting("resolve")
        faults: dict[int, RowFault] = {}
        due = [dependency for dependency in dependencies if dependency.task_id not in resting]
        await write_in_halves(due, write, lambda dependency, fault: faults.update({dependency.task_id: fault}))
        handlers = await self._handlers(faults) if faults else {}
        for id, fault in faults.items():
            self._stuck.set_apart("resolve", id, handlers.get(id, ""), fault)

    async def _handlers(self, ids: Collection[int]) -> dict[int, str]:
        return await self._database.read(handlers_of, ids)
