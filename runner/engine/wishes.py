"""Wishes: what operators ask of this runner, heard with a beat and carried out once."""

import logging
from collections.abc import Callable

from runner.engine.lease import Lease
from runner.engine.working import Working
from runner.errors import InvalidEdit, StoreError
from runner.policy.wish import parse_wish

log = logging.getLogger("runner")


class Wishes:
    """Carries out the wishes of operators.

    Args:
        lease: to note there what has been carried out.
        working: whose slots are resized.
        drain: called when the runner is to leave.
        look: called when there is more room for tasks.
    """

    def __init__(self, lease: Lease, working: Working, drain: Callable[[], object], look: Callable[[], object]) -> None:
        self._lease = lease
        self._working = working
        self._drain = drain
        self._look = look
        self.heard: str | None = None
        """What the last beat brought."""

    async def carry_out(self) -> None:
        """Do what was asked; what nobody understands is left alone."""
        text, self.heard = self.heard, None
        if text is None:
            return
        try:
            wish = parse_wish(text)
        except InvalidEdit:
            return
        if wish.drain:
            log.info("an operator asked this runner to drain")
            self._drain()
            return
        self._working.resize(wish.slots, wish.threads)
        in_hand = self._working.in_hand
        capacity, threads = in_hand.capacity, in_hand.in_threads.size
        try:
            await self._lease.heed(text, capacity, threads)
        except StoreError as error:  # it is heard again with the next beat, and carried out again
            log.warning("could not note a wish as carried out: %s", error)
        else:
            log.info("an operator asked for %s: %d tasks run at once now", wish, capacity)
        self._look()
