"""SurveyBeside: surveys that run beside the claims, because they are slow."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf

from runner.db.server_watch import answer_within
from runner.engine.claiming.scans import ScanScope
from runner.engine.claiming.survey import LaneSurvey
from runner.errors import StoreError

log = logging.getLogger("runner.claim")


class SurveyBeside:
    """The surveys of a runner while they are slow.

    A scan asks for one, because tasks may be due that no claim finds: the pace decides when it begins. It begins
    earlier after a submit of which no claim took a task, which may be in a lane that no claim knows, and for tasks that
    another runner had, which may be before the positions of the claims.

    Args:
        scope: what scans may take.
        answer: returns the seconds that an idle database takes for an answer.
        on_end: called after each survey.
    """

    def __init__(
        self, survey: LaneSurvey, scope: ScanScope, answer: Callable[[], float], on_end: Callable[[], None]
    ) -> None:
        self._survey, self._scope, self._answer, self._on_end = survey, scope, answer, on_end
        self._task: asyncio.Task[None] | None = None
        self.has_ended = False
        """True after a survey, until a scan has claimed the tasks that it found."""
        self.is_asked = self.is_early = False
        self._due_at = inf
        """When the first lane becomes due that a survey found, in monotonic seconds."""

    def is_needed(self) -> bool:
        """True if the tasks that wait would wait too long for a survey, and no scan of its own needs one first."""
        return self._survey.is_slow(self._answer()) and not self._scope.is_new and not self._scope.is_extended

    def ask(self, *, early: bool = False) -> None:
        """Ask for a survey that begins after this call: by its pace, or earlier."""
        self.is_asked, self.is_early = True, self.is_early or early

    def reset(self) -> None:
        """Forget that a survey is due: a scan follows that runs its own."""
        self.is_asked = self.is_early = False
        if time.monotonic() >= self._due_at:
            self._due_at = inf

    def begin_if_due(self) -> None:
        """Begin a survey if one is due and none runs."""
        now = time.monotonic()
        if now >= self._due_at:  # other lanes, or more tasks of this one, may become due after it
            self.is_asked, self._due_at = True, inf
        if self._task is None and (self._survey.pace.is_due(now) or self._remaining(now) <= 0):
            self.is_asked = self.is_early = False
            self._task = asyncio.ensure_future(self._run())

    def wait(self, now: float) -> float | None:
        """Seconds until a survey or a lane that it found is due, at least 0; None if none is expected."""
        at = min(self._due_at - now, inf if self._task is not None else self._remaining(now))
        return None if at == inf else max(0.0, at)

    def _remaining(self, now: float) -> float:
        """Seconds until the survey that a scan asked for; infinite without one."""
        pace = self._survey.pace
        return pace.early(now) if self.is_early else pace.remaining(now) if self.is_asked else inf

    def cancel(self) -> None:
        """Cancel the current survey. Its statement goes on until it ends: waiting for it would delay a stop."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            with answer_within(None):
                next_due = await self._survey.beside()
            self._due_at = inf if next_due is None else time.monotonic() + next_due
            self.has_ended = True
        except StoreError as error:
            log.warning("survey failed: %s", error)
            self.ask(early=True)
        finally:
            self._task = None
        self._on_end()
