"""Definitions of schedules: their checks, and the tasks that they give to ticks."""

import math
from datetime import datetime

from runner.errors import InvalidSchedule, InvalidTask, PayloadTooLarge
from runner.handlers.options import CHECKS
from runner.handlers.schedules import read_options
from runner.model.duration import LONGEST_SECONDS
from runner.model.schedule import OVERLAPS, ScheduleSpec
from runner.model.task import NewTask
from runner.model.text_limits import require_json, require_name
from runner.policy.retry import parse_plan
from runner.policy.schedule import AFTER_END, parse_rule
from runner.policy.schedule_ticks import delayed, parse_misfire


def check_spec(spec: ScheduleSpec, payload_limit: int | None = None) -> None:
    """Reject a definition that has no ticks, or whose tasks could not be stored or executed.

    Args:
        spec: the definition.
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
    if options.get("retry") is not None:
        parse_plan(options["retry"])


def task_template(schedule: str, spec: ScheduleSpec) -> NewTask:
    """Return the task of a schedule without its time.

    Raises:
        InvalidInput: see `check_spec`.
    """
    check_spec(spec)
    task = NewTask(spec.handler, spec.payload, submitted_by=f"schedule {schedule}")
    return task._replace(**read_options(spec.options))


def task_of(template: NewTask, schedule: str, moment: datetime, jitter: float) -> NewTask:
    """Return the task of one tick. Its key is the tick, unless the options of the schedule set one."""
    key = template.key if template.key is not None else moment.isoformat().replace("+00:00", "Z")
    return template._replace(key=key, run_at=delayed(schedule, moment, jitter) if jitter else None)
