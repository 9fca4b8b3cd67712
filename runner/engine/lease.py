"""Lease: a runner's proof of life, and what it hears in answer."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from runner.engine.slots import InHand
from runner.errors import StoreError
from runner.handlers import Handler
from runner.store.database import Database
from runner.store.runners import Beat, Identity, beat, heed, leave, register

log = logging.getLogger("runner.lease")

MARGIN = 0.8
"""The share of its lease after which a runner that cannot renew takes it for lost: clocks may differ a bit."""


class Lease:
    """The lease of one runner process.

    Args:
        database: where it is entered.
        seconds: for which it is taken to live without a beat.
        identity: what it says of itself.
    """

    def __init__(self, database: Database, seconds: float, identity: Identity) -> None:
        self._database = database
        self._seconds = seconds
        self.identity = identity
        self.id = 0
        self._renewed = 0.0
        self._trusts_from = 0.0
        self.struck_out = False
        """True when a rescue took this runner for lost; it must register anew."""

    @property
    def held(self) -> bool:
        """True while others believe that this runner lives."""
        return self.id != 0 and time.monotonic() - self._renewed < self._seconds * MARGIN

    @property
    def may_rescue(self) -> bool:
        """True while this runner may take others for lost.

        While the database was away nobody could beat, and every lease may have run out. Whoever comes back first must
        not take the work of all others: they get the time to beat first.
        """
        return self.held and time.monotonic() >= self._trusts_from

    def distrust(self) -> None:
        """Give all others time to beat, which is half a lease at most, before any of them is taken for lost."""
        self._trusts_from = time.monotonic() + self._seconds / 2

    async def take(self) -> None:
        """Register, as a new incarnation."""
        started = time.monotonic()
        self.id = await self._database.write(register, self.identity, self._seconds)
        self._renewed = started
        self.struck_out = False

    async def renew(self, running: int, heard: Callable[[Beat], None]) -> None:
        """Beat, and pass on what the answer says.

        Args:
            running: how many tasks are in hand.
            heard: called with the answer.
        """
        started, own = time.monotonic(), self.id
        try:
            answer = await self._database.state(beat, own, self._seconds, running)
        except StoreError as error:
            log.warning("could not renew the lease: %s", error)
            return
        if self.id != own:
            return  # deregistered meanwhile
        if answer.alive:
            if answer.late or not self.held:
                self.distrust()
            self._renewed = started
        else:
            self.struck_out = True
        heard(answer)

    async def heed(self, wish: str, capacity: int, threads: int) -> None:
        """Note that a wish has been carried out, and how many tasks run at once now."""
        self.identity = self.identity._replace(capacity=capacity, threads=threads)
        await self._database.write(heed, self.id, wish, capacity, threads)

    async def end(self) -> None:
        """Deregister, with nothing in hand any more."""
        await self._database.write(leave, self.id)
        self.id = 0


def identity(handlers: Mapping[str, Handler], queues: Iterable[str], in_hand: InHand) -> Identity:
    """What a runner in this process says of itself."""
    threaded = [name for name, handler in handlers.items() if not handler.is_async]
    known, served, threads = sorted(handlers), sorted(queues), in_hand.in_threads.size
    return Identity(
        socket.gethostname(), os.getpid(), release(), known, in_hand.capacity, served, threads, sorted(threaded)
    )


def release() -> str:
    """The version of this program."""
    try:
        return version("tasktui")
    except PackageNotFoundError:
        return "unknown"
