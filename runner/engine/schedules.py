"""Scheduler: the part of a runner that registers its schedules and submits the tasks of due ones."""

import asyncio
import logging
import random
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from runner.db.database import Database
from runner.errors import DatabaseRefused, DatabaseUnavailable
from runner.handlers.registry import Handler
from runner.handlers.schedules import SCHEDULES, DeclaredSchedule
from runner.policy.lanes import Lane
from runner.settings import Settings
from runner.store.schedules.register import Registered, has_changed, register_schedules
from runner.store.schedules.runs import abandon_rounds, next_tick
from runner.store.schedules.tick import Ticked, tick
from runner.text.sanitize import one_line

log = logging.getLogger("runner.schedules")

LOOK_EVERY = 1.0
"""Seconds between two looks for due schedules; a tick within this time has a timer of its own."""

SPREAD = 0.05
"""Seconds over which runners spread a tick, so that most of them find it done."""

MAINTAIN_EVERY = 60.0
"""Seconds between two comparisons of the declared schedules with the stored ones."""

CHUNK = 100
"""Schedules per transaction."""


def declared_by(handlers: Mapping[str, Handler]) -> dict[str, DeclaredSchedule]:
    """Return the schedules in the loaded code that belong to these handlers."""
    return {id: schedule for id, schedule in SCHEDULES.items() if schedule.spec.handler in handlers}


class Scheduler:
    """The schedules of one runner. Any number of runners tick the same schedules; each tick happens once.

    Args:
        database: the database.
        handlers: the handlers of the runner, by name.
        settings: the settings of the runner.
        on_submit: called after tasks were submitted, with their lanes.
    """

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler],
        settings: Settings,
        on_submit: Callable[[frozenset[Lane]], object],
    ) -> None:
        self._database = database
        self._modules = settings.handlers
        self._notify = settings.notify
        self._on_submit = on_submit
        self.declared = declared_by(handlers)
        self._runner_id = 0
        self._maintain_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._run: asyncio.Future[None] | None = None

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the declared definitions by schedule id."""
        return {id: schedule.fingerprint for id, schedule in self.declared.items()}

    async def register(self, runner_id: int) -> None:
        """Register the declared schedules, and pause the ones that vanished from the code.

        Args:
            runner_id: the registered runner.
        """
        self._runner_id = runner_id
        self._maintain_at = time.monotonic() + MAINTAIN_EVERY
        try:
            _log_registered(await self._database.write(register_schedules, runner_id, self.declared, self._is_removed))
        except DatabaseRefused as error:  # e.g. roles without rights on the table: tasks run all the same
            log.error("could not register the schedules: %s", error)

    async def maintain(self) -> None:
        """Register again if older or newer code has changed the schedules, and end the rounds of lost runners."""
        try:
            if await self._database.read(has_changed, self._runner_id, self.declared, self._is_removed):
                await self.register(self._runner_id)
            if abandoned := await self._database.write(abandon_rounds):
                log.warning("cancelled tasks of runners that no longer exist: %s", ", ".join(map(str, abandoned)))
        except DatabaseUnavailable:  # claims and heartbeats already log this
            return

    async def look(self) -> None:
        """Submit the tasks of due schedules, and set a timer for the next tick if it is near."""
        if self._run is None or self._run.done():
            self._run = asyncio.ensure_future(self._look())
        await self._run
        if time.monotonic() >= self._maintain_at:
            self._maintain_at = time.monotonic() + MAINTAIN_EVERY
            await self.maintain()

    def close(self) -> None:
        """Start no more ticks."""
        if self._timer is not None:
            self._timer.cancel()

    async def _look(self) -> None:
        try:
            upcoming = await self._database.read_single(next_tick)
            while upcoming.due:
                ticked = await self._database.write(tick, CHUNK, notify=self._notify)
                self._report(ticked)
                upcoming = await self._database.read_single(next_tick)
                if not ticked:  # another runner has them
                    break
        except DatabaseUnavailable:  # claims and heartbeats already log this
            return
        if upcoming.wait is not None and 0 < upcoming.wait < LOOK_EVERY:
            self.close()
            wait = upcoming.wait + random.random() * SPREAD  # noqa: S311 - spreads runners, guards nothing
            self._timer = asyncio.get_running_loop().call_later(wait, self._look_soon)

    def _look_soon(self) -> None:
        self._soon = asyncio.ensure_future(self.look())

    def _report(self, ticked: list[Ticked]) -> None:
        for each in ticked:
            name = one_line(each.schedule)
            if each.error is not None:
                log.error("schedule %s cannot run: %s", name, one_line(each.error))
            if each.missed is not None:
                log.warning("schedule %s missed ticks up to %s", name, each.missed.isoformat())
            for moment in each.skipped:
                log.info("schedule %s skipped %s: an earlier run is unfinished", name, moment.isoformat())
            for task_id in each.tasks:
                log.debug("schedule %s submitted task %d", name, task_id)
        if lanes := frozenset().union(*(each.lanes for each in ticked)):
            self._on_submit(lanes)

    def _is_removed(self, id: str, module: str) -> bool:
        """True if this process has the code of a module, and it does not have a schedule."""
        if id in SCHEDULES or module == "__main__":
            return False
        if module in sys.modules:
            return True
        parents = (name for name in self._modules if module.startswith(f"{name}."))
        return any(True for _ in parents) and not _exists(module)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a package above it no longer exists
        return False


def _log_registered(registered: Registered) -> None:
    for id in registered.added:
        log.info("schedule %s added", one_line(id))
    for id in registered.changed:
        kept = registered.kept.get(id)
        edit = f"; {', '.join(kept)} as an operator edited them" if kept else ""
        log.info("schedule %s changed with the code%s", one_line(id), edit)
    for id in registered.vanished:
        log.warning("schedule %s is no longer in the code: it is paused; delete it, or resume it", one_line(id))
