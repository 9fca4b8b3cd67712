"""Ticks of schedules: the checks of their definitions, which of the due ones run by the policies, and their tasks."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from runner.errors import InvalidSchedule, InvalidTask, PayloadTooLarge
from runner.model.duration import LONGEST_SECONDS
from runner.model.headers import MOST_HEADERS, SCHEDULE, read_headers, write_headers
from runner.model.schedule import OVERLAPS, Overlap, ScheduleSpec
from runner.model.task import NewTask
from runner.model.text_limits import require_json, require_name
from runner.policy.schedule import AFTER_END, Rule, parse_rule, upcoming

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
        missed: the latest of the ticks that the misfire policy drops; None without one.
        next_at: the next tick; None for a rule with a delay, which waits for the end of the run.
    """

    run: list[datetime]
    missed: datetime | None
    next_at: datetime | None


def due_ticks(rule: Rule, misfire: Misfire, first: datetime, now: datetime) -> DueTicks:
    """Decide which of the due ticks run.

    Args:
        first: the earliest tick that has not happened.
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
        ticks: the ticks that are due together, in order.
        unfinished: True if the task of an earlier run is still live.
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
        jitter: maximum delay in seconds.
    """
    digest = hashlib.blake2b(f"{schedule}|{tick.timestamp()}".encode(), digest_size=8).digest()
    return tick + timedelta(seconds=jitter * int.from_bytes(digest) / 2**64)


def next_ticks(rule: Rule, next_at: datetime | None, now: datetime, count: int = 10) -> list[datetime]:
    """Preview the next ticks of a schedule.

    Args:
        next_at: its next tick as stored; None to compute it from `now`.
        count: maximum number of ticks.
    """
    if next_at is None:
        return upcoming(rule, now, count)
    rest = [] if rule.delay is not None else upcoming(rule, next_at, count - 1)
    return [next_at, *rest][:count]


def check_spec(spec: ScheduleSpec, payload_limit: int | None = None) -> None:
    """Reject a definition that has no ticks, or whose tasks could not be stored or executed.

    Args:
        payload_limit: maximum size of the payload in bytes; None for no limit.

    Raises:
        InvalidSchedule: a value is not valid; the message names it and the values that are.
        InvalidRetryPlan: the retry plan is not valid.
        PayloadTooLarge: the payload exceeds the limit.
    """
    parse_rule(spec.rule, spec.timezone)
    parse_misfire(spec.misfire)
    if spec.overlap not in OVERLAPS:
        raise InvalidSchedule(field="overlap", value=spec.overlap, why=f"it must be one of {', '.join(OVERLAPS)}")
    if not (
        isinstance(spec.jitter, (int, float)) and math.isfinite(spec.jitter) and 0 <= spec.jitter < LONGEST_SECONDS
    ):
        raise InvalidSchedule(field="jitter", value=spec.jitter, why="it must be a number of seconds, zero or more")
    if spec.broadcast and spec.rule.startswith(AFTER_END):
        why = "a broadcast has a run on each runner, and they end at different times: use every or a cron line"
        raise InvalidSchedule(field="rule", value=spec.rule, why=why)
    try:
        _check_task(spec)
    except InvalidTask as error:
        raise InvalidSchedule(**error.fields) from None
    if payload_limit is not None and (size := len(spec.payload.encode())) > payload_limit:
        raise PayloadTooLarge(handler=spec.handler, size=size, limit=payload_limit)


def _check_task(spec: ScheduleSpec) -> None:
    from runner.handlers.options import CHECKS  # the first screen of the console needs no checks
    from runner.handlers.schedules import read_options
    from runner.policy.retry import parse_plan

    require_name("handler", spec.handler)
    if not isinstance(require_json("payload", spec.payload), dict):
        raise InvalidTask(field="payload", value=spec.payload[:80], why="it is not a JSON object")
    options = read_options(spec.options)
    if spec.broadcast and options.get("queue") is not None:
        why = "the tasks of a broadcast are in the queues of their runners"
        raise InvalidTask(field="queue", value=options["queue"], why=why)
    for name, field, check in CHECKS:
        value = options.get(field)
        if value is not None:
            check(name, value)
    if len({**read_headers(options.get("headers")), SCHEDULE: ""}) > MOST_HEADERS:
        why = f"a run has the header `{SCHEDULE}` too, so that a schedule sets at most {MOST_HEADERS - 1}"
        raise InvalidTask(field="headers", value=MOST_HEADERS, why=why)
    if options.get("retry") is not None:
        parse_plan(options["retry"])


def task_template(schedule: str, spec: ScheduleSpec, defaults: Mapping[str, Any]) -> NewTask:
    """Return the task of a schedule without its time.

    Args:
        defaults: the defaults of its handler by task option, for options that the definition leaves out.

    Raises:
        InvalidInput: see `check_spec`.
    """
    from runner.handlers.dependencies import DECLARED
    from runner.handlers.options import SCHEDULE_OPTIONS
    from runner.handlers.schedules import check_id, read_options

    check_id(schedule)
    check_spec(spec)
    names = [name for name in SCHEDULE_OPTIONS if name in defaults and not (spec.broadcast and name == "queue")]
    names += [DECLARED] if DECLARED in defaults else []
    inherited = read_options(json.dumps({name: defaults[name] for name in names}))
    task = NewTask(spec.handler, spec.payload, submitted_by=f"schedule {schedule}")
    return task._replace(**{**inherited, **read_options(spec.options)})


def task_of(template: NewTask, schedule: str, moment: datetime, jitter: float) -> NewTask:
    """Return the task of one tick. Its key is the tick, unless the options of the schedule set one."""
    key = template.key if template.key is not None else moment.isoformat().replace("+00:00", "Z")
    from runner.handlers.dependencies import with_key

    headers = write_headers({**read_headers(template.headers), SCHEDULE: schedule})
    due = delayed(schedule, moment, jitter) if jitter else None
    task = template._replace(key=key, run_at=due, headers=headers)
    return with_key(task) if task.after else task
