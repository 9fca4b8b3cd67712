"""Recovery: how long it takes until the tasks of a killed or frozen runner start again, and the bound of that time."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import ceil
from typing import NamedTuple

from runner.engine.lease.rescue_loop import MAX_RESCUE_PAUSE
from runner.engine.runner import RESCUE_EVERY
from runner.policy.suspicion import Proof, is_suspect, width
from tests.chaos.dump import Attempt, Dump
from tests.chaos.evidence import FAULTS, RUNNER_LOST, Evidence, Violation, run_of
from tests.chaos.journal import Event
from tests.policy.suspicion_bounds import seconds


class Recovery(NamedTuple):
    """The figures that bound the time from a fault to the next start of a task, in seconds.

    Args:
        lease: of the runners.
        scan: their poll interval.
        proof: how long a suspect keeps its place.
        longest: that a task runs.
        slots: of a runner.
        restart: that a runner takes to start.
    """

    lease: float
    scan: float
    proof: Proof
    longest: float
    slots: int
    restart: float

    def bound(self, suspects: Mapping[int, int], ahead: int = 0) -> float:
        """Seconds from the last fault to the next start of a task that a lost runner held.

        A runner restarts and waits one lease, or a lease expires; then the next rescue takes the task. It keeps its due
        time: tasks that were due before it start first, at least as many at a time as a runner has slots. A suspect
        also has the bound of its policy.

        Args:
            suspects: the number of suspects of each width.
            ahead: the number of tasks that were due before it and started in this time.
        """
        rescue = self.restart + self.lease + RESCUE_EVERY + MAX_RESCUE_PAUSE
        before = ceil(ahead / self.slots) * self.longest
        return rescue + self.scan + before + seconds(suspects, self.slots, self.proof, self.longest)


def recoveries(history: Sequence[Event], dump: Dump) -> list[float]:
    """Seconds from each kill or freeze to the rescue of each task that the runner executed."""
    return [attempt.ended_at - fault.at for fault, attempt in _rescued(Evidence(history, dump))]


class Restart(NamedTuple):
    """The next start of a task whose runner was killed or frozen.

    Args:
        task: its id.
        attempt: the attempt that was cut off.
        seconds: from the fault to the next start.
        calm: seconds from the last fault of any kind before the next start to that start.
        at: the time of the next start.
        claimed_at: the time of the claim that was cut off.
        ran: True if the task had started; False for a claimed task that waited for a slot.
    """

    task: int
    attempt: int
    seconds: float
    calm: float
    at: float
    claimed_at: float
    ran: bool


def restarts(evidence: Evidence) -> list[Restart]:
    """The next start of each task that a killed or frozen runner had, if it started again."""
    faults = sorted(event.at for event in evidence.history if event.what in FAULTS)
    starts: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for event in evidence.starts:
        starts[event.data["task"]].append((event.data["fence"], event.at))
    result = []
    for fault, lost in _cut_off(evidence):
        later = [at for fence, at in starts[lost.task_id] if fence > lost.fence]
        if later:
            last_fault = faults[bisect_right(faults, later[0]) - 1]
            ran = lost.fence in evidence.started[lost.task_id]
            claimed_at = lost.ended_at if lost.started_at is None else lost.started_at
            times = later[0] - fault.at, later[0] - last_fault, later[0], claimed_at
            result.append(Restart(lost.task_id, lost.attempt, *times, ran))
    return result


class IdleAttempt(NamedTuple):
    """An attempt that a rescue counted although its body never started.

    Args:
        fault: the first fault of its runner after the claim: kill, freeze, or connection if it was neither.
        seconds: from the claim to that fault; to the rescue if it was neither.
    """

    fault: str
    seconds: float


def idle_attempts(evidence: Evidence) -> list[IdleAttempt]:
    """The attempts that rescues counted although their bodies never started."""
    runner_of = {(row.id, row.fence): row.runner_id for row in evidence.rows.values()}
    runner_of |= {(attempt.task_id, attempt.fence): attempt.runner_id for attempt in evidence.dump.attempts}
    pid_of = {runner_of.get(run_of(start)): start.pid for start in evidence.starts}
    faults: dict[int, list[Event]] = defaultdict(list)
    for event in evidence.history:
        if event.what in ("kill", "freeze"):
            faults[event.pid].append(event)
    result = []
    for attempt in evidence.dump.attempts:
        if attempt.error_type != RUNNER_LOST or attempt.fence in evidence.started[attempt.task_id]:
            continue
        claimed_at = attempt.ended_at if attempt.started_at is None else attempt.started_at
        own = faults[pid_of[attempt.runner_id]] if attempt.runner_id in pid_of else []
        fault = next((event for event in own if claimed_at <= event.at <= attempt.ended_at), None)
        what, at = ("connection", attempt.ended_at) if fault is None else (fault.what, fault.at)
        result.append(IdleAttempt(what, at - claimed_at))
    return result


def rescued_late(evidence: Evidence, bound: float) -> Iterator[Violation]:
    """Tasks that were rescued later than `bound` seconds after the fault."""
    for fault, attempt in _rescued(evidence):
        if (passed := attempt.ended_at - fault.at) > bound:
            yield Violation(8, attempt.task_id, f"was rescued after {passed:.1f} s, {bound:.1f} s at most")


def started_late(evidence: Evidence, recovery: Recovery) -> Iterator[Violation]:
    """Tasks that started again later than the bound after the last fault."""
    for restart in restarts(evidence):
        if restart.calm <= recovery.bound({}):
            continue
        suspects = _suspects(evidence, restart.at - restart.calm, restart.at)
        bound = recovery.bound(suspects, _ahead(evidence, restart))
        if restart.calm > bound:
            why = f"started again {restart.calm:.1f} s after the last fault, {bound:.1f} s at most"
            yield Violation(8, restart.task, why)


def _cut_off(evidence: Evidence) -> Iterator[tuple[Event, Attempt]]:
    """Each fault with each attempt that it cut off, started or not."""
    lost: dict[int | None, list[Attempt]] = defaultdict(list)
    runner_of: dict[tuple[int, int], int | None] = {}
    for attempt in evidence.dump.attempts:
        if attempt.error_type == RUNNER_LOST:
            lost[attempt.runner_id].append(attempt)
            runner_of[attempt.task_id, attempt.fence] = attempt.runner_id
    runners: dict[int, set[int | None]] = defaultdict(set)
    for start in evidence.starts:
        if (runner_id := runner_of.get(run_of(start))) is not None:
            runners[start.pid].add(runner_id)
    for fault in evidence.history:
        if fault.what in ("kill", "freeze"):
            for attempt in (attempt for runner_id in runners[fault.pid] for attempt in lost[runner_id]):
                begun = attempt.started_at if attempt.started_at is not None else attempt.ended_at
                if begun <= fault.at <= attempt.ended_at:
                    yield fault, attempt


def _rescued(evidence: Evidence) -> Iterator[tuple[Event, Attempt]]:
    """Each fault with each run that it cut off after its start."""
    lost = {
        (attempt.task_id, attempt.fence): attempt
        for attempt in evidence.dump.attempts
        if attempt.error_type == RUNNER_LOST
    }
    starts: dict[int, list[Event]] = defaultdict(list)
    for start in evidence.starts:
        if run_of(start) in lost:
            starts[start.pid].append(start)
    for fault in evidence.history:
        if fault.what in ("kill", "freeze"):
            for start in starts[fault.pid]:
                attempt = lost[run_of(start)]
                if start.at <= fault.at <= attempt.ended_at:
                    yield fault, attempt


def _ahead(evidence: Evidence, restart: Restart) -> int:
    """The number of starts between the last fault and a restart that its task had to wait for.

    A task that was submitted after the claim that the fault cut off is due later, and cannot be ahead.
    """
    starts = [event for event in evidence.starts if restart.at - restart.calm < event.at < restart.at]
    return sum(evidence.submitted_at.get(event.data["token"], 0.0) <= restart.claimed_at for event in starts)


def _suspects(evidence: Evidence, since: float, until: float) -> dict[int, int]:
    """The number of suspects of each width that wait or run in a period."""
    widths: Counter[int] = Counter()
    for task_id, attempts in evidence.attempts.items():
        past = [attempt for attempt in attempts if attempt.ended_at <= until]
        lost = list(takewhile(lambda attempt: attempt.error_type == RUNNER_LOST, reversed(past)))
        row = evidence.rows.get(task_id)
        if not lost or row is None or (row.finished_at is not None and row.finished_at < since):
            continue
        remaining = None if row.max_attempts is None else row.max_attempts - lost[0].attempt
        if is_suspect(len(lost), remaining, lost[0].attempt):
            widths[width(len(lost), remaining)] += 1
    return dict(widths)
