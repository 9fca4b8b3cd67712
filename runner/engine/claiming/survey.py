"""LaneSurvey: the look of a runner for the first due tasks of its lanes."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runner.db.database import Database
from runner.engine.claiming.scans import ScanScope
from runner.policy.lanes import Head, Lane, Lanes
from runner.policy.polling import OrderKeyWatch, Pace
from runner.policy.positions import FIRST_ID, LanePosition, Visit
from runner.store.claim.next_due import prepare_next_due
from runner.store.claim.plain import Claimant, prepare_claims
from runner.store.claim.survey import DENSE, MANY, survey
from runner.store.claim.tenants import MOST_VISITS, visit
from runner.text.sanitize import one_line

log = logging.getLogger("runner.claim")

QUICK, ANSWERS, PER_LANE = 0.008, 1, 0.0001
"""The longest quick survey: seconds, answers of an idle server, and seconds per lane that it found, together.

Claims wait for quick surveys, and start at the first entries of their lanes, which takes as long."""

LONG = 1.0
"""Seconds of a single survey after which the next ones run beside the claims, until one shows that they are quick."""

NEVER_CLAIMED = "task %d (%s) in queue %s is never claimed: `runner why %d` names the reason and the remedy"


class LaneSurvey:
    """Reads the due lanes of one runner.

    Args:
        database: the database to read.
        scope: what scans may take.
        lanes: receive the first due tasks.
    """

    def __init__(self, database: Database, scope: ScanScope, lanes: Lanes) -> None:
        self._database, self._scope, self._lanes = database, scope, lanes
        self.pace = Pace()
        self.order_keys = OrderKeyWatch()
        self._is_prepared = False
        self._found = 0
        """Lanes that the last survey found."""
        self._is_cut = False
        """True if the last survey left lanes out."""
        self._skip = 0
        """Lanes to leave out of the next survey: no claim took a task from them."""
        self._skipped = 0
        """Lanes that the last survey left out for that reason."""
        self._reported: frozenset[int] = frozenset()
        """Tasks that block no others, but are never claimed, as of the last survey."""

    def is_slow(self, answer: float) -> bool:
        """True if surveys usually take much longer than the answer of an idle server, in seconds.

        An old snapshot of another client keeps the entries of claimed tasks in the index, and each survey reads them.
        """
        most = QUICK + ANSWERS * answer + PER_LANE * self._found
        return self._was_long or (self._database.dialect.row_locks and self.pace.usual > most)

    @property
    def _was_long(self) -> bool:
        """True if the last survey passed many dead entries, which a file has not."""
        return self._database.dialect.row_locks and self.pace.last > LONG + PER_LANE * self._found

    async def beside(self) -> float | None:
        """Read the lanes while claims go on, and add those that are due; return the seconds until another one is."""
        position, tenants = self._database.dialect.position, self._lanes.limited.tenants
        with self._timed():
            heads = await self._read()
            firsts = {head.lane: LanePosition(position(head.run_at), FIRST_ID) for head in heads if head.wait <= 0}
            visits = {lane: await self._visits(lane, tenants[lane].cursor) for lane in firsts if lane in tenants}
        next_due, now = self._lanes.find(heads, position), time.monotonic()
        tenants = self._lanes.limited.tenants
        for lane, some in visits.items():
            if lane in tenants:
                tenants[lane].meet(some, now)
                tenants[lane].cursor = some[-1].tenant if len(some) == MOST_VISITS else ""
            self._lanes.advance({lane: firsts[lane]}, now)  # for tasks without a tenant
        return next_due

    async def _visits(self, lane: Lane, after: str) -> Sequence[Visit]:
        """The tenants of a lane, from their first entries."""
        return (await self._database.read(visit, lane, after, MOST_VISITS)).visits

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.pace.record(started, time.monotonic())

    async def run(self, claimant: Claimant) -> None:
        """Read the lanes of a runner."""
        if not self._is_prepared:  # while no task waits for them
            who = claimant._replace(selection=self._scope.selection)
            await self._database.read(prepare_claims, who)
            if self._database.dialect.writing_ctes:
                await self._database.read(prepare_next_due, who)
            self._is_prepared = True
        with self._timed():
            heads = await self._read()
        due = (head for head in heads if head.wait <= 0 and not head.paused)
        self.order_keys.record_survey(has_heads=any(head.has_order_key for head in due))
        self._lanes.survey(heads, self._database.dialect.position if self._was_long else None)
        if self._scope.is_extended and not self._is_cut:  # otherwise due lanes may be missing
            self._scope.record_due(self._lanes.heads)

    async def _read(self) -> list[Head]:
        dense = DENSE if self._is_cut else 0
        self._skipped, self._skip = self._skip, 0
        heads = await self._database.read(survey, self._scope.survey(self._skipped, dense))
        self._found, self._is_cut = len(heads), len(heads) == MANY
        self._report_refused(heads)
        return heads

    def skip_untaken(self, start: float, end: float) -> None:
        """Record that a claim took no task from these lanes: the next survey reads the lanes behind them.

        Args:
            start: the start of the claim in monotonic seconds.
            end: its end.
        """
        self.order_keys.record_untaken(end, self.pace.last + end - start)
        self._skip = self._skipped + MANY if self._is_cut else 0

    def _report_refused(self, heads: list[Head]) -> None:
        """Log each task once that waits at the head of its lane and that no claim takes."""
        refused = {head.refused: head.lane for head in heads if head.refused is not None}
        for task_id in refused.keys() - self._reported:
            name, queue = one_line(refused[task_id].handler), one_line(refused[task_id].queue)
            log.warning(NEVER_CLAIMED, task_id, name, queue, task_id)
        self._reported = frozenset(refused)
