"""Lease: a runner's proof of life, and what it hears in answer."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from runner.errors import StoreError
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
        handlers: that it executes, by name.
        capacity: how many tasks it runs at once.
    """

    def __init__(self, database: Database, seconds: float, handlers: Iterable[str], capacity: int) -> None:
        self._database = database
        self._seconds = seconds
        self.identity = Identity(socket.gethostname(), os.getpid(), release(), sorted(handlers), capacity)
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
        started = time.monotonic()
        try:
            answer = await self._database.write(beat, self.id, self._seconds, running)
        except StoreError as error:
            log.warning("could not renew the lease: %s", error)
            return
        if answer.alive:
            if answer.late or not self.held:
                self.distrust()
            self._renewed = started
        else:
            self.struck_out = True
        heard(answer)

    async def heed(self, wish: str, capacity: int) -> None:
        """Note that a wish has been carried out, and how many tasks run at once now."""
        self.identity = self.identity._replace(capacity=capacity)
        await self._database.write(heed, self.id, wish, capacity)

    async def end(self) -> None:
        """Deregister, with nothing in hand any more."""
        await self._database.write(leave, self.id)
        self.id = 0


def release() -> str:
    """The version of this program."""
    try:
        return version("tasktui")
    except PackageNotFoundError:
        return "unknown"
