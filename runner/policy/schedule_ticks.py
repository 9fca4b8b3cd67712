"""Ticks of schedules: which of the due ticks run, by the misfire policy and the overlap policy."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.errors import InvalidSchedule
from runner.model.schedule import Overlap
from runner.policy.schedule import Rule, upcoming

GRACE = timedelta(seconds=60)
"""Lateness above which a tick counts as missed, and so does every tick that a later one has followed."""

MOST_RUNS = 1_000
"""Upper bound of N in the misfire policy "all N"."""

_NUMBER = re.compile("[0-9]{1,4}")

FIRST_WINDOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Misfire:
    """Treatment of ticks that were due while no runner was up.

    Args:
        runs: maximum number of missed ticks to run, the latest ones.
    """

    runs: int


def parse_misfire(text: str) -> Misfire:
    """Parse a misfire policy.

    Args:
        text: "skip" runs no missed tick; "once" runs the latest one; "all 10" runs the latest ten.

    Raises:
        InvalidSchedule: the policy is not valid.
    """
    word, _, number = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if word == "all" and _NUMBER.fullmatch(number) and 1 <= int(number) <= MOST_RUNS:
        return Misfire(int(number))
    if number or word not in ("skip", "once"):
        why = f'it must be "skip", "once" or "all N" with N up to {MOST_RUNS}'
        raise InvalidSchedule(field="misfire", value=text, why=why)
    return Misfire(int(word == "once"))


class DueTicks(NamedTuple):
    """The decision about the due ticks of a schedule.

    Args:
        run: the ticks to run, in order.
        missed: the latest of the ticks that the misfire policy drops; None without one.
        next_at: the next tick; None for a rule with a delay, which waits for the end of the run.
    """

    run: list[datetime]
    missed: datetime | None
    next_at: datetime | None


def due_ticks(rule: Rule, misfire: Misfire, first: datetime, now: datetime) -> DueTicks:
    """Decide which of the due ticks run.

    Args:
        rule: the rule of the schedule.
        misfire: its misfire policy.
        first: the earliest tick that has not happened.
        now: the database's time.
    """
    if first > now:
        return DueTicks([], None, first)
    if rule.delay is not None:
        if misfire.runs or now - first <= GRACE:
            return DueTicks([first], None, None)
        return DueTicks([], first, rule.next(now))
    ticks = _last(rule, first, now, max(misfire.runs, 1) + 1)
    latest_runs = misfire.runs or now - ticks[-1] <= GRACE
    run = ticks[-max(misfire.runs, 1) :] if latest_runs else []
    dropped = ticks[: len(ticks) - len(run)]
    return DueTicks(run, dropped[-1] if dropped else None, rule.next(now))


def _last(rule: Rule, first: datetime, now: datetime, count: int) -> list[datetime]:
    """Return the last ticks from `first`, which is one, to `now`: after a long outage there may be millions."""
    window = FIRST_WINDOW
    while (start := now - window) > first:
        ticks = _between(rule, start, now)
        if len(ticks) >= count:
            return ticks[-count:]
        window *= 4
    return [first, *_between(rule, first, now)][-count:]


def _between(rule: Rule, start: datetime, end: datetime) -> list[datetime]:
    ticks: list[datetime] = []
    tick = rule.next(start)
    while tick is not None and tick <= end:
        ticks.append(tick)
        tick = rule.next(tick)
    return ticks


class Runs(NamedTuple):
    """The decision about overlapping runs.

    Args:
        submit: the ticks whose tasks are submitted, in order.
        skip: the ticks that are skipped.
        wait: True if each task waits for the end of the one before it, the first for the unfinished run.
        replace: True if the unfinished run is terminated.
    """

    submit: Sequence[datetime]
    skip: Sequence[datetime]
    wait: bool = False
    replace: bool = False


def resolve_overlap(overlap: Overlap, ticks: Sequence[datetime], unfinished: bool) -> Runs:
    """Decide which ticks submit tasks, while an earlier run may be unfinished.

    Args:
        overlap: the overlap policy.
        ticks: the ticks that are due together, in order.
        unfinished: True if the task of the last tick is still live.
    """
    match overlap:
        case Overlap.SKIP:
            kept = 0 if unfinished else 1
            return Runs(ticks[:kept], ticks[kept:])
        case Overlap.QUEUE:
            return Runs(ticks, (), wait=True)
        case Overlap.REPLACE:
            # A running task ends some time after its termination is requested; its successor waits for that.
            return Runs(ticks[-1:], ticks[:-1], wait=unfinished, replace=unfinished)
        case Overlap.ALLOW:
            return Runs(ticks, ())


def delayed(schedule: str, tick: datetime, jitter: float) -> datetime:
    """Return the time of a tick's task: later by a random part of the jitter, the same for every runner.

    Args:
        schedule: id of the schedule.
        tick: the tick.
        jitter: maximum delay in seconds.
    """
    digest = hashlib.blake2b(f"{schedule}|{tick.timestamp()}".encode(), digest_size=8).digest()
    return tick + timedelta(seconds=jitter * int.from_bytes(digest) / 2**64)


def next_ticks(rule: Rule, next_at: datetime | None, now: datetime, count: int = 10) -> list[datetime]:
    """Preview the next ticks of a schedule.

    Args:
        rule: its rule.
        next_at: its next tick as stored; None to compute it from `now`.
        now: the current time.
        count: maximum number of ticks.
    """
    if next_at is None:
        return upcoming(rule, now, count)
    rest = [] if rule.delay is not None else upcoming(rule, next_at, count - 1)
    return [next_at, *rest][:count]
