"""DependencyResolver: unblocks or cancels the dependents of finished tasks."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from runner.db.database import Database
from runner.errors import DatabaseRefused, DatabaseUnavailable, StoreError
from runner.model.task import Claimed
from runner.policy.polling import Pace
from runner.store.dependencies.parents import has_followers, release_followers
from runner.store.dependencies.resolve import (
    NEWEST,
    Dependency,
    FinishedParent,
    any_open,
    close_moot,
    find_strays,
    open_dependencies,
    resolve,
)

log = logging.getLogger("runner.dependency_resolver")

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
        database: the database with the dependencies.
        notify: wake other runners for unblocked tasks (PostgreSQL).
        verbs: counts the cancelled tasks as "cancel".
        on_unblocked: called when tasks were unblocked that may be due.
    """

    def __init__(
        self, database: Database, notify: bool, verbs: Counter[str], on_unblocked: Callable[[], object]
    ) -> None:
        self._database = database
        self._notify = notify
        self._verbs = verbs
        self._on_unblocked = on_unblocked
        self._parents: list[FinishedParent | Claimed] = []
        self._not_empty = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pace = Pace(every=CHECK_INTERVAL)
        self._followed: list[FinishedParent] = []
        """Finished tasks whose followers were released, and whose other dependents are not resolved yet."""
        self._check_pace = Pace(every=CHECK_INTERVAL)
        self._sweep_pace = Pace(every=0.0, most=MAX_SWEEP_PAUSE)
        self._sweep_below = NEWEST

    def add(self, *tasks: FinishedParent | Claimed) -> None:
        """Queue finished tasks."""
        self._parents += tasks
        self._idle.clear()
        self._not_empty.set()

    async def run(self) -> None:
        """Resolve dependencies until cancelled."""
        while True:
            await self._not_empty.wait()
            await asyncio.sleep(self._pace.remaining(time.monotonic()))
            self._not_empty.clear()
            parents, self._parents = self._parents, []
            try:
                await self._resolve_dependents(parents)
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
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)

    @property
    def idle(self) -> bool:
        """True if the queue is empty."""
        return self._idle.is_set()

    async def sweep(self) -> None:
        """Resolve missed dependencies. A long list takes several calls."""
        started = time.monotonic()
        if not self._sweep_pace.is_due(started):
            return
        with contextlib.suppress(DatabaseUnavailable):  # claims and heartbeats already log this
            if await self._database.read_single(any_open):  # the statement of a page takes long to plan
                await self._sweep_page(NEWEST)
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
        if not self._followed and not await self._database.read_single(any_open):
            self._pace.record(started, time.monotonic())
            return
        parents = [FinishedParent(task.id, task.handler, task.key) for task in finished]
        self._followed += parents
        if parents and await self._release(parents) and not self._check_pace.is_due(started):
            return  # a chain of tasks that do nothing asks for their other dependents at intervals
        pending, self._followed = self._followed, []
        attempts = ATTEMPTS
        while attempts and (dependencies := await self._database.read_single(open_dependencies, pending)):
            if not await self._resolve(dependencies):
                attempts -= 1
                await asyncio.sleep(LOCK_RETRY)
        self._check_pace.record(started, time.monotonic())

    async def _release(self, parents: Sequence[FinishedParent]) -> int:
        """Release the next tasks of order keys, and return their number."""
        ids = [parent.id for parent in parents]
        if self._database.dialect.row_locks:
            released = await self._database.write_single(release_followers, ids, notify=self._notify)
        elif await self._database.read_single(has_followers, ids):  # a release would wait for all other writers
            released = await self._database.write(release_followers, ids, notify=self._notify)
        else:
            return 0
        if released:
            self._on_unblocked()
        return released

    async def _sweep_page(self, below: int) -> int:
        page = await self._database.read_single(find_strays, below)
        if self._sweep_below in (below, NEWEST):
            self._sweep_below = NEWEST if page.lowest is None else page.lowest
        if page.moot:
            await self._database.write(close_moot, page.moot)
        return await self._resolve(page.dependencies)

    async def _resolve(self, dependencies: Sequence[Dependency]) -> int:
        """Resolve dependencies and return the number of them that need no further attempt."""
        if not dependencies:
            return 0
        try:
            result = await self._database.write(resolve, dependencies, notify=self._notify)
        except DatabaseRefused as error:
            return await self._bisect(dependencies, error)
        for child in result.cancelled:
            self._verbs["cancel"] += 1
            self.add(child.as_parent)
        if result.unblocked:
            self._on_unblocked()
        return len(dependencies) - len(result.skipped)

    async def _bisect(self, dependencies: Sequence[Dependency], error: DatabaseRefused) -> int:
        """Find the row that the database rejects, e.g. one from a foreign client, and resolve the others."""
        half = len(dependencies) // 2
        if half:
            return await self._resolve(dependencies[:half]) + await self._resolve(dependencies[half:])
        log.warning("task %d could not be unblocked: %s", dependencies[0].task_id, error)
        return 0
