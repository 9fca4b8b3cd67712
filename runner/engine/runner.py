"""Engine: the parts of a runner, with its start and shutdown."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runner.db.connector import Connector
from runner.db.database import Database
from runner.db.errors import is_lock_timeout, outage, raise_if_final
from runner.db.migrations.apply import ensure
from runner.db.migrations.revisions import require_tables
from runner.db.row_locks import lock_of
from runner.db.server_watch import AnswerLimits
from runner.engine.claiming.claimer import Claimer
from runner.engine.claiming.claims import Claims
from runner.engine.claiming.notifier import notifications
from runner.engine.claiming.scans import ScanScope
from runner.engine.claiming.slices import Slices
from runner.engine.commands import CommandReceiver
from runner.engine.event_log import EventLog
from runner.engine.events import AttemptsEnded, Events, LimitReached, TasksSubmitted
from runner.engine.hosting.completion import IDLE_EVERY, Completion
from runner.engine.hosting.event_loop import require_unpatched
from runner.engine.hosting.resources import RunnerResources
from runner.engine.in_flight import InFlight
from runner.engine.lease.identity import identity
from runner.engine.lease.lease import Lease
from runner.engine.lease.reconciler import Reconciler
from runner.engine.lease.rescue_loop import RescueLoop
from runner.engine.lease.watchdog import Watchdog
from runner.engine.metrics import Metrics
from runner.engine.periodic.expiry import Expiry
from runner.engine.periodic.maintenance import Maintenance
from runner.engine.periodic.schedules import LOOK_EVERY, Scheduler
from runner.engine.periodic.schema_watch import SchemaWatch
from runner.engine.periodic.signal_look import SignalLook
from runner.engine.periodic.ticks import ScanLoop, Tick, Ticks
from runner.engine.settling.dependency_resolver import DependencyResolver
from runner.engine.settling.watched_tasks import WatchedTasks
from runner.engine.stuck_rows import StuckRows
from runner.engine.worker import Worker
from runner.errors import DatabaseRefused, DatabaseUnavailable, LockNotReleased, ResourceLimitReached, StoreError
from runner.event_wait import within
from runner.handlers.keyring import keyed_handlers
from runner.handlers.registry import Handler, process_slots
from runner.log_faults import contain_log_handlers
from runner.model.alert import DELIVERIES
from runner.policy.executor_spec import ExecutorSpec, external_executors
from runner.policy.polling import parse_poll_mode, parse_scans
from runner.policy.retry import BackOff
from runner.policy.selection import load_slices, parse_slice, select_handlers, selection_of
from runner.policy.suspicion import Proof
from runner.queries.task.event_facts import status_values
from runner.settings import Settings
from runner.store.claim.slices import count_live_runners
from runner.store.claim.survey import Pending, pending
from runner.store.heartbeat import HeartbeatReply
from runner.text.formatting import outcome_counts
from runner.text.runner_name import runner_name
from runner.text.sanitize import count_noun
from runner.text.stuck_row import lock_text

if TYPE_CHECKING:
    from runner.engine.external.connections import ExternalExecutors
    from runner.engine.external.executor import ExternalExecutor
    from runner.engine.hosting.shared_resources import ShardParts
    from runner.engine.serving.served_database import ServedDatabase

log = logging.getLogger("runner")

SIGNALS_EVERY = 1.0
RESCUE_EVERY, SWEEP_EVERY, EXPIRE_EVERY, PRUNE_EVERY, SCHEMA_EVERY = 1.0, 2.0, 2.0, 60.0, 30.0
"""Intervals in seconds of the ticks without a setting."""

LAST_WRITES = 1.0
"""Minimum time in seconds for the last settles, however long draining took."""

LAST_RUNS = 10.0
"""Seconds that the last run of a tick may take."""

LIMIT_GAP = 15.0
"""Maximum seconds between two errors of one series; the pauses between two writes are shorter."""

NO_EXECUTORS: "Mapping[str, ExternalExecutor]" = MappingProxyType({})

MAX_SLOT_WAIT = 2.0
"""Seconds that a task may wait for a slot before the next heartbeat releases it."""


class Engine:
    """One runner. Its constructor connects all parts of the engine.

    Args:
        handlers: the handlers, by name; the settings select from them.
        replacements: objects to use instead of opening the resource with their name.
        pulled: hands the tasks to executors that pull them over HTTP; None runs them here.
        shard: the parts of the process that the runners of its shards have in common; None for a runner alone.

    Raises:
        InvalidResource: a resource is missing, or resources need each other.
        ConfigurationError: gevent or eventlet has patched the standard library.
    """

    start_problem = ""
    """Why the last attempt to register failed."""
    on_new: Callable[["Engine"], object] = staticmethod(lambda _: None)
    """Never called: a runner of one database ends when that refuses it."""
    _ending = False
    """True if the runner itself ends its permanent coroutines."""
    _failure: StoreError | None = None
    _limited = (0.0, 0.0)
    """The first and the last time of a series of errors of a limit, in monotonic seconds."""

    leaves_retries = False
    """True if tasks that wait for another attempt do not keep it from ending as idle."""

    def __init__(
        self,
        settings: Settings,
        handlers: Mapping[str, Handler],
        replacements: Mapping[str, Any] | None = None,
        pulled: "ServedDatabase | None" = None,
        shard: "ShardParts | None" = None,
    ) -> None:
        require_unpatched()
        contain_log_handlers()
        loaded = handlers
        settings, handlers, replacements = own_parts(settings, handlers, replacements or {}, done=shard is not None)
        self.settings, self.handlers = settings, handlers
        self._mode, self._own_scans = parse_poll_mode(settings.poll_mode), parse_scans(settings.scans, list(handlers))
        lease, interval = settings.lease_timeout.total_seconds(), settings.heartbeat_interval.total_seconds()
        self.database = Database.of(settings, connector=Connector(AnswerLimits.of_lease(lease), strict=True))
        self.events = events = Events()
        self.stuck = stuck = StuckRows()
        self._watched = WatchedTasks(self.database.tables, events)
        self.metrics, self._event_log = Metrics(events, exports=settings.exports_metrics), EventLog(events)
        self._stop = asyncio.Event()
        self.tried = asyncio.Event()
        """Set after the first attempt to register, successful or not."""
        self.resources = RunnerResources(handlers, events, replacements) if shard is None else shard.resources(events)
        self.schema_watch = SchemaWatch(self.database)
        self.scheduler = Scheduler(self.database, handlers, settings, events)
        executors = external_executors(settings.executors, handlers, _executors_of(pulled))
        in_flight = _in_flight(settings, handlers, executors, shard)
        own_identity = identity(handlers, settings, in_flight, loaded)._replace(schedules=self.scheduler.fingerprints)
        self.lease = Lease(self.database, lease, own_identity, interval)
        self.external = _connect_to(executors, pulled, in_flight, self.lease, events) if executors else None
        places = self.resources, stuck, events, self.external
        self.worker = Worker(settings, self.database, self.lease, in_flight, *places)
        events.subscribe(LimitReached, self._bear_limit)
        events.subscribe(AttemptsEnded, self._end_limit)
        self.rescue_loop = RescueLoop(self.database, self.lease, lease, events, stuck)
        self.watchdog = Watchdog(settings, self.database, self.lease, in_flight.tasks.values)
        claimable = self.resources.claimable
        scope = ScanScope(settings, claimable, self._mode, self._own_scans, self._may_claim)
        self.claims = Claims(settings, self.database, handlers, claimable, scope, in_flight, stuck, events)
        self.claimer = Claimer(
            self.database,
            self.claims,
            Proof(group=interval, alone=lease),
            answer=self.lease.answer_time,
            may_claim_suspects=self.rescue_loop.is_done if shard is None else shard.may_claim_suspects,
            events=events,
        )
        self.dependency_resolver = DependencyResolver(self.database, settings.notify, events, stuck)
        self.scans = ScanLoop(settings, self.claimer, self._mode, events)
        slices = settings.slice and (parse_slice(settings.slice) or load_slices(settings.slice))
        self.slices = Slices(self.database, self.lease, lease, slices, self.claims, events) if slices else None
        self.reconciler = Reconciler(self.database, in_flight, self.claims, events)
        self.commands = CommandReceiver(self.lease, self.worker, self.stop)
        self._maintenance = Maintenance(self.database, settings, self._stop.is_set, stuck)
        self._expiry = Expiry(self.database, events, self._stop.is_set, stuck)
        parts = self._pending, self.worker, self.claimer, self.dependency_resolver, self.resources, self._expiry
        self.completion = Completion(*parts, self._describe, shard.on_idle if shard else self._end_idle)

    async def first_try(self) -> None:
        """Wait until it has tried to register, successfully or not."""
        await self.tried.wait()

    @property
    def must_rescue(self) -> bool:
        """True before it has rescued the tasks of runners that were lost before it, if its database answers."""
        return not self.tried.is_set() or (self.lease.answers and not self.rescue_loop.is_done())

    @property
    def parts(self) -> "Sequence[Engine]":
        """This runner, as the only one of its process."""
        return [self]

    async def _pending(self) -> Pending:
        who, selection = self.claims.claimant, selection_of(self.settings.slice, self.settings.buckets)
        selection = selection._replace(without=self.claims.stuck.refused)
        names = list(self.handlers), self.settings.queues
        keep = not self.leaves_retries
        return await self.database.read(pending, who.runner_id, who.host, *names, selection, retries=keep)

    async def _describe(self, id: int) -> str:
        """A task that waits, as text."""
        values = await self.database.read(status_values, id)
        if values is None:
            return f"task {id}"
        return f"task {id} ({values['handler']}), due at {values['run_at']:%Y-%m-%dT%H:%M:%SZ}"

    def _may_claim(self) -> bool:
        has_slice = self.slices is None or self.slices.is_valid
        return self.lease.is_valid and has_slice and not self.worker.buffer.stalled and not self.worker.buffer.full

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
                ticks.stop("claim", "rescue", "expire", "prune", "idle", "schedules", "alerts")
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

    def _bear_limit(self, event: LimitReached) -> None:
        """End after one lease without the database and with no task that runs: other runners do the work."""
        (first, last), now = self._limited, time.monotonic()
        self._limited = (first if now - last <= LIMIT_GAP else now, now)
        lasts = now - self._limited[0] >= self.settings.lease_timeout.total_seconds()
        if lasts and event.outcomes == len(self.worker.in_flight) and not self.stopping:
            self._failure = event.error
            self.stop()

    def _end_limit(self, _: object) -> None:
        self._limited = (0.0, 0.0)

    def _end_idle(self, _began: float) -> None:
        self.stop()

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
        wake = partial(self.events.publish, TasksSubmitted())
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "the settle buffer": self.worker.buffer.run,
            "the dependency resolver": self.dependency_resolver.run,
            "the notifier": partial(notifications, self.database, self.settings, wake, self._watched),
            **({"the external executors": self.external.run} if self.external is not None else {}),
        }
        self._ending = False
        # Not a TaskGroup, which would wrap the error of the block in an ExceptionGroup.
        tasks = [asyncio.ensure_future(self._guard(name, begin)) for name, begin in parts.items()]
        try:
            yield
        finally:
            self._ending = True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _guard(self, name: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Drain if a part fails by a bug: without it the runner cannot work. Only the runner itself cancels a part."""
        back_off, wait = BackOff(), 0.0
        try:
            while True:
                try:
                    if wait:  # a first turn of the loop would let the parts start after the first scan
                        await asyncio.sleep(wait)
                    return await begin()
                except asyncio.CancelledError:
                    if self._ending:
                        raise
                    if (job := asyncio.current_task()) is not None and job.cancelling():
                        job.uncancel()
                    wait = back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
                    text = "%s was cancelled by code outside of the runner: starting it again in %.1f s"
                    log.warning(text, name, wait)
        except StoreError as error:
            self._failure = error
            self.stop()
        except asyncio.CancelledError:
            raise
        except BaseException:  # code of an application may exit; an exit here would end the event loop
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
            Tick("signals", SignalLook(self.database, self.events, self.stuck).run, SIGNALS_EVERY, "fixed-rate"),
            Tick("notes", self.worker.notes.flush, self.worker.notes.every, "fixed-rate"),
            Tick("prune", self._maintenance.run, PRUNE_EVERY, first=PRUNE_EVERY),
            *self._alert_ticks(),
            Tick("schema", self.schema_watch.check_schema, SCHEMA_EVERY, first=SCHEMA_EVERY),
        ]
        if not settings.poll_interval:
            return [*table, Tick("idle", self.completion.stop_after_scan, IDLE_EVERY, first=first)]
        idle = Tick("idle", self.completion.stop_if_idle, IDLE_EVERY, first=first, wait=self.completion.pause)
        return [*table, *self.scans.ticks(list(self._own_scans)), *([idle] if until_idle else [])]

    def _alert_ticks(self) -> list[Tick]:
        if not self.settings.sends_alerts:
            return []
        from runner.alerts.evaluation import Evaluation  # most runners send no notices

        every = self.settings.alert_interval.total_seconds()
        return [Tick("alerts", Evaluation(self.database, self.settings).run, every, first=every)]

    async def _start(self) -> bool:
        """Register once the database is available; return False if `stop` comes first."""
        back_off = BackOff()
        while not self._stop.is_set():
            try:
                await ensure(self.database)
                await require_tables(self.database)
                await self.schema_watch.check_sequences()
                await self._register()
            except StoreError as error:
                if not (isinstance(error, DatabaseUnavailable) or is_lock_timeout(error)):
                    raise
                raise_if_final(error)
                wait = back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
                self.start_problem = await self._reason(error)
                log.warning("%s: retrying in %.1f s: %s", outage(error), wait, self.start_problem)
                self.tried.set()
                await within(self._stop, wait)
            else:
                self.tried.set()
                # Before the first claim: a task that kills each new runner must not prevent all rescues.
                with contextlib.suppress(StoreError):
                    await self.rescue_loop.run()
                return True
        return False

    async def _reason(self, error: StoreError) -> str:
        """The text of an error, with the session that holds the lock if it was a wait for one."""
        if not is_lock_timeout(error) or isinstance(error, LockNotReleased):
            return str(error)
        with contextlib.suppress(StoreError):
            if (lock := await self.database.read(lock_of, error)) is not None:
                return f"{error} {lock_text(lock)}"
        return str(error)

    async def _register(self) -> None:
        if self.slices is not None and not self.lease.id:
            await self.slices.check()
        await self.rescue_loop.look()
        await self.lease.register()
        await self.scheduler.register(self.lease.id)
        self.watchdog.ping_keeper()
        self.worker.buffer.runner_id = self.lease.id
        self.claims.register(self.lease.id, self.lease.identity.host, int(self.settings.payload_limit))
        await self._read_runners()
        handlers = count_noun(len(self.handlers), "handler")
        own = self.lease.identity
        name = runner_name(self.lease.id, own.host, own.pid)
        log.info("%s started on %s with %s", name, self.database.url, handlers, extra={"event": "started"})

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
        await self.worker.note_completions()
        await self.stuck.store(self.database, self.lease.id)
        await self.metrics.write_times(self.database, self.lease.id)
        await self.commands.execute()
        await self.lease.enter_rest()
        if self.external is not None:
            await self.external.store()
        if self.lease.declared_lost and not self.stopping:
            await self._register()
        if not self.stopping:
            await self._read_runners()
        if self.lease.is_valid:
            self.worker.start_waiting()
            self.worker.hand_back(MAX_SLOT_WAIT)
        self.claimer.rescan()

    async def _renew(self) -> None:
        """Renew the lease and compare the tasks in flight with the table."""
        self.worker.settle_abandoned()
        executor = self.worker.executor
        abandoned = executor.stuck, executor.replaced
        in_flight, usage = self.worker.in_flight, self.worker.meter.read()
        error = await self.lease.renew(len(in_flight), self._handle_reply, abandoned, usage, list(in_flight.tasks))
        if isinstance(error, ResourceLimitReached):
            self.worker.reach_limit(error, len(self.worker.buffer))
        elif error is None and self.lease.id:
            self.reconciler.compare(self.lease.id)

    def _handle_reply(self, reply: HeartbeatReply) -> None:
        if not reply.alive:
            log.warning("runner %d was declared lost: cancelling its tasks", self.lease.id)
            self.worker.drop_waiting()
            self.worker.cancel(list(self.worker.in_flight.tasks))
        self.worker.buffer.note_write()
        self.worker.cancel(reply.cancelled)
        self.commands.pending = reply.command

    async def _shut_down(self) -> bool:
        """End all tasks in flight, write their outcomes and deregister, within the drain timeout."""
        limit = self.settings.drain_timeout.total_seconds()
        end = time.monotonic() + limit
        await self.claimer.close(limit)
        if self.slices is not None:
            await self.slices.leave()
        is_idle = await self.worker.finish(max(0.0, end - time.monotonic()))
        if is_idle:  # the last writes may need the threads that the system allows
            await self.worker.executor.close()
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
        log.info("stopped: %s", outcome_counts(self.metrics.verbs), extra={"event": "stopped"})
        return True


def own_parts(
    settings: Settings, handlers: Mapping[str, Handler], resources: Mapping[str, Any], *, done: bool = False
) -> tuple[Settings, Mapping[str, Handler], Mapping[str, Any]]:
    """Select the handlers of this runner that it has keys for, and add those of alerts with their resources.

    Args:
        done: True if a process with several runners has done it for all of them.
    """
    if done:
        return settings, handlers, resources
    selected = keyed_handlers(settings, select_handlers(handlers, settings.only, settings.without))
    if not settings.alert_receivers:
        return settings, selected, resources
    from runner.alerts.deliver import with_alerts

    return with_alerts(settings, selected, resources)


def _in_flight(
    settings: Settings,
    handlers: Mapping[str, Handler],
    executors: Mapping[str, ExecutorSpec],
    shard: "ShardParts | None",
) -> InFlight:
    own = settings.concurrency, settings.threads
    if executors and all(spec.engine == "http" for spec in executors.values()):
        own = 0, 0  # no handler of a server runs in it
    sizes = *own, settings.prefetch, process_slots(settings.processes, handlers)
    deliveries = DELIVERIES if settings.alert_receivers else 0
    return InFlight(*sizes, executors, deliveries, None if shard is None else shard.slots)


def _connect_to(
    specs: Mapping[str, ExecutorSpec],
    pulled: "ServedDatabase | None",
    in_flight: InFlight,
    lease: Lease,
    events: Events,
) -> "ExternalExecutors":
    from runner.engine.external.connections import ExternalExecutors  # most runners have none

    if pulled is not None:
        pulled.join(events, in_flight)
    return ExternalExecutors(specs, _executors_of(pulled), in_flight, lease, events)


def _executors_of(pulled: "ServedDatabase | None") -> "Mapping[str, ExternalExecutor]":
    return NO_EXECUTORS if pulled is None else pulled.executors
