"""reconstruction: the state of a task at a past moment, from its row, attempts, changes and dependencies.

A decision without I/O: `runner.queries.past.as_of` reads the evidence. Snoozes, releases and rescues before the start
leave no attempt. Gaps in the fences reveal them: within a gap, a task was waiting or running, and which of both is
unknown.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

from runner.db.types import LATEST
from runner.model.outcome import RUNNER_LOST
from runner.model.task import MOVES, Shown, State
from runner.queries.audit import AuditRecord
from runner.queries.rows import as_int, as_text, from_row, moment, number, read_time, text, values_of
from runner.queries.task_list.row import TaskRow
from runner.text.document import Flat

EDITABLE = ("priority", "max_attempts", "key", "hosts", "expires_at")


class Evidence(NamedTuple):
    """The rows about one task.

    Args:
        row: the live or finished row, with readable values by column.
        attempts: its failed attempts by column.
        changes: its audit entries, oldest first.
    """

    row: Mapping[str, Any]
    attempts: Sequence[Mapping[str, Any]] = ()
    changes: Sequence[AuditRecord] = ()
    dependencies: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class PastTask:
    """A task as it was at a moment.

    Args:
        task: the task; its version and its rescues are not those of the moment.
        word: its state: a displayed state, "waiting" if its due time is unknown, or "waiting or running".
        parents: the ids of the parents that it waited for; None for one named by its key.
    """

    task: Annotated[TaskRow, Flat(without=("version", "rescues", "interruptions"))]
    word: str
    parents: tuple[int | None, ...] = ()

    @property
    def certain(self) -> bool:
        """True if its state is known exactly."""
        return self.word == self.task.shown


WAITING = State.WAITING.value
UNRECORDED = f"{State.WAITING} or {State.RUNNING}"
"""The words of states that are not known exactly."""


class PastRun(NamedTuple):
    """A run of a task.

    Args:
        start: when it was claimed; None if unknown.
        end: when it ended; None while it runs.
        bumps: the number of fences that its end used.
    """

    fence: int
    start: datetime | None
    end: datetime | None
    attempt: int
    runner_id: int | None
    host: str | None
    bumps: int = 0


@dataclass(frozen=True, slots=True)
class _Phase:
    state: State
    attempt: int = 0
    run_at: datetime | None = None
    run: PastRun | None = None
    finished_at: datetime | None = None
    error: str | None = None


class _Step(NamedTuple):
    """A change of the phase; `rank` orders steps with the same time."""

    at: datetime
    rank: int
    apply: Callable[[_Phase], _Phase]


def past_task(evidence: Evidence, at: datetime, states: Sequence[str] = ()) -> PastTask | None:
    """Derive a task as it was at a moment; None if it was submitted later, or was in none of the given states."""
    row = evidence.row
    submitted = moment(row["submitted_at"])
    if submitted is None or submitted > at:
        return None
    history = _History(evidence, submitted)
    phase = history.phase(at)
    run_at = history.run_at(at, phase)
    word, shown = _shown(phase, run_at, at, any(begin <= at < end for begin, end in history.gaps))
    if states and not {word, phase.state.value} & {*states}:
        return None
    run = phase.run
    values = {
        **row,
        **history.edited(at),
        "shown": shown,
        "attempt": phase.attempt,
        "run_at": run_at,
        "claimed_at": run.start if run and phase.state is not State.WAITING else None,
        "runner_id": run.runner_id if run and phase.state is not State.WAITING else None,
        "host": run.host if run else None,
        "finished_at": phase.finished_at,
        "duration": row.get("duration") if phase.finished_at == moment(row.get("finished_at")) else None,
        "cancel_requested": phase.state is State.RUNNING and history.is_terminating(at, run),
        "error": phase.error,
        "rescues": 0,
    }
    parents = history.open_parents(at) if phase.state is State.BLOCKED else ()
    return PastTask(from_row(TaskRow, values | {"blocked_by": len(parents)}), word, parents)


def _shown(phase: _Phase, run_at: datetime | None, at: datetime, unrecorded: bool) -> tuple[str, Shown]:
    if phase.state is not State.WAITING:
        return phase.state.value, Shown(phase.state.value)
    if unrecorded:
        return UNRECORDED, Shown.READY
    if run_at is None:
        return WAITING, Shown.RETRYING if phase.attempt else Shown.READY
    shown = Shown.READY if run_at <= at else Shown.RETRYING if phase.attempt else Shown.SCHEDULED
    return shown.value, shown


class _Change(NamedTuple):
    entry: AuditRecord
    at: datetime
    before: Mapping[str, Any]
    after: Mapping[str, Any]


class _Blocking(NamedTuple):
    """The time in which a dependency blocks its task: from the submit, or from the call of a child, to its end.

    Args:
        closed: the times between an unblock and its undo.
    """

    id: int
    parent_id: int | None
    begin: datetime
    until: datetime | None
    closed: Sequence[tuple[datetime, datetime]]

    def blocks(self, at: datetime) -> bool:
        open_ = self.begin <= at and (self.until is None or self.until > at)
        return open_ and not any(begin <= at < end for begin, end in self.closed)


def _blocking(
    row: Mapping[str, Any], submitted: datetime, changes: Sequence[_Change], ends: Sequence[datetime]
) -> _Blocking:
    """The time of a dependency. That of a call opens if its child lives when its task waits for it.

    Args:
        ends: the times when the task ended, or when an operator changed it.
    """
    undone = {change.entry.undo_of: change.at for change in changes}
    closed = [
        (change.at, undone[change.entry.id])
        for change in changes
        if change.entry.id in undone and row["id"] in _unblocked(change)
    ]
    called_at, until = moment(row["called_at"]), moment(row["satisfied_at"])
    never = False
    if called_at and until and row["parent_state"] is None and row["satisfied_by"] is None:
        # Its call has closed it, or else the end of its task.
        never = all(until - called_at <= abs(end - until) for end in ends)
    return _Blocking(row["id"], row["parent_id"], called_at or submitted, called_at if never else until, closed)


def _unblocked(change: _Change) -> Sequence[Any]:
    """The ids of the dependencies that an unblock has closed."""
    ids = change.before.get("dependencies")
    return ids if isinstance(ids, list) else ()


class _History:
    """The runs, the changes and the steps of one task."""

    def __init__(self, evidence: Evidence, submitted: datetime) -> None:
        self.row, self.submitted = evidence.row, submitted
        entries = [(entry, entry.at) for entry in evidence.changes]
        self.changes = [
            _Change(entry, at, values_of(entry.before), values_of(entry.after)) for entry, at in entries if at
        ]
        self.final = State(row_state) if (row_state := as_text(self.row["state"])) in _FINAL_WORDS else None
        self.finished_at = moment(self.row.get("finished_at"))
        former = [read_time(change.before.get("finished_at")) for change in self.changes]
        ends = [end for end in (self.finished_at, *former) if end] + [change.at for change in self.changes]
        self.dependencies = [_blocking(row, submitted, self.changes, ends) for row in evidence.dependencies]
        self.attempts = [(row, _run_of(row)) for row in evidence.attempts]
        self.runs = self._runs()
        self.gaps = list(self._gaps())
        self.steps = sorted(
            [*self._attempt_steps(), *self._run_steps(), *self._change_steps(), *self._row_steps()],
            key=lambda step: (step.at, step.rank),
        )

    def phase(self, at: datetime) -> _Phase:
        opened = any(each.begin == self.submitted and each.blocks(self.submitted) for each in self.dependencies)
        phase = _Phase(State.BLOCKED if opened else State.WAITING)
        for step in self.steps[: bisect_right(self.steps, at, key=lambda step: step.at)]:
            phase = step.apply(phase)
        return phase

    def run_at(self, at: datetime, phase: _Phase) -> datetime | None:
        """The due time at a moment: that before the next change of it, or else that after the last one."""
        later = [(time, before) for time, before in self._writes() if time > at]
        if not later:
            return moment(self.row["run_at"])
        return min(later, key=itemgetter(0))[1] or phase.run_at

    def edited(self, at: datetime) -> dict[str, Any]:
        """The values that operators have changed since a moment."""
        values: dict[str, Any] = {}
        for change in reversed([change for change in self.changes if change.at > at]):
            values |= {name: change.before[name] for name in EDITABLE if name in change.before}
        if "expires_at" in values:
            values["expires_at"] = read_time(values["expires_at"])
        return values

    def is_terminating(self, at: datetime, run: PastRun | None) -> bool:
        requests = [c.after for c in self.changes if c.at <= at and "cancel_requested" in c.after]
        last = requests[-1] if requests else {}
        return bool(last.get("cancel_requested")) and run is not None and last.get("fence") == run.fence

    def open_parents(self, at: datetime) -> tuple[int | None, ...]:
        return tuple(each.parent_id for each in self.dependencies if each.blocks(at))

    def _runs(self) -> list[PastRun]:
        """The known runs, by their fences."""
        runs = {run.fence: run for _, run in self.attempts}
        ends = [(change.before, read_time(change.before.get("finished_at"))) for change in self.changes]
        versions: list[tuple[dict[str, Any], Any]] = [({**old, "host": None}, end) for old, end in ends if end]
        row_end = self.finished_at if self.final else None
        if self.final or as_text(self.row["state"]) == State.RUNNING:
            versions.append((dict(self.row), row_end))
        for values, end in versions:
            start, fence = read_time(values.get("claimed_at")), as_int(values.get("fence"))
            rescued = runs.get(fence - 1)
            if start is not None and fence not in runs and not (rescued and rescued.bumps):
                runs[fence] = PastRun(
                    fence, start, end, as_int(values.get("attempt")), values.get("runner_id"), text(values.get("host"))
                )
        return [runs[fence] for fence in sorted(runs)]

    def _gaps(self) -> Iterator[tuple[datetime, datetime]]:
        """The times in which a claim left no record: its fence is missing."""
        fence, begin = 0, self.submitted
        for run in self.runs:
            if run.fence > fence + 1 and run.start is not None:
                yield begin, run.start
            fence, begin = run.fence + run.bumps, run.end or run.start or begin
        if as_int(self.row["fence"]) > fence:
            yield begin, self.finished_at or LATEST

    def _writes(self) -> Iterator[tuple[datetime, datetime | None]]:
        """The changes of the due time, each with the value before it; None if that is unknown."""
        for row, run in self.attempts:
            if run.end is not None and number(row["delay"]) is not None:
                yield run.end, None
        for change in self.changes:
            if "run_at" in change.after or "run_at" in change.before:
                yield change.at, read_time(change.before.get("run_at"))
        for _, end in self.gaps:
            yield end, None
        recorded = {id for change in self.changes if "run_at" in change.before for id in _unblocked(change)}
        for unblocked in self._unblocks(recorded):
            yield unblocked, None

    def _unblocks(self, recorded: Collection[int] = ()) -> list[datetime]:
        """The times when the last open dependency was satisfied, without those of recorded unblocks."""
        ends = {each.until for each in self.dependencies if each.id not in recorded}
        return [end for end in ends if end is not None and not self.open_parents(end)]

    def _attempt_steps(self) -> Iterator[_Step]:
        for row, run in self.attempts:
            if run.end is None:
                continue
            error = f"{as_text(row['error_type'])}: {as_text(row['message'])}"
            yield _Step(run.end, 1, _settling(row, run, self._used_after(run, run.end), error))

    def _used_after(self, run: PastRun, end: datetime) -> int:
        """The attempts that a task has used after a run; the failure of a step uses up none."""
        later = [(each.start, each.attempt - 1) for each in self.runs if each.start and each.fence > run.fence]
        later += [(c.at, as_int(c.before["attempt"])) for c in self.changes if c.at >= end and "attempt" in c.before]
        return min(run.attempt, min(later)[1] if later else as_int(self.row["attempt"]))

    def _run_steps(self) -> Iterator[_Step]:
        for run in self.runs:
            if run.start is not None:
                running = {"state": State.RUNNING, "run": run, "attempt": run.attempt, "finished_at": None}
                yield _Step(run.start, 0, partial(replace, **running))

    def _change_steps(self) -> Iterator[_Step]:
        by_id = {change.entry.id: change for change in self.changes}
        for change in self.changes:
            end = read_time(change.before.get("finished_at"))
            if end is not None and change.before.get("state") in _FINAL_WORDS:
                yield _Step(end, 3, _ending(State(change.before["state"]), end, change.before))
            undone = by_id.get(change.entry.undo_of or 0)
            if change.after.get("state") in tuple(State):
                yield _Step(change.at, 2, _changing(change, undone.before if undone else {}))
            elif "run_at" in change.after:
                yield _Step(change.at, 2, partial(replace, run_at=read_time(change.after["run_at"])))

    def _row_steps(self) -> Iterator[_Step]:
        for each in self.dependencies:
            if each.begin > self.submitted and each.blocks(each.begin):
                yield _Step(each.begin, 1, partial(replace, state=State.BLOCKED, run=None))
        for unblocked in self._unblocks():
            yield _Step(unblocked, 1, _unblocking(unblocked))
        if self.final is not None and self.finished_at is not None:
            yield _Step(self.finished_at, 3, _ending(self.final, self.finished_at, self.row))


_FINAL_WORDS = tuple(state.value for state in State if state.final)


def _run_of(row: Mapping[str, Any]) -> PastRun:
    return PastRun(
        as_int(row["fence"]),
        moment(row["started_at"]),
        moment(row["ended_at"]),
        as_int(row["attempt"]),
        row["runner_id"],
        text(row["host"]),
        int(as_text(row["error_type"]) == RUNNER_LOST),
    )


def _settling(row: Mapping[str, Any], run: PastRun, attempt: int, error: str) -> Callable[[_Phase], _Phase]:
    """The step at the end of a failed attempt."""
    verb, delay = as_text(row["verb"]), number(row["delay"])
    target = MOVES[verb].target if verb in MOVES else State.WAITING

    def apply(phase: _Phase) -> _Phase:
        run_at = phase.run_at
        if delay is not None and run.end is not None:
            with suppress(OverflowError):
                run_at = run.end + timedelta(seconds=delay)
        finished_at = run.end if target.final else None
        return _Phase(target, attempt, run_at, run, finished_at, error)

    return apply


def _ending(state: State, at: datetime, values: Mapping[str, Any]) -> Callable[[_Phase], _Phase]:
    attempt, error = as_int(values.get("attempt")), text(values.get("error"))
    return lambda phase: replace(
        phase, state=state, attempt=attempt, finished_at=at, error=error or (phase.error if phase.run else None)
    )


def _changing(change: _Change, undone: Mapping[str, Any]) -> Callable[[_Phase], _Phase]:
    """The step of a change by an operator, or of its undo, which restores the values before the change."""
    state, values = State(change.after["state"]), {**undone, **change.after}
    finished_at = (read_time(undone.get("finished_at")) or change.at) if state.final else None
    run_at = read_time(values.get("run_at"))

    def apply(phase: _Phase) -> _Phase:
        attempt = as_int(values["attempt"]) if "attempt" in values else phase.attempt
        run = phase.run if state.final or phase.run is None or not phase.finished_at else None
        return replace(
            phase, state=state, attempt=attempt, run_at=run_at or phase.run_at, finished_at=finished_at, run=run
        )

    return apply


def _unblocking(at: datetime) -> Callable[[_Phase], _Phase]:
    def apply(phase: _Phase) -> _Phase:
        if phase.state is not State.BLOCKED:
            return phase
        return replace(phase, state=State.WAITING, run_at=max(phase.run_at, at) if phase.run_at else None)

    return apply
