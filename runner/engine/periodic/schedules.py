"""Scheduler: the part of a runner that registers its schedules and submits the tasks of due ones."""

import asyncio
import logging
import random
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from runner.db.database import Database
from runner.db.errors import is_server_fault, row_fault
from runner.db.halves import write_in_halves
from runner.engine.events import Events, TasksSubmitted
from runner.errors import CodecFailed, DatabaseRefused, DatabaseUnavailable, InvalidInput, KeyMissing, StoreError
from runner.handlers.keyring import Keyring
from runner.handlers.registry import Handler
from runner.handlers.schedules import SCHEDULES, DeclaredSchedule
from runner.policy.shard_rule import owner_of
from runner.settings import Settings
from runner.store.schedules.register import Registered, has_changed, register_schedules
from runner.store.schedules.runs import abandon_rounds, due_schedule_ids, next_tick, record_error
from runner.store.schedules.tick import Ticked, tick
from runner.text.sanitize import one_line

if TYPE_CHECKING:
    from runner.model.stuck_row import RowFault

log = logging.getLogger("runner.schedules")

LOOK_EVERY = 1.0
"""Seconds between two looks for due schedules; a tick within this time has a timer of its own."""

SPREAD = 0.05
"""Seconds over which runners spread a tick, so that most of them find it done."""

MAINTAIN_EVERY = 60.0
"""Seconds between two comparisons of the declared schedules with the stored ones."""

CHUNK = 100
"""Schedules per transaction."""


LONGEST_PAUSE = 60.0
"""Seconds between two tries of a schedule whose rows the database refuses to change, at most."""


@dataclass(slots=True)
class _Retry:
    """The next try of a refused schedule, in monotonic seconds."""

    at: float = 0.0
    pause: float = 0.5


def declared_by(handlers: Mapping[str, Handler]) -> dict[str, DeclaredSchedule]:
    """Return the schedules in the loaded code that belong to these handlers."""
    return {id: schedule for id, schedule in SCHEDULES.items() if schedule.spec.handler in handlers}


class Scheduler:
    """The schedules of one runner. Any number of runners tick the same schedules; each tick happens once.

    Args:
        handlers: the handlers of the runner, by name.
        events: receives the lanes of the submitted tasks.
    """

    def __init__(self, database: Database, handlers: Mapping[str, Handler], settings: Settings, events: Events) -> None:
        self._database = database
        self._modules = settings.handlers
        self._notify = settings.notify
        self._events = events
        self._shard, self._shards = settings.shard, settings.shards
        self.declared = {id: schedule for id, schedule in declared_by(handlers).items() if self._owns(id)}
        self._runner_id = 0
        self._maintain_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._run: asyncio.Future[None] | None = None
        self._handlers, self._keyring, self._warn_at = handlers, Keyring(settings), 0.0
        self._refused: dict[str, _Retry] = {}
        """The schedules whose rows the database refuses to change."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """The fingerprints of the declared definitions by schedule id."""
        return {id: schedule.fingerprint for id, schedule in self.declared.items()}

    async def register(self, runner_id: int) -> None:
        """Register the declared schedules, and pause the ones that vanished from the code."""
        self._runner_id = runner_id
        self._maintain_at = time.monotonic() + MAINTAIN_EVERY
        try:
            self._log_registered(
                await self._database.write(register_schedules, runner_id, self.declared, self._is_removed)
            )
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
        except StoreError as error:
            log.warning("could not maintain the schedules: %s", error)

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
            upcoming = await self._database.read(next_tick)
            while upcoming.due:
                ticked = await self._tick()
                self._report(ticked)
                upcoming = await self._database.read(next_tick)
                if not ticked:  # another runner has them
                    break
        except DatabaseUnavailable:  # claims and heartbeats already log this
            return
        if upcoming.wait is not None and 0 < upcoming.wait < LOOK_EVERY:
            self.close()
            wait = upcoming.wait + random.random() * SPREAD  # noqa: S311 - spreads runners, guards nothing
            self._timer = asyncio.get_running_loop().call_later(wait, self._look_soon)

    async def _tick(self) -> list[Ticked]:
        """Tick all due schedules in one transaction, or in parts if the database refuses to change a row of one."""
        now = time.monotonic()
        without = {id for id, retry in self._refused.items() if retry.at > now}
        try:
            ticked = await self._submit(without=without)
        except StoreError as error:
            if row_fault(error) is None:
                raise
            ticked = await self._tick_in_parts(without, may_be_general=is_server_fault(error))
        for each in ticked:
            self._refused.pop(each.schedule, None)
        return ticked

    async def _tick_in_parts(self, without: Collection[str], *, may_be_general: bool) -> list[Ticked]:
        ticked: list[Ticked] = []
        faults: dict[str, RowFault] = {}

        async def write(part: Sequence[str]) -> None:
            ticked.extend(await self._submit(only=part))

        ids = await self._database.read(due_schedule_ids, CHUNK, without)
        await write_in_halves(ids, write, faults.__setitem__)
        for id, fault in faults.items():
            retry = self._refused.setdefault(id, _Retry())
            retry.pause = min(LONGEST_PAUSE, 2 * retry.pause)
            retry.at = time.monotonic() + retry.pause
            log.error("schedule %s cannot run: %s; next try in %.0f s", one_line(id), one_line(fault.fact), retry.pause)
            if may_be_general and not ticked:
                continue  # e.g. the disk is full: no edit of a schedule corrects it
            with suppress(StoreError):
                await self._database.write(record_error, id, one_line(fault.fact))
        return ticked

    async def _submit(self, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> list[Ticked]:
        try:
            return await self._database.write(
                tick, CHUNK, notify=self._notify, only=only, without=without, seal=self._seal
            )
        except InvalidInput as error:  # only a submit finds tasks that wait for each other
            raise DatabaseRefused(why=str(error).rstrip(".")) from None

    def _seal(self, handler: str, stored: str | None, payload: str) -> str | None:
        """Encrypt the payload of a task; None if this runner cannot, which leaves it to another one."""
        loaded = self._handlers.get(handler)
        codec = stored if loaded is None else self._keyring.of(loaded)
        if codec is None:
            return payload
        try:
            return self._keyring.seal(self._keyring.require_own(codec), handler, "payload", payload)
        except (CodecFailed, KeyMissing) as error:
            if time.monotonic() >= self._warn_at:
                self._warn_at = time.monotonic() + MAINTAIN_EVERY
                log.warning("a schedule waits for a runner with its key: %s", error)
            return None

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
            self._events.publish(TasksSubmitted(lanes))

    def _owns(self, id: str) -> bool:
        """True unless another shard owns a schedule."""
        return self._shard is None or owner_of(id, self._shards) == self._shard

    def _is_removed(self, id: str, module: str) -> bool:
        """True if this process has the code of a module, and it does not have a schedule, or for another shard."""
        if id in SCHEDULES and not self._owns(id):
            return True
        if id in SCHEDULES or module == "__main__":
            return False
        if module in sys.modules:
            return True
        parents = (name for name in self._modules if module.startswith(f"{name}."))
        return any(True for _ in parents) and not _exists(module)

    def _log_registered(self, registered: Registered) -> None:
        for id in registered.added:
            log.info("schedule %s added", one_line(id))
        for id in registered.changed:
            kept = registered.kept.get(id)
            edit = f"; {', '.join(kept)} as an operator edited them" if kept else ""
            log.info("schedule %s changed with the code%s", one_line(id), edit)
        for id in registered.vanished:
            gone = (
                "is no longer in the code" if self._owns(id) else f"belongs to the shard {owner_of(id, self._shards)}"
            )
            log.warning("schedule %s %s: it is paused here; delete it, or resume it", one_line(id), gone)


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a package above it no longer exists
        return False
