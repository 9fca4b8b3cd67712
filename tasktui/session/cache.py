"""Bounds of queries: a cache for expensive ones, whose results change slowly, and a timeout."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from runner.errors import DatabaseLocked, DatabaseUnavailable

T = TypeVar("T")

DEADLINE = 5.0
"""Statement timeout in seconds: the console must not add load to a database in trouble."""

LONGEST_CHANGE = 15.0
"""Statement timeout of a change, which may wait for a locked row."""

SILENCE = 15.0
"""Seconds without any response after which the database counts as down."""

LONGEST_SILENCE = 30.0
"""The same for a change, whose outcome is then unknown."""

NO_ANSWER_AFTER = 5.0
"""Seconds without any response after which the heading reports a missing answer."""

SHARE = 100
"""An entry is valid for at least this multiple of its query's duration, unless a cache has a share of its own."""

LONGEST_VALIDITY = 60.0
"""Maximum seconds that the duration of a query makes its result valid: longer ones would show the past."""

DEEP_EVERY = 2.0
"""Seconds to cache the counts of queues with many waiting tasks, if they are cheap."""

TROUBLE_EVERY, SILENCE_EVERY = 10.0, 3.0
"""Seconds to cache the figures of problems that the overview lacks, and the silences of alerts."""


class TtlCache(Generic[T]):
    """The last result of one kind of query.

    Args:
        seconds: minimum validity.
        clock: monotonic seconds.
        share: minimum validity as a multiple of the query's duration.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic, share: int = SHARE) -> None:
        self._seconds = seconds
        self._share = share
        self._clock = clock
        self._entry: tuple[Hashable, float, T] | None = None

    async def get(self, key: Hashable, load: Callable[[], Awaitable[T]], distance: float = 0.0) -> T:
        """Return the cached value, or load it.

        Args:
            key: identifies the query; another key discards the entry.
            distance: seconds that the query spends on the way to the server and back, which are no load.
        """
        now = self._clock()
        if self._entry is not None and self._entry[0] == key and now < self._entry[1]:
            return self._entry[2]
        value = await load()
        end = self._clock()
        took = end - now - distance
        self._entry = (key, end + max(self._seconds, min(took * self._share, LONGEST_VALIDITY)), value)
        return value


INTERRUPT_PAUSE = 0.02
"""Seconds between interrupts of a statement that goes on."""


class Timeout:
    """Runs transactions with a timeout.

    A transaction that times out runs to its end in the background: a change must not stop in the middle.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._transactions: set[asyncio.Task[Any]] = set()
        self._clock = clock
        self._waits_since = 0.0
        self._failed = False

    async def wait(
        self,
        work: Coroutine[Any, Any, T],
        seconds: float,
        error: Exception,
        answer: "asyncio.Future[T] | None" = None,
    ) -> T:
        """Run a transaction and wait for its result.

        Args:
            answer: gets the result before the end of the transaction, which takes another round trip.
        """
        if not self._transactions:
            self._waits_since = self._clock()
        transaction = asyncio.ensure_future(work)
        self._transactions.add(transaction)
        transaction.add_done_callback(self._done)
        results = {transaction} if answer is None else {transaction, answer}
        done, _ = await asyncio.wait(results, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise error
        return transaction.result() if answer is None or not answer.done() else answer.result()

    def hear(self) -> None:
        """Note an answer to a statement."""
        self._waits_since = self._clock()

    @property
    def is_busy(self) -> bool:
        """True while a transaction runs."""
        return bool(self._transactions)

    @property
    def is_lost(self) -> bool:
        """True if the last transaction found no database, or if none has had an answer for a while.

        A database that another program has locked is there.
        """
        waits = bool(self._transactions) and self._clock() - self._waits_since > NO_ANSWER_AFTER
        return self._failed or waits

    async def cancelled(self, interrupt: Callable[[], object]) -> None:
        """Cancel the transactions, which only read, and wait until none runs.

        Args:
            interrupt: ends the statements that run in threads. A thread may just have begun one, so it is called again.
        """
        for transaction in self._transactions:
            transaction.cancel()
        while self._transactions:
            interrupt()
            await asyncio.wait(self._transactions, timeout=INTERRUPT_PAUSE)

    async def wait_idle(self) -> None:
        """Wait until no transaction runs."""
        while self._transactions:
            await asyncio.wait(self._transactions)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._transactions.discard(task)
        if not task.cancelled():
            error = task.exception()  # also retrieves it for no caller
            self._failed = isinstance(error, DatabaseUnavailable) and not isinstance(error, DatabaseLocked)
            self._waits_since = self._waits_since if self._failed else self._clock()
