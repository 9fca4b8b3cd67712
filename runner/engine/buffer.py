"""SettleBuffer: outcomes wait here for company, and for the database to come back."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from runner.engine.slots import Running
from runner.errors import ContentRefused, StoreError
from runner.outcome import Dead, Done, Failure
from runner.policy.polling import BackOff
from runner.store.database import Database
from runner.store.settle import Settled, Settlement, settle, settle_done

log = logging.getLogger("runner.settle")

Settling = tuple[Running, Settlement]


class SettleBuffer:
    """Collects settlements and writes them in batches; none is dropped.

    Args:
        database: to write to.
        size: so many are written at once without waiting longer.
        linger: seconds that a settlement waits for others.
        settled: called with each batch and what became of it.
    """

    def __init__(
        self, database: Database, size: int, linger: float, settled: Callable[[list[Settling], Settled], None]
    ) -> None:
        self._database = database
        self._size = size
        self._linger = linger
        self._settled = settled
        self._items: list[Settling] = []
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._back = asyncio.Event()
        self._closing = False
        self._back_off = BackOff()
        self.away = False
        """True while the database does not take settlements: do not claim more then."""
        self.holder = 0
        """The runner's id."""

    def add(self, running: Running, settlement: Settlement) -> None:
        """Take in what a task led to."""
        self._items.append((running, settlement))
        self._idle.clear()
        self._some.set()
        if len(self._items) >= self._size:
            self._full.set()

    async def run(self) -> None:
        """Write batches for ever."""
        while True:
            await self._some.wait()
            await self._company()
            self._some.clear()
            self._full.clear()
            while self._items:
                await self._write(self._batch())
            if not self._some.is_set():
                self._idle.set()

    async def drained(self, timeout: float | None) -> bool:
        """Wait until everything is written.

        Args:
            timeout: seconds; None for no limit.

        Returns:
            False when the time was up before.
        """
        self._closing = True
        self._full.set()
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @property
    def full(self) -> bool:
        """True while so much waits to be written that nothing more should be claimed."""
        return len(self._items) >= 4 * self._size

    def __len__(self) -> int:
        return len(self._items)

    def _batch(self) -> list[Settling]:
        """Take the oldest items, at most one for each task: a task can be in hand under two fences."""
        chosen: dict[int, Settling] = {}
        for item in self._items[: 4 * self._size]:
            chosen.setdefault(item[1].id, item)
        batch = list(chosen.values())
        if len(batch) == min(len(self._items), 4 * self._size):
            del self._items[: len(batch)]
        else:
            self._items = [item for item in self._items if chosen.get(item[1].id) is not item]
        return batch

    async def _company(self) -> None:
        if self._closing or len(self._items) >= self._size:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._linger, self._full.set)
        await self._full.wait()
        timer.cancel()

    async def _write(self, batch: list[Settling], careful: bool = False) -> None:
        """Write a batch, however long that takes; `careful` says that the short way was refused."""
        settled = Settled()
        while True:
            try:
                await self._settle([settlement for _, settlement in batch], careful, settled)
            except ContentRefused as error:
                if not careful:
                    return await self._write_apart(batch)
                if batch[0][1].outcome == REFUSED:
                    await self._wait(1, error)
                batch = [_refused(batch[0], error)]
            except StoreError as error:
                await self._wait(len(batch), error)
            except Exception as error:  # a fault of ours must not end all settling
                log.exception("could not write %d outcomes", len(batch))
                if not careful:
                    return await self._write_apart(batch)
                await self._wait(1, error)
                batch = [_refused(batch[0], error)]
            else:
                self.away = False
                self._back_off.succeeded()
                return self._settled(batch, settled)

    async def _write_apart(self, batch: list[Settling]) -> None:
        """One of a batch is to blame: find it, and let the others through."""
        for item in batch:
            await self._write([item], careful=True)

    async def _wait(self, outcomes: int, error: Exception) -> None:
        self.away = True
        wait = self._back_off.failed(random.random())  # noqa: S311 - spreads runners, guards nothing
        log.warning("%d outcomes wait for the database, next try in %.1f s: %s", outcomes, wait, error)
        self._back.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._back.wait(), wait)

    def hurry(self) -> None:
        """The database answers again: try now what waits for it."""
        self._back.set()

    async def _settle(self, settlements: list[Settlement], careful: bool, settled: Settled) -> None:
        """Settle what is not settled yet, the short way where that will do."""
        open_ones = [item for item in settlements if item.id not in settled.verbs]
        done = [item for item in open_ones if type(item.outcome) is Done and not careful]
        if done:
            moved = await self._database.state(settle_done, self.holder, done)
            settled.verbs |= dict.fromkeys(moved, "succeed")
        rest = [item for item in open_ones if item.id not in settled.verbs]
        if rest:
            other = await self._database.write(settle, self.holder, rest)
            settled.verbs |= other.verbs
            settled.fenced |= other.fenced


REFUSED = Dead(failure=Failure("DatabaseRefused", "its outcome could not be stored"))


def _refused(item: Settling, error: Exception) -> Settling:
    """Say less, if the database does not take what was to be said."""
    running, settlement = item
    log.error("the outcome of task %d was refused and is written as dead: %s", settlement.id, error)
    return running, settlement._replace(outcome=REFUSED)
