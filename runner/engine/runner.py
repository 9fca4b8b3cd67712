"""Engine: the parts of a runner that claim, execute and settle tasks, with its start and shutdown."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from runner.db.database import Database
from runner.db.errors import raise_if_final
from runner.db.migrations.apply import ensure
from runner.db.migrations.revisions import require_tables
from runner.engine.claimer import Claimer, handler_defaults
from runner.engine.commands import CommandReceiver
from runner.engine.dependency_resolver import DependencyResolver
from runner.engine.heartbeat import Lease, identity
from runner.engine.maintenance import Maintenance, SchemaWatch
from runner.engine.metrics import Metrics
from runner.engine.notifier import notifications
from runner.engine.recovery import Expiry, Reconciler, RescueLoop
from runner.engine.resources import IDLE_EVERY, Completion, RunnerResources
from runner.engine.scans import ScanScope, Slices
from runner.engine.schedules import LOOK_EVERY, Scheduler
from runner.engine.ticks import ScanLoop, Tick, Ticks
from runner.engine.watchdog import Watchdog
from runner.engine.worker import Worker
from runner.errors import DatabaseRefused, DatabaseUnavailable, StoreError
from runner.handlers.registry import Handler, process_slots
from runner.policy.claim_order import parse_order
from runner.policy.lanes import Lane
from runner.policy.polling import parse_poll_mode, parse_scans
from runner.policy.retry import BackOff
from runner.policy.selection import parse_slice, select_handlers, selection_of
from runner.policy.suspicion import Proof
from runner.settings import Settings
from runner.store.heartbeat import HeartbeatReply
from runner.store.lanes import Pending, pending
from runner.store.slices import count_live_runners
from runner.text.formatting import outcome_counts
from runner.text.sanitize import count_noun

log = logging.getLogger("runner")

RESCUE_EVERY, SWEEP_EVERY, EXPIRE_EVERY, PRUNE_EVERY, SCHEMA_EVERY = 1.0, 2.0, 2.0, 60.0, 30.0
"""Intervals in seconds of the ticks without a setting."""

LAST_WRITES = 1.0
"""Minimum time in seconds for the last settles, however long draining took."""

LAST_RUNS = 10.0
"""Seconds that the last run of a tick may take."""

MAX_SLOT_WAIT = 2.0
"""Seconds that a task may wait for a slot before the next heartbeat releases it."""


class Engine:
    """One runner. Its constructor connects all parts of the engine.

    Args:
        settings: the settings of the runner.
        handlers: the handlers, by name; the settings select from them.
        replacements: objects to use instead of opening the resource with their name.

    Raises:
        InvalidResource: a resource is missing, or resources need each other.
    """

    def __init__(
        self, settings: Settings, handlers: Mapping[str, Handler], replacements: Mapping[str, Any] | None = None
    ) -> None:
        self.settings = settings
        self.handlers = handlers = select_handlers(handlers, settings.only, settings.without)
        self._mode = parse_poll_mode(settings.poll_mode)
        self._own_scans = parse_scans(settings.scans, list(handlers))
        self.database = Database.of(settings)
        self.resources = RunnerResources(handlers, lambda: self.scans.on_ready(), replacements)  # noqa: PLW0108 - created below
        self.worker = Worker(
            settings,
            self.database,
            may_start=lambda: self.lease.is_valid,
            on_release=lambda: self.claimer.expect_release(),  # noqa: PLW0108 - created below
            on_final=lambda *tasks: self.dependency_resolver.add(*tasks),  # noqa: PLW0108 - created below
            resources=self.resources,
            processes=process_slots(settings.processes, handlers),
        )
        resolver = DependencyResolver(self.database, settings.notify, self.metrics.verbs, self._on_submit)
        self.dependency_resolver = resolver
        in_flight = self.worker.in_flight
        self.scheduler = Scheduler(self.database, handlers, settings, self._on_submit)
        own_identity = identity(handlers, settings, in_flight)._replace(schedules=self.scheduler.fingerprints)
        lease, interval = settings.lease_timeout.total_seconds(), settings.heartbeat_interval.total_seconds()
        self.lease = Lease(self.database, lease, own_identity, interval)
        hooks = self.resources.hooks
        self.rescue_loop = RescueLoop(self.database, self.lease, lease, self.metrics, resolver, hooks, self._scan_soon)
        self.watchdog = Watchdog(settings, self.database, self.lease, in_flight.tasks.values)
        self.claimer = self._make_claimer()
        self.scans = ScanLoop(settings, self.claimer, self._mode)
        self.slices = self._make_slices()
        self.worker.on_settled, self.worker.on_room = self.claimer.tasks_ended, self.claimer.rescan
        self.worker.breakers.connect(self.claimer.limited.probes, self._scan_soon)
        self.reconciler = Reconciler(self.database, in_flight, self.claimer, self._scan_soon)
        self._stop = asyncio.Event()
        self._failure: StoreError | None = None
        self.tried = asyncio.Event()
        """Set after the first attempt to register, successful or not."""
        self.commands = CommandReceiver(self.lease, self.worker, self.stop, self._scan_soon)
        self._maintenance = Maintenance(self.database, settings, self._stop.is_set)
        add = self.dependency_resolver.add
        self._expiry = Expiry(self.database, self.metrics, add, self._stop.is_set, self._scan_soon)
        self.completion = Completion(
            self._pending, in_flight, self.claimer, self.dependency_resolver, self.resources, self._expiry, self.stop
        )

    async def _pending(self) -> Pending:
        who, selection = self.claimer.claimant, selection_of(self.settings.slice, self.settings.buckets)
        names = list(self.handlers), self.settings.queues
        return await self.database.read(pending, who.runner_id, who.host, *names, selection)

    def _make_claimer(self) -> Claimer:
        settings, handlers = self.settings, self.handlers
        lease, interval = settings.lease_timeout.total_seconds(), settings.heartbeat_interval.total_seconds()
        return Claimer(
            self.database,
            self.resources.claimable,
            {name: handler_defaults(handler, settings) for name, handler in handlers.items()},
            ScanScope(settings, self.resources.claimable, self._mode, self._own_scans, self._may_claim),
            self.worker.in_flight,
            settings.claim_batch_size,
            parse_order(settings.claim_order),
            Proof(group=interval, alone=lease),
            may_claim_suspects=lambda: self.rescue_loop.done,
            on_start=self.worker.start,
            on_duplicate=lambda task: self.worker.snooze_duplicate(task, handlers[task.handler]),
        )

    def _may_claim(self) -> bool:
        has_slice = self.slices is None or self.slices.is_valid
        return self.lease.is_valid and has_slice and not self.worker.buffer.stalled and not self.worker.buffer.full

    def _make_slices(self) -> Slices | None:
        text, seconds, claimer = self.settings.slice, self.settings.lease_timeout.total_seconds(), self.claimer
        changes = (claimer.scope.set_buckets, claimer.claim_done, self._scan_soon)
        return Slices(self.database, self.lease, seconds, parse_slice(text), *changes) if text else None

    async def run(self, *, until_idle: bool = False) -> bool:
        """Claim and execute tasks until `stop`.

        Args:
            until_idle: stop when nothing runs, is due or will be retried.

        Returns:
            True if every started task has ended and every outcome is written.

        Raises:
            StoreError: the database refuses this runner permanently, e.g. because its schema is too new.
        """
        self.watchdog.start()
        try:
            if not await self._start():
                return True
            async with self._background():
                ticks = Ticks(self._ticks(until_idle))
                ticks.start()
                self.resources.start()
                await self._stop.wait()
                ticks.stop("claim", "rescue", "expire", "prune", "idle", "schedules")
                self.scheduler.close()
                clean = await self._shut_down()
                await ticks.shutdown(LAST_RUNS)
            if self._failure is not None:
                raise self._failure
            return clean
        finally:
            self.tried.set()
            self.watchdog.stop()
            await self.worker.executor.close()
            await self.database.dispose()

    @property
    def metrics(self) -> Metrics:
        """The counters since the start."""
        return self.worker.metrics

    def stop(self) -> None:
        """Drain: claim nothing more, let running tasks finish, and exit."""
        self._stop.set()

    async def stop_requested(self) -> None:
        """Wait until `stop` is called."""
        await self._stop.wait()

    @property
    def stopping(self) -> bool:
        """True after `stop` was called."""
        return self._stop.is_set()

    @contextlib.asynccontextmanager
    async def _background(self) -> AsyncIterator[None]:
        """Run the permanent coroutines during the block."""
        async with asyncio.TaskGroup() as group:
            woken = notifications(self.database, self.settings, self._on_submit)
            parts = (self.worker.buffer.run(), self.dependency_resolver.run(), woken)
            tasks = [group.create_task(self._guard(part)) for part in parts]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _guard(self, part: Coroutine[Any, Any, None]) -> None:
        """Drain if a part fails by a bug: without it the runner cannot work."""
        try:
            await part
        except StoreError as error:
            self._failure = error
            self.stop()
        except Exception:
            log.exception("a part of the runner failed: draining")
            self.stop()

    def _ticks(self, until_idle: bool) -> list[Tick]:
        settings = self.settings
        first = settings.initial_delay.total_seconds() + IDLE_EVERY
        interval = settings.heartbeat_interval.total_seconds()
        table = [
            Tick("heartbeat", self._heartbeat, interval, "fixed-rate", interval),
            # At a fixed rate these are due at the same moment; wakeups are most of the cost of an idle runner.
            Tick("rescue", self.rescue_loop.run, RESCUE_EVERY, "fixed-rate"),
            Tick("dependencies", self.dependency_resolver.sweep, SWEEP_EVERY, "fixed-rate"),
            Tick("schedules", self.scheduler.look, LOOK_EVERY),
            Tick("expire", self._expiry.run, EXPIRE_EVERY, "fixed-rate"),
            Tick("notes", self.worker.notes.flush, self.worker.notes.every, "fixed-rate"),
            Tick("prune", self._maintenance.run, PRUNE_EVERY, first=PRUNE_EVERY),
            Tick("schema", SchemaWatch(self.database).check_schema, SCHEMA_EVERY, first=SCHEMA_EVERY),
        ]
        if not settings.poll_interval:
            return [*table, Tick("idle", self.completion.stop_after_scan, IDLE_EVERY, first=first)]
        idle = Tick("idle", self.completion.stop_if_idle, IDLE_EVERY, first=first, wait=self.completion.pause)
        return [*table, *self.scans.ticks(list(self._own_scans)), *([idle] if until_idle else [])]

    async def _start(self) -> bool:
        """Register once the database is available; return False if `stop` comes first."""
        back_off = BackOff()
        while not self._stop.is_set():
            try:
                await ensure(self.database)
                await require_tables(self.database)
                await self._register()
            except DatabaseUnavailable as error:
                raise_if_final(error)
                wait = back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
                log.warning("database unavailable: retrying in %.1f s: %s", wait, error)
                self.tried.set()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), wait)
            else:
                self.tried.set()
                return True
        return False

    async def _register(self) -> None:
        if self.slices is not None and not self.lease.id:
            await self.slices.check()
        await self.rescue_loop.look()
        await self.lease.register()
        await self.scheduler.register(self.lease.id)
        self.watchdog.ping_keeper()
        self.worker.buffer.runner_id = self.lease.id
        self.claimer.register(self.lease.id, self.lease.identity.host, int(self.settings.payload_limit))
        await self._read_runners()
        handlers = count_noun(len(self.handlers), "handler")
        log.info("runner %d started on %s with %s", self.lease.id, self.database.url, handlers)

    def _scan_soon(self) -> None:
        self.scans.soon()

    def _on_submit(self, lanes: frozenset[Lane] = frozenset()) -> None:
        self.scans.on_submit(lanes)

    async def _read_runners(self) -> None:
        """Read the other runners, if the poll mode or the slice depends on them."""
        if self.slices is not None:
            await self.slices.sync()
        if self._mode.counts_runners:
            with contextlib.suppress(StoreError):
                self.scans.live_runners = await self.database.read(count_live_runners)

    async def _heartbeat(self) -> None:
        try:
            await self._renew()
        except DatabaseRefused as error:  # the file cannot be used any more
            self._failure = error
            self.stop()
            return
        await self.metrics.write_times(self.database, self.lease.id)
        await self.commands.execute()
        if self.lease.declared_lost and not self.stopping:
            await self._register()
        if not self.stopping:
            await self._read_runners()
        if self.lease.is_valid:
            self.worker.start_waiting()
            self.worker.hand_back(MAX_SLOT_WAIT)
            self.worker.buffer.retry_now()
        self.claimer.rescan()

    async def _renew(self) -> None:
        """Renew the lease and compare the tasks in flight with the table."""
        self.worker.settle_abandoned()
        self.reconciler.begin()
        executor = self.worker.executor
        abandoned = executor.stuck, executor.replaced
        await self.lease.renew(len(self.worker.in_flight), self._handle_reply, abandoned, self.worker.meter.read())

    def _handle_reply(self, reply: HeartbeatReply) -> None:
        if not reply.alive:
            log.warning("runner %d was declared lost: cancelling its tasks", self.lease.id)
            self.worker.drop_waiting()
            self.worker.cancel(list(self.worker.in_flight.tasks))
        self.worker.cancel(reply.cancelled)
        self.commands.pending = reply.command
        self.reconciler.compare(self.lease.id, reply)

    async def _shut_down(self) -> bool:
        """End all tasks in flight, write their outcomes and deregister, within the drain timeout."""
        limit = self.settings.drain_timeout.total_seconds()
        end = time.monotonic() + limit
        await self.claimer.close(limit)
        if self.slices is not None:
            await self.slices.leave()
        is_idle = await self.worker.finish(max(0.0, end - time.monotonic()))
        written = await self.worker.buffer.drain(max(LAST_WRITES, end - time.monotonic()))
        await self.dependency_resolver.drain(LAST_WRITES)
        await self.worker.breakers.drain(LAST_WRITES)
        await self.resources.close()
        if not (is_idle and written):
            log.error("%s unfinished: other runners will rescue them", count_noun(len(self.worker.in_flight), "task"))
            return False
        try:
            await self._renew()  # reconciles tasks whose claim result was lost; a rescue would count an attempt
            await self.reconciler.close(LAST_WRITES)
            await self.metrics.write_times(self.database, self.lease.id)
            await self.lease.deregister()
        except StoreError as error:
            log.warning("could not deregister, the lease will expire: %s", error)
        log.info("stopped: %s", outcome_counts(self.metrics.verbs))
        return True
