"""SurveyBeside: surveys that run beside the claims, because they are slow."""

import asyncio
import logging
import time
from collections.abc import Callable
from math import inf

from runner.engine.claiming.scans import ScanScope
from runner.engine.claiming.survey import LaneSurvey
from runner.errors import StoreError

log = logging.getLogger("runner.claim")


class SurveyBeside:
    """The surveys of a runner while they are slow.

    A survey is due by its pace, or earlier after a submit of which no claim took a task: it may be in a lane that no
    claim knows.

    Args:
        scope: what scans may take.
        answer: returns the seconds that the database takes for an answer with nothing to read.
        on_end: called after each survey.
    """

    def __init__(
        self, survey: LaneSurvey, scope: ScanScope, answer: Callable[[], float], on_end: Callable[[], None]
    ) -> None:
        self._survey, self._scope, self._answer, self._on_end = survey, scope, answer, on_end
        self._task: asyncio.Task[None] | None = None
        self._at = inf
        """When to begin one after a submit, in monotonic seconds."""
        self._due_at = 0.0
        """When the first lane becomes due that a survey found, in monotonic seconds."""

    def is_needed(self) -> bool:
        """True if the tasks that wait would wait too long for a survey, and no scan of its own needs one first."""
        return self._survey.is_slow(self._answer()) and not self._scope.is_new and not self._scope.is_extended

    def ask(self, *, taken: bool) -> None:
        """Note a submit, and whether a claim took a task after it."""
        pace, now = self._survey.pace, time.monotonic()
        self._at = min(self._at, now + (pace.remaining(now) if taken else pace.early(now)))

    def begin_if_due(self) -> None:
        """Begin a survey if one is due and none runs."""
        now = time.monotonic()
        if self._task is None and (self._survey.pace.is_due(now) or now >= self._at):
            self._at = inf
            self._task = asyncio.ensure_future(self._run())

    def wait(self, now: float) -> float | None:
        """Seconds until a survey or a lane that it found is due, at least 0; None if none is expected."""
        waits = [at - now for at in (self._due_at,) if at > now]
        if self._task is None and self._at < inf:
            waits.append(max(0.0, self._at - now))
        return min(waits, default=None)

    def cancel(self) -> None:
        """Cancel the current survey."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            next_due = await self._survey.beside()
            self._due_at = time.monotonic() + (next_due or 0.0)
        except StoreError as error:
            log.warning("survey failed: %s", error)
        finally:
            self._task = None
        self._on_end()
