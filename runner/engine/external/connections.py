"""ExternalExecutors: the external executors of a runner, their connections and their slots."""

import asyncio
import contextlib
import itertools
import logging
import random
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from runner.engine.events import Events, RoomFreed
from runner.engine.external.executor import ExternalExecutor
from runner.engine.external.futures import FuturesExecutor
from runner.engine.hosting.hooks import SideThreads
from runner.engine.in_flight import InFlight
from runner.engine.lease.lease import Lease
from runner.errors import PackageMissing, StoreError
from runner.own_code import fault_text
from runner.policy.executor_spec import ExecutorSpec
from runner.policy.retry import BackOff
from runner.text.sanitize import count_noun, one_line

if TYPE_CHECKING:
    from runner.engine.external.attempts import ExternalAttempts

log = logging.getLogger("runner")


CLOSE_LIMIT = 5.0
"""Seconds for the engines to disconnect."""


class ExternalExecutors:
    """Connects to the engines, and again after a loss. Without a connection, an executor has no slots.

    So a runner claims no task of its handlers while a cluster is gone, and the tasks wait for any runner that has one.

    Args:
        specs: the executors that its handlers use, by name.
        made: executors that exist already, by name.

    Raises:
        PackageMissing: the package of an engine is not installed.
        InvalidSettings: the function of a specification does not exist.
    """

    def __init__(
        self,
        specs: Mapping[str, ExecutorSpec],
        made: Mapping[str, ExternalExecutor],
        in_flight: InFlight,
        lease: Lease,
        events: Events,
    ) -> None:
        self._made = {name: made.get(name) or _make(spec) for name, spec in specs.items()}
        for name, executor in self._made.items():
            in_flight.external[name].span = executor.span
        self._specs, self._in_flight, self._lease, self._events = specs, in_flight, lease, events
        self._open: dict[str, ExternalExecutor] = {}
        self._threads = SideThreads("runner-executors", 2 * len(specs))
        self._numbers = itertools.count(secrets.randbits(62))
        self._is_stored = True
        self.attempts: ExternalAttempts | None = None
        """The attempts in these executors; None before the first one."""

    def find(self, name: str) -> ExternalExecutor | None:
        """Return an executor; None without a connection."""
        return self._open.get(name)

    def next_number(self) -> int:
        """Return a number for a call that no other call has: a worker may serve several runners."""
        return next(self._numbers) & (1 << 62) - 1

    async def run(self) -> None:
        """Keep all executors connected until this is cancelled."""
        try:
            await asyncio.gather(*(self._keep(name) for name in self._specs))
        finally:  # the attempts have ended, or are given up
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_LIMIT):
                    for name in list(self._open):
                        await self._close(name)
            self._threads.close()

    async def store(self) -> None:
        """Store the slots, if they have changed."""
        if self._is_stored or not self._lease.id:
            return
        self._is_stored = True
        sizes = {name: slots.size for name, slots in self._in_flight.external.items()}
        try:
            await self._lease.resize_executors(self._in_flight.capacity, sizes)
        except StoreError as error:
            self._is_stored = False
            log.warning("could not store the slots of the executors: %s", error)

    async def _keep(self, name: str) -> None:
        executor, spec, back_off = self._made[name], self._specs[name], BackOff()
        loop = asyncio.get_running_loop()
        while True:
            lost: asyncio.Future[str] = loop.create_future()

            def resize(size: int) -> None:
                loop.call_soon_threadsafe(self._resize, name, size)

            def lose(why: str, lost: asyncio.Future[str] = lost) -> None:
                loop.call_soon_threadsafe(lambda: None if lost.done() else lost.set_result(why))

            self._open[name] = executor  # before its slots
            try:
                await self._threads.call(executor.open, resize, lose)
            except Exception as error:
                del self._open[name]
                wait = back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
                why = one_line(fault_text(error))
                log.error("executor %s is not available: %s; its tasks wait, trying again in %.1f s", spec, why, wait)
                await asyncio.sleep(wait)
                continue
            back_off = BackOff()
            log.log(_level(spec), "executor %s connected", spec)
            why = one_line(await lost)
            self._resize(name, 0)
            log.error("executor %s is lost: %s; its tasks are handed back and wait", spec, why)
            if self.attempts is not None:
                self.attempts.lose(name, why)
            await self._close(name)

    async def _close(self, name: str) -> None:
        executor = self._open.pop(name)
        try:
            await self._threads.call(executor.close)
        except Exception as error:  # its engine may be gone
            log.warning("executor %s did not close: %s", self._specs[name], one_line(fault_text(error)))

    def _resize(self, name: str, size: int) -> None:
        slots = self._in_flight.external[name]
        if size == slots.size or (size and name not in self._open):
            return
        log.log(_level(self._specs[name]), "executor %s has %s", name, count_noun(size, "slot"))
        slots.size, self._is_stored = size, False
        self._events.publish(RoomFreed())


def _level(spec: ExecutorSpec) -> int:
    """The level of lines about a connection: the slots of executors that pull change with each task."""
    return logging.DEBUG if spec.engine == "http" else logging.INFO


def _make(spec: ExecutorSpec) -> ExternalExecutor:
    """Make the executor of a specification, without a connection.

    Raises:
        PackageMissing: the package of the engine is not installed.
        InvalidSettings: the function of the specification does not exist.
    """
    try:
        if spec.engine == "dask":
            from runner.engine.external.dask import DaskExecutor

            return DaskExecutor(spec.address)
        if spec.engine == "ray":
            from runner.engine.external.ray import RayExecutor

            return RayExecutor(spec.address)
    except ModuleNotFoundError as error:
        name = error.name or spec.engine
        raise PackageMissing(package=name, use=f"executor {spec}", extra=spec.engine, instead="") from None
    return FuturesExecutor(spec)
