"""check: hold a history and a dump against the promises. Pure: no clock, no database, no files.

Fences distinguish the runs of a task. Promises are numbered as in `PROMISES`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from runner.model.task import State
from runner.policy.suspicion import Proof, is_suspect, seconds, width
from tests.chaos.dump import Dump, Row, Tried
from tests.chaos.journal import Event

PROMISES = {
    1: "no loss",
    2: "one ending",
    3: "effect at least once",
    4: "fences increase and are granted once",
    5: "no overlap",
    6: "no zombie write",
    7: "attempts count crashes",
    8: "bounded recovery",
    14: "not early",
    15: "fidelity",
    18: "effect exactly once in one's own transaction",
}

GRAIN = 0.005
"""Seconds by which two times may seem to be in the wrong order: SQLite keeps milliseconds."""

UNCOUNTED = 2
"""Starts that count no attempt at most, since a runner died within a moment of them."""

OK, UNKNOWN, REFUSED = "ok", "unknown", "refused"
"""The answer to a submit: the task exists, unknown, the task does not exist."""

PAYING = ("chaos.pay", "chaos.pay_thread")
"""Handlers that write a payment in the transaction that ends their task."""

FENCED_OUT = "FencedOut"
"""The error of an own transaction that lost its fence. A fenced settle stores nothing, so no attempt ends with it."""

FAULTS = ("kill", "freeze", "thaw", "outage")
"""Events that keep work from being recovered."""

Run = tuple[int, int]
"""A task's id and a fence."""


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

    def bound(self, suspects: Mapping[int, int]) -> float:
        """Seconds from the last fault to the next start of a task that a lost runner held.

        A lease expires, or a restarted runner waits one lease; then the policy's bound for suspects.
        """
        return self.restart + self.lease + self.scan + 1.0 + seconds(suspects, self.slots, self.proof, self.longest)


class Violation(NamedTuple):
    """A promise that was broken."""

    promise: int
    task: int | None
    why: str

    def __str__(self) -> str:
        return f"promise {self.promise} ({PROMISES[self.promise]}), task {self.task}: {self.why}"


def check(
    history: Sequence[Event], dump: Dump, bound: float | None = None, recovery: Recovery | None = None
) -> list[Violation]:
    """Find every promise that was broken.

    Args:
        history: the events of all processes, by time.
        dump: the content of the database at rest.
        bound: seconds within which work of a killed or frozen runner must be taken back; None when there were times
            without any healthy runner.
        recovery: the figures that bound the time from the last fault to the next start; None checks no such bound.

    Returns:
        The violations, each with the task that shows it.
    """
    case = Case(history, dump)
    found = [
        *_loss(case),
        *_endings(case),
        *_effects(case),
        *_grants(case),
        *_overlaps(case),
        *_zombies(case),
        *_counts(case),
        *_early(case),
        *_changed(case),
        *_payments(case),
    ]
    if bound is not None:
        found += _slow(case, bound)
    return found + list(_late(case, recovery)) if recovery is not None else found


class Case:
    """History and dump, arranged for looking things up."""

    def __init__(self, history: Sequence[Event], dump: Dump) -> None:
        self.history = history
        self.dump = dump
        self.submits = _by_token(history)
        self.starts = [event for event in history if event.what == "start"]
        self.ends = {_run(event): event for event in history if event.what == "end"}
        self.rows = {row.id: row for row in dump.rows}
        self.tried: dict[int, list[Tried]] = defaultdict(list)
        for tried in sorted(dump.tried, key=lambda tried: tried.fence):
            self.tried[tried.task_id].append(tried)
        self.started: dict[int, set[int]] = defaultdict(set)
        for event in self.starts:
            self.started[event.data["task"]].add(event.data["fence"])

    def claims(self, task_id: int) -> list[tuple[int, float]]:
        """The claims of a task whose end is known, by fence, each with its time."""
        known = {tried.fence: tried.started_at for tried in self.tried[task_id]}
        row = self.rows.get(task_id)
        if row is not None and row.state == State.SUCCEEDED:
            known[row.fence] = row.claimed_at
        return sorted((fence, at) for fence, at in known.items() if at is not None)


def recoveries(history: Sequence[Event], dump: Dump) -> list[float]:
    """Seconds from each kill or freeze to the moment when a task of that runner was taken back."""
    return [taken.ended_at - fault.at for fault, taken in _rescued(Case(history, dump))]


class Restart(NamedTuple):
    """The next start of a task whose runner was killed or frozen.

    Args:
        task: its id.
        attempt: that was cut off.
        seconds: from the fault to the next start.
        calm: seconds from the last fault before the next start to that start.
        ran: True if the task had started; a bystander was claimed only.
        before: suspects of each width that the same fault, or an earlier one, left waiting.
    """

    task: int
    attempt: int
    seconds: float
    calm: float
    ran: bool
    before: Mapping[int, int]


def restarts(history: Sequence[Event], dump: Dump) -> list[Restart]:
    """The next start of each task that a killed or frozen runner held, if it started again."""
    case = Case(history, dump)
    faults = [event.at for event in history if event.what in FAULTS]
    found = []
    for fault, taken in _cut_off(case):
        later = [event for event in case.starts if _follows(event, taken)]
        if later:
            calm = later[0].at - max(at for at in faults if at <= later[0].at)
            ran = taken.fence in case.started[taken.task_id]
            suspects = _suspects(case, later[0].at - calm, later[0].at)
            restart = Restart(taken.task_id, taken.attempt, later[0].at - fault.at, calm, ran, suspects)
            found.append(restart)
    return found


def _follows(event: Event, taken: Tried) -> bool:
    task, fence = _run(event)
    return task == taken.task_id and fence > taken.fence


def _cut_off(case: Case) -> Iterator[tuple[Event, Tried]]:
    """Each fault with each attempt that it cut off, started or not."""
    lost = [tried for tried in case.dump.tried if tried.error_type == "runner lost"]
    runner_of = {(tried.task_id, tried.fence): tried.runner_id for tried in lost}
    runners: dict[int, set[int]] = defaultdict(set)
    for start in case.starts:
        if (runner_id := runner_of.get(_run(start))) is not None:
            runners[start.pid].add(runner_id)
    for fault in case.history:
        if fault.what in ("kill", "freeze"):
            for tried in lost:
                begun = tried.started_at if tried.started_at is not None else tried.ended_at
                if tried.runner_id in runners[fault.pid] and begun <= fault.at <= tried.ended_at:
                    yield fault, tried


def _suspects(case: Case, since: float, until: float) -> dict[int, int]:
    """How many suspects of each width wait or run in a stretch of time."""
    found: Counter[int] = Counter()
    for task_id, tries in case.tried.items():
        past = [tried for tried in tries if tried.ended_at <= until]
        lost = list(takewhile(lambda tried: tried.error_type == "runner lost", reversed(past)))
        row = case.rows.get(task_id)
        if not lost or row is None or (row.finished_at is not None and row.finished_at < since):
            continue
        left = None if row.max_attempts is None else row.max_attempts - lost[0].attempt
        if is_suspect(len(lost), left, lost[0].attempt):
            found[width(len(lost), left)] += 1
    return dict(found)


def duplicates(history: Sequence[Event]) -> int:
    """How many times a body that had ended well ended well again."""
    ends = Counter(event.data["task"] for event in history if event.what == "end")
    return sum(times - 1 for times in ends.values())


def _by_token(history: Iterable[Event]) -> dict[str, Event]:
    """The final answer to each submit: an unknown one may be resolved later."""
    return {event.data["token"]: event for event in history if event.what == "submit"}


def _run(event: Event) -> Run:
    return event.data["task"], event.data["fence"]


def _token(row: Row) -> Any:
    return json.loads(row.payload).get("token")


def _loss(case: Case) -> Iterator[Violation]:
    ids: dict[Any, list[int]] = defaultdict(list)
    for row in case.dump.rows:
        ids[_token(row)].append(row.id)
    for token, event in case.submits.items():
        found, answer = ids.pop(token, []), event.data["answer"]
        if answer == OK and found != [event.data["task"]]:
            yield Violation(1, event.data["task"], f"was acknowledged and is there as {found}")
        if answer == UNKNOWN and len(found) > 1:
            yield Violation(1, found[0], f"was submitted once and is there as {found}")
        if answer == REFUSED and found:
            yield Violation(1, found[0], "was refused and is there")
    for token, found in ids.items():
        yield Violation(1, found[0], f"was submitted by nobody: {token}")


def _endings(case: Case) -> Iterator[Violation]:
    for task_id, times in Counter(row.id for row in case.dump.rows).items():
        if times > 1:
            yield Violation(2, task_id, f"is there {times} times")
    for row in case.dump.live:
        if row.state != State.WAITING or row.run_at < max((event.at for event in case.history), default=0.0):
            yield Violation(2, row.id, f"is {row.state} and due though all is at rest")
    for row in case.dump.ended:
        if row.state == State.SUCCEEDED and any(tried.fence == row.fence for tried in case.tried[row.id]):
            yield Violation(2, row.id, f"failed and succeeded under fence {row.fence}")


def _effects(case: Case) -> Iterator[Violation]:
    for row in case.dump.ended:
        if row.state != State.SUCCEEDED:
            continue
        end = case.ends.get((row.id, row.fence))
        if end is None:
            yield Violation(3, row.id, f"succeeded, but its handler never ended under fence {row.fence}")
        elif row.finished_at is not None and end.at > row.finished_at + GRAIN:
            yield Violation(3, row.id, f"succeeded before its handler had ended under fence {row.fence}")


def _grants(case: Case) -> Iterator[Violation]:
    for (task_id, fence), times in Counter(map(_run, case.starts)).items():
        if times > 1:
            yield Violation(4, task_id, f"was started {times} times under fence {fence}")
    for task_id in case.tried:
        for (first, before), (second, after) in pairwise(case.claims(task_id)):
            if before > after + GRAIN:
                yield Violation(4, task_id, f"fence {first} was granted after fence {second}")


def _overlaps(case: Case) -> Iterator[Violation]:
    for task_id, tries in case.tried.items():
        for ended in tries:
            later = [at for fence, at in case.claims(task_id) if fence > ended.fence]
            if any(at < ended.ended_at - GRAIN for at in later):
                yield Violation(5, task_id, f"was claimed again before the run under fence {ended.fence} was over")


def _zombies(case: Case) -> Iterator[Violation]:
    for task_id, row in case.rows.items():
        fences = case.started[task_id] | {tried.fence for tried in case.tried[task_id]}
        if fences and max(fences) > row.fence:
            yield Violation(6, task_id, f"was ended under fence {row.fence} after fence {max(fences)} was granted")
    for event in case.starts:
        for tried in case.tried[event.data["task"]]:
            if tried.fence < event.data["fence"] and tried.ended_at > event.at + GRAIN:
                yield Violation(6, tried.task_id, f"what ran under fence {tried.fence} was settled after a later start")


def _counts(case: Case) -> Iterator[Violation]:
    for task_id, row in case.rows.items():
        tries, starts = case.tried[task_id], case.started[task_id]
        limit = row.max_attempts
        counted = len(tries) + (row.state == State.SUCCEEDED)
        if row.state in (State.SUCCEEDED, State.DEAD, State.WAITING) and row.attempt != counted:
            yield Violation(7, task_id, f"counts {row.attempt} attempts, of which {counted} ended")
        # A rescue gives the attempt of a task back that it does not know to have started; a second one suspects it.
        given_back = row.rescues - sum(tried.error_type == "runner lost" for tried in tries)
        if len(starts) > row.attempt + min(given_back, UNCOUNTED):
            yield Violation(7, task_id, f"was started {len(starts)} times and counts {row.attempt} attempts")
        if limit is not None and row.attempt > limit:
            yield Violation(7, task_id, f"was tried {row.attempt} times, {limit} at most")
        for tried in tries:
            if tried.error_type.endswith(FENCED_OUT):
                yield Violation(7, task_id, f"counts attempt {tried.attempt} as fenced out, and its fence was valid")
            if tried.verb in ("rescue", "retry") and limit is not None and tried.attempt >= limit:
                yield Violation(7, task_id, f"was given another try after attempt {tried.attempt} of {limit}")


def _early(case: Case) -> Iterator[Violation]:
    wished = {token: event.data.get("run_at") for token, event in case.submits.items()}
    for event in case.starts:
        run_at = wished.get(event.data["token"])
        if run_at is not None and event.at < run_at - GRAIN:
            yield Violation(14, event.data["task"], f"was started {run_at - event.at:.3f} s early")
    for task_id, tries in case.tried.items():
        for tried in tries:
            due = tried.ended_at + (tried.delay or 0.0)
            next_claim = next((at for fence, at in case.claims(task_id) if fence > tried.fence), None)
            if next_claim is not None and next_claim < due - GRAIN:
                yield Violation(14, task_id, f"was tried again before the delay after fence {tried.fence}")


def _changed(case: Case) -> Iterator[Violation]:
    given = {token: event.data.get("given") for token, event in case.submits.items()}
    for row in case.dump.rows:
        token = _token(row)
        if token in given and json.loads(row.payload).get("data") != given[token]:
            yield Violation(15, row.id, "its payload is not what was submitted")
    for event in case.starts:
        token = event.data["token"]
        if token in given and event.data.get("given") != given[token]:
            yield Violation(15, event.data["task"], "its handler was given something else than was submitted")


def _payments(case: Case) -> Iterator[Violation]:
    paid = Counter(case.dump.paid)
    for row in case.dump.rows:
        due = int(row.handler in PAYING and row.state == State.SUCCEEDED)
        if paid[row.id] != due:
            yield Violation(18, row.id, f"is {row.state} and has {paid[row.id]} payments")


def _slow(case: Case, bound: float) -> Iterator[Violation]:
    for fault, taken in _rescued(case):
        if (passed := taken.ended_at - fault.at) > bound:
            yield Violation(8, taken.task_id, f"was taken back after {passed:.1f} s, {bound:.1f} s at most")


def _late(case: Case, recovery: Recovery) -> Iterator[Violation]:
    for restart in restarts(case.history, case.dump):
        bound = recovery.bound(restart.before)
        if restart.calm > bound:
            why = f"started again {restart.calm:.1f} s after the last fault, {bound:.1f} s at most"
            yield Violation(8, restart.task, why)


def _rescued(case: Case) -> Iterator[tuple[Event, Tried]]:
    """Each fault with each run that it cut off."""
    cut = {(tried.task_id, tried.fence): tried for tried in case.dump.tried if tried.error_type == "runner lost"}
    for fault in case.history:
        if fault.what in ("kill", "freeze"):
            for start in case.starts:
                taken = cut.get(_run(start))
                if taken is not None and start.pid == fault.pid and start.at <= fault.at <= taken.ended_at:
                    yield fault, taken
