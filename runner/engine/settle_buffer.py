"""SettleBuffer: collects outcomes into batches and buffers them while the database is unavailable."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from runner.db.database import Database
from runner.engine.slots import Running
from runner.errors import StoreError, ValueRejected
from runner.model.outcome import Dead, Done, Failure
from runner.policy.retry import BackOff
from runner.store.history import prepare_successes
from runner.store.retention import SubmitWatch
from runner.store.settle import Settled, Settlement, settle, settle_done
from runner.text.sanitize import count_noun

log = logging.getLogger("runner.settle")

Settling = tuple[Running, Settlement]


class SettleBuffer:
    """Collects settlements and writes them in batches; none is dropped.

    Args:
        database: the database to write to.
        size: batch size that triggers a write immediately.
        linger: maximum wait for more settlements in seconds.
        on_settled: called with each batch and its result.
        keep: False to delete succeeded tasks to which nothing refers, without a row in the history.
    """

    def __init__(
        self,
        database: Database,
        size: int,
        linger: float,
        on_settled: Callable[[list[Settling], Settled], None],
        keep: bool = True,
    ) -> None:
        self._database = database
        self._size = size
        self._linger = linger
        self._on_settled = on_settled
        self._watch = None if keep else SubmitWatch()
        self._items: list[Settling] = []
        self._not_empty = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._retry = asyncio.Event()
        self._closing = False
        self._back_off = BackOff()
        self.stalled = False
        """True while writes fail; the claimer then pauses."""
        self.runner_id = 0
        """Id of the runner."""

    def add(self, running: Running, settlement: Settlement) -> None:
        """Queue an outcome to be written."""
        self._items.append((running, settlement))
        if len(self._items) == 1:
            self._idle.clear()
            self._not_empty.set()
        if len(self._items) >= self._size:
            self._full.set()

    async def run(self) -> None:
        """Write batches until cancelled."""
        with contextlib.suppress(StoreError):  # while no task waits for it
            await self._database.read_single(prepare_successes, self._watch is None)
        while True:
            await self._not_empty.wait()
            await self._wait_for_more()
            self._not_empty.clear()
            self._full.clear()
            while self._items:
                await self._write(self._batch())
            if not self._not_empty.is_set():
                self._idle.set()

    async def drain(self, timeout: float | None) -> bool:
        """Wait until everything is written.

        Args:
            timeout: maximum wait in seconds; None for no limit.

        Returns:
            False if the wait timed out.
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
        """True if too many outcomes are buffered to claim more tasks."""
        return len(self._items) >= 4 * self._size

    def __len__(self) -> int:
        return len(self._items)

    def _batch(self) -> list[Settling]:
        """Remove and return the oldest items, at most one per task: a task can be in flight under two fences."""
        by_task: dict[int, Settling] = {}
        for item in self._items[: 4 * self._size]:
            by_task.setdefault(item[1].id, item)
        batch = list(by_task.values())
        if len(batch) == min(len(self._items), 4 * self._size):
            del self._items[: len(batch)]
        else:
            self._items = [item for item in self._items if by_task.get(item[1].id) is not item]
        return batch

    async def _wait_for_more(self) -> None:
        if self._closing or len(self._items) >= self._size:
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._linger, self._full.set)
        await self._full.wait()
        timer.cancel()

    async def _write(self, batch: list[Settling], individually: bool = False) -> None:
        """Write a batch, with retries. `individually` means that the fast path was rejected."""
        settled = Settled()
        while True:
            try:
                await self._settle([settlement for _, settlement in batch], individually, settled)
            except ValueRejected as error:
                if not individually:
                    return await self._write_individually(batch)
                if batch[0][1].outcome == REJECTED:
                    await self._back_off_for(1, error)
                batch = [_rejected(batch[0], error)]
            except StoreError as error:
                await self._back_off_for(len(batch), error)
            except Exception as error:  # a bug must not stop all settling
                log.exception("could not write %d outcomes", len(batch))
                if not individually:
                    return await self._write_individually(batch)
                await self._back_off_for(1, error)
                batch = [_rejected(batch[0], error)]
            else:
                self.stalled = False
                self._back_off.reset()
                return self._report(batch, settled)

    def _report(self, batch: list[Settling], settled: Settled) -> None:
        """Report a written batch; a failure must not stop all settling."""
        try:
            self._on_settled(batch, settled)
        except Exception:
            log.exception("outcomes of %s were written, but could not be processed", count_noun(len(batch), "task"))

    async def _write_individually(self, batch: list[Settling]) -> None:
        """Write the items of a rejected batch one by one, so that one bad item does not block the others."""
        for item in batch:
            await self._write([item], individually=True)

    async def _back_off_for(self, outcomes: int, error: Exception) -> None:
        self.stalled = True
        wait = self._back_off.record_failure(random.random())  # noqa: S311 - spreads runners, guards nothing
        log.warning(
            "database unavailable: %s buffered, retrying in %.1f s: %s", count_noun(outcomes, "outcome"), wait, error
        )
        self._retry.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._retry.wait(), wait)

    def retry_now(self) -> None:
        """Retry a failed write immediately, because the database is available again."""
        self._retry.set()

    async def _settle(self, settlements: list[Settlement], individually: bool, settled: Settled) -> None:
        """Settle the remaining items, on the fast path where possible."""
        verbs, rest = settled.verbs, settlements
        if verbs:
            rest = [item for item in rest if item.id not in verbs]
        done = [item for item in rest if type(item.outcome) is Done and not individually]
        if done:
            accepted = await self._database.write_single(settle_done, self.runner_id, done, self._watch)
            verbs |= dict.fromkeys(accepted, "succeed")
            rest = [item for item in rest if item.id not in verbs] if len(verbs) < len(settlements) else []
        if rest:
            other = await self._database.write(settle, self.runner_id, rest, self._watch is None)
            settled.verbs |= other.verbs
            settled.fenced |= other.fenced
            settled.written |= other.written


REJECTED = Dead(failure=Failure("DatabaseRefused", "the database refused the outcome of this attempt"))


def _rejected(item: Settling, error: Exception) -> Settling:
    """Replace an outcome that the database does not accept."""
    running, settlement = item
    log.error("outcome of task %d rejected by the database, storing it as dead: %s", settlement.id, error)
    return running, settlement._replace(outcome=REJECTED)
