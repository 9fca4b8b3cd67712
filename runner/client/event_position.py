"""EventPosition: a place among the events of a task, and the events after it."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.errors import InvalidTask
from runner.model.task import HIGHEST_FENCE, State
from runner.model.task_event import AttemptFailed, LineLogged, ProgressReported, StateChanged, TaskEvent

if TYPE_CHECKING:
    from runner.queries.task.event_facts import AttemptFact, EventFacts, EventRequest, LineFact

START = "start"
"""The cursor before the first event of a task."""

OPEN_ATTEMPTS = 8
"""Attempts whose log may still grow: a runner writes the last lines of an attempt up to a second after its end."""

LAST_LINES = 1.5
"""Seconds after the end of a task in which its runner writes the last lines and the last progress."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Run = tuple[int, int]
"""A fence and a number: that of a log line, or a time in microseconds."""


class EventPosition(NamedTuple):
    """A place among the events of a task: the events that are known.

    Args:
        started: the fence of the last known start of an attempt.
        failed: the fence of the last known failure of an attempt.
        closed: the highest fence of the attempts without further log lines.
        lines: the fences of later attempts, each with the number of its last known line; in order.
        progress: fence and time of the known progress.
        state: the known state, as text; empty if none is.
    """

    started: int = 0
    failed: int = 0
    closed: int = 0
    lines: tuple[Run, ...] = ()
    progress: Run | None = None
    state: str = ""

    @property
    def cursor(self) -> str:
        """The position as text."""
        lines = "_".join(f"{fence}-{number}" for fence, number in self.lines)
        progress = "-".join(map(str, self.progress or ()))
        return f"{self.started}.{self.failed}.{self.closed}.{lines}.{progress}.{self.state}"

    def after(self, fence: int) -> int:
        """The number of the last known line of an attempt."""
        return HIGHEST_FENCE if fence <= self.closed else dict(self.lines).get(fence, 0)

    def with_line(self, fence: int, number: int) -> "EventPosition":
        """The position after a log line."""
        lines = sorted((dict(self.lines) | {fence: number}).items())
        closed = lines[-OPEN_ATTEMPTS - 1][0] if len(lines) > OPEN_ATTEMPTS else self.closed
        return self._replace(lines=tuple(lines[-OPEN_ATTEMPTS:]), closed=closed)


_NUMBER = r"(?:0|[1-9]\d{0,18})"
_RUN = rf"{_NUMBER}-{_NUMBER}"
_CURSOR = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})\.((?:{_RUN}(?:_{_RUN}){{0,{OPEN_ATTEMPTS - 1}}})?)\.((?:{_RUN})?)"
    rf"\.((?:[a-z]{{1,9}}-{_NUMBER}-{_NUMBER}-[01])?)",
    re.ASCII,
)


def read_cursor(text: str | None) -> EventPosition | None:
    """Read a cursor; None for the current state.

    Raises:
        InvalidTask: it is no cursor of an event.
    """
    if text is None:
        return None
    if text == START:
        return EventPosition()
    match = _CURSOR.fullmatch(text) if isinstance(text, str) else None
    if match is None or any(int(number) >= 2**63 for number in re.findall(r"\d+", text)):
        why = f"pass the cursor of an event, or {START!r} for all events"
        raise InvalidTask(field="after", value=str(text)[:100], why=why)
    started, failed, closed = (int(match[index]) for index in (1, 2, 3))
    lines = tuple(_run(part) for part in match[4].split("_") if part)
    return EventPosition(started, failed, closed, lines, _run(match[5]) if match[5] else None, match[6])


def _run(text: str) -> Run:
    fence, _, number = text.partition("-")
    return int(fence), int(number)


class EventPage(NamedTuple):
    """Some events of a task.

    Args:
        position: the position after them.
        ended: True if there are no others: the task has finished.
        is_short: True if there are others already.
    """

    events: list[TaskEvent]
    position: EventPosition
    ended: bool
    is_short: bool


def request_of(id: int, readers: "Sequence[tuple[EventPosition, Collection[str]]]") -> "EventRequest":
    """The facts to read for several readers of one task.

    Args:
        readers: the position of each, and the kinds of events that it asks for; without any, only the row of the task
            is read.
    """
    from runner.queries.task.event_facts import EventRequest, LineRange

    attempts = [at.failed for at, kinds in readers if not {StateChanged.kind, AttemptFailed.kind}.isdisjoint(kinds)]
    failed = min(attempts) if attempts else None
    positions = [position for position, kinds in readers if LineLogged.kind in kinds]
    if not positions:
        return EventRequest(id, failed, ())
    ranges, low = [], min(position.closed for position in positions) + 1
    for fence in sorted({fence for position in positions for fence, _ in position.lines}):
        if fence >= low:
            after = min(position.after(fence) for position in positions)
            ranges += [LineRange(low, fence - 1, 0)] if fence > low else []
            ranges.append(LineRange(fence, fence, after))
            low = fence + 1
    return EventRequest(id, failed, (*ranges, LineRange(low, HIGHEST_FENCE, 0)))


def first_page(facts: "EventFacts", kinds: Collection[str]) -> EventPage:
    """The current state of a task, and its progress. The log lines of its current or last attempt follow."""
    earlier = EventPosition(facts.fence, facts.last_attempt, max(0, facts.fence - 1))
    builder = _PageBuilder(earlier, facts, kinds)
    builder.state()
    builder.progress()
    return builder.page(is_short=facts.fence > 0 and LineLogged.kind in kinds)


def next_page(position: EventPosition, facts: "EventFacts", kinds: Collection[str]) -> EventPage:
    """The events after a position, in the order of attempts, and the current state as the last one.

    Args:
        facts: those of `request_of` for this position and perhaps others.
        kinds: the kinds of events to return.
    """
    builder = _PageBuilder(position, facts, kinds)
    is_complete = builder.attempts()
    if is_complete:
        builder.state()
    return builder.page(is_short=not is_complete)


class _PageBuilder:
    """Collects the events after a position."""

    def __init__(self, position: EventPosition, facts: "EventFacts", kinds: Collection[str]) -> None:
        self._position, self._facts, self._kinds = position, facts, kinds
        self._events: list[TaskEvent] = []
        self._failed_at: datetime | None = None

    def page(self, is_short: bool) -> EventPage:
        """The page; it is the last one if the task has finished and its runner has written the last lines."""
        facts, ended = self._facts, self._facts.state.final and not is_short
        if ended and {LineLogged.kind, ProgressReported.kind}.intersection(self._kinds):
            age = facts.now - facts.finished_at if facts.now and facts.finished_at else timedelta.max
            ended = not timedelta() <= age < timedelta(seconds=LAST_LINES)
        return EventPage(self._events, self._position, ended, is_short)

    def attempts(self) -> bool:
        """Add the events of attempts. False if there are more of them than the facts have."""
        facts, position = self._facts, self._position
        all_lines = facts.lines if LineLogged.kind in self._kinds else []
        failures = {failure.fence: failure for failure in facts.attempts if failure.fence > position.failed}
        lines = defaultdict[int, "list[LineFact]"](list)
        for line in all_lines:
            # Lines of an attempt that began after the facts about the task were read come with the next ones.
            if line.number > position.after(line.fence) and line.fence <= facts.fence:
                lines[line.fence].append(line)
        fences = {*failures, *lines, facts.fence, *([facts.progress_fence] if facts.progress else [])}
        has_all = facts.complete_lines or LineLogged.kind not in self._kinds
        last_line = HIGHEST_FENCE if has_all else max((line.fence for line in all_lines), default=0)
        last_failure = HIGHEST_FENCE if facts.complete_attempts else facts.attempts[-1].fence if facts.attempts else 0
        for fence in sorted(fence for fence in fences if fence <= min(last_line, last_failure)):
            self._start(fence, failures.get(fence), lines[fence])
            for line in lines[fence]:
                after = self._position.with_line(fence, line.number)
                self._add(LineLogged, after, line.at, line.attempt, line.level, line.line)
            if fence == last_line and not has_all:
                return False
            if facts.progress and facts.progress_fence == fence:
                self.progress()
            if fence in failures:
                self._fail(failures[fence])
        return has_all and facts.complete_attempts

    def state(self) -> None:
        """Add the current state, if it is not known."""
        facts = self._facts
        run_at = None if facts.state is State.RUNNING or facts.state.final else facts.run_at
        key = f"{facts.state.value}-{facts.fence}-{_micros(run_at)}-{int(facts.cancel_requested)}"
        if key == self._position.state:
            return
        started = facts.fence if facts.state is State.RUNNING else self._position.started
        values = facts.state, facts.run_at, facts.error, facts.cancel_requested, facts.waits_for
        after = self._position._replace(started=started, state=key)
        self._add(StateChanged, after, self._changed_at(), facts.attempt, *values)

    def progress(self) -> None:
        """Add the progress, if it is not known."""
        progress, fence = self._facts.progress, self._facts.progress_fence
        if progress is None or self._position.progress == (at := (fence, _micros(progress.at))):
            return
        values = progress.done, progress.total, progress.unit, progress.rate
        self._add(ProgressReported, self._position._replace(progress=at), progress.at, self._facts.attempt, *values)

    def _start(self, fence: int, failure: "AttemptFact | None", lines: "Sequence[LineFact]") -> None:
        """Add the start of an attempt, if it is not known. An attempt may have ended since the last look."""
        facts = self._facts
        if fence <= self._position.started:
            return
        if fence == facts.fence and facts.state is State.RUNNING:
            self.state()
        elif failure is not None and failure.started_at is not None:
            self._run(fence, failure.attempt, failure.started_at)
        elif fence == facts.fence and facts.state.final and facts.claimed_at is not None:
            self._run(fence, facts.attempt, facts.claimed_at)
        elif lines:
            self._run(fence, lines[0].attempt, lines[0].at)

    def _run(self, fence: int, attempt: int, at: datetime | None) -> None:
        after = self._position._replace(started=fence, state="")
        self._add(StateChanged, after, at, attempt, State.RUNNING, None, None, False, None)

    def _fail(self, failure: "AttemptFact") -> None:
        self._failed_at = failure.ended_at
        values = failure.error_type, failure.message, failure.delay
        after = self._position._replace(failed=failure.fence)
        self._add(AttemptFailed, after, failure.ended_at, failure.attempt, *values)

    def _changed_at(self) -> datetime | None:
        facts, known = self._facts, self._position.state
        if facts.state.final:
            return facts.finished_at
        if facts.state is State.RUNNING:
            is_asked = known.startswith(f"{facts.state.value}-{facts.fence}-")
            return facts.now if is_asked else facts.claimed_at
        return facts.submitted_at if not facts.fence and not known else self._failed_at or facts.now

    def _add(self, kind: type[TaskEvent], after: EventPosition, *values: Any) -> None:
        self._position = after
        if kind.kind in self._kinds:
            self._events.append(kind(after.cursor, *values))


def _micros(at: datetime | None) -> int:
    return 0 if at is None else max(0, (at - EPOCH) // timedelta(microseconds=1))
