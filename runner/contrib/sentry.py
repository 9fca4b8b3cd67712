"""RunnerIntegration: failures, spans and check-ins of tasks for Sentry.

`sentry_sdk.init(integrations=[RunnerIntegration()])` in the module of the handlers switches it on.
"""

import json
import logging
import re
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from math import ceil
from types import TracebackType
from typing import Any, Literal, get_args
from uuid import NAMESPACE_URL, uuid5

from runner import (
    AttemptEnd,
    Context,
    Dead,
    NewTask,
    Retry,
    Snooze,
    SubmitResult,
    around_execute,
    around_process,
    around_submit,
    on_failure,
    schedules,
)
from runner.errors import InvalidInput, InvalidTask, PackageMissing

try:
    import sentry_sdk
    from sentry_sdk.consts import OP, SPANDATA
    from sentry_sdk.integrations import Integration
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import Scope
    from sentry_sdk.tracing import TransactionSource
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as error:
    raise PackageMissing(package=error.name or "", use="runner.contrib.sentry", extra="sentry", instead="") from None

log = logging.getLogger("runner.sentry")

Failures = Literal["last", "each"]

ORIGIN = "auto.queue.tasktui"

SENTRY_TRACE, BAGGAGE = "sentry-trace", "baggage"
"""The headers with the position in a trace."""

EVENT = "sentry_event"
"""The attribute of an exception with its event as JSON, from a worker process."""

OUTCOMES = (Retry, Dead, Snooze)

CALLERS = ("runner.engine.executing.executor", "runner.handlers.functions")
"""The modules that call handlers."""

RULES_LIMIT = 60.0
"""Seconds for which the rules of schedules are kept."""

SLUG = 50
"""Maximum number of characters of the slug of a monitor."""

UNITS = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60))
"""The units of intervals in seconds; Sentry knows none below a minute."""

_attempt: ContextVar[int | None] = ContextVar("runner_sentry_attempt", default=None)
"""The id of the task whose scope the current context has."""


class RunnerIntegration(Integration):
    """The integration of tasktui with Sentry.

    Args:
        failures: "last" reports the failure after which a task is dead, "each" every failed attempt.
        check_ins: True to report the runs of schedules to Sentry's cron monitors.

    Raises:
        InvalidInput: `failures` has another value.
    """

    identifier = "tasktui"
    origin = ORIGIN

    def __init__(self, failures: Failures = "last", *, check_ins: bool = True) -> None:
        if failures not in get_args(Failures):
            raise InvalidInput(why=f'failures must be "last" or "each", not {failures!r}')
        self.failures, self.check_ins = failures, check_ins

    @staticmethod
    def setup_once() -> None:
        """Register the functions around submits and attempts."""
        ignore_logger("runner.outcome")  # its lines are the failures that `report` sends
        around_submit(publish)
        around_execute(process)
        around_process(process_in_worker)
        on_failure(report)


def _integration() -> RunnerIntegration | None:
    integration: RunnerIntegration | None = sentry_sdk.get_client().get_integration(RunnerIntegration)
    return integration


def publish(tasks: list[NewTask]) -> Generator[Sequence[NewTask] | None, SubmitResult, None]:
    """Run a submit in a span, and give its position to the tasks."""
    if _integration() is None or not tasks:
        yield None
        return
    with sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=tasks[0].handler, origin=ORIGIN) as span:
        span.set_data(SPANDATA.MESSAGING_SYSTEM, "tasktui")
        span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, tasks[0].queue or "default")
        position = {SENTRY_TRACE: sentry_sdk.get_traceparent(), BAGGAGE: sentry_sdk.get_baggage()}
        carrier = {name: value for name, value in position.items() if value}
        result = yield [_inject(task, carrier) for task in tasks]
        span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, ",".join(map(str, result.ids[:10])))


def _inject(task: NewTask, carrier: Mapping[str, str]) -> NewTask:
    """Give a task the position of its submit, unless it has one or its headers leave no room."""
    try:
        return task if task.headers and f'"{SENTRY_TRACE}"' in task.headers else task.with_headers(carrier)
    except InvalidTask:
        return task


async def process(ctx: Context) -> AsyncIterator[None]:
    """Run an attempt in a scope and a transaction of its own."""
    integration = _integration()
    if integration is None:
        yield
        return
    if integration.check_ins and (schedule := ctx.headers.get("schedule")):
        await _begin_check_in(ctx, schedule)
    with ExitStack() as stack:
        span = _enter(ctx, stack)
        try:
            yield
        except BaseException as error:
            if span is not None:
                span.set_status("aborted" if isinstance(error, OUTCOMES) else "internal_error")
            raise
        if span is not None:
            span.set_status("ok")


def _enter(ctx: Context, stack: ExitStack) -> Any:
    """Open the scope and the transaction; return the transaction, or None if the SDK fails."""
    try:
        scope = stack.enter_context(sentry_sdk.isolation_scope())
        _describe(scope, ctx.id, ctx.handler, ctx.queue, ctx.attempt)
        _attempt.set(ctx.id)
        position = {name: ctx.headers[name] for name in (SENTRY_TRACE, BAGGAGE) if name in ctx.headers}
        names: dict[str, Any] = {"op": OP.QUEUE_PROCESS, "name": ctx.handler, "source": TransactionSource.TASK}
        transaction = sentry_sdk.continue_trace(position, origin=ORIGIN, **names)
        span = stack.enter_context(sentry_sdk.start_transaction(transaction))
        for name, value in {
            SPANDATA.MESSAGING_SYSTEM: "tasktui",
            SPANDATA.MESSAGING_MESSAGE_ID: str(ctx.id),
            SPANDATA.MESSAGING_DESTINATION_NAME: ctx.queue,
            SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT: ctx.attempt - 1,
            SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY: None if ctx.wait is None else ctx.wait * 1_000,
        }.items():
            if value is not None:
                span.set_data(name, value)
    except Exception as error:
        log.warning("task %d (%s) has no transaction in Sentry: %r", ctx.id, ctx.handler, error)
        return None
    return span


def _describe(scope: Scope, id: int, handler: str, queue: str, attempt: int) -> None:
    scope.clear_breadcrumbs()
    scope.set_transaction_name(handler, source=TransactionSource.TASK)
    for name, value in {"task": id, "handler": handler, "queue": queue, "attempt": attempt}.items():
        scope.set_tag(name, value)


def process_in_worker(ctx: Context) -> Iterator[None]:
    """Run a process handler in a scope of its own, and give the event of its failure to the runner."""
    if _integration() is None:
        yield
        return
    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, ctx.id, ctx.handler, ctx.queue, ctx.attempt)
        try:
            yield
        except Exception as error:
            if not isinstance(error, OUTCOMES):
                _attach_event(error, scope)
            raise


def _attach_event(error: Exception, scope: Scope) -> None:
    try:
        event, hint = _event_of(error)
        complete = scope.apply_to_event(event, hint, sentry_sdk.get_client().options)
        vars(error)[EVENT] = json.dumps(complete, default=str)
    except Exception as failure:
        log.warning("the event of %s was not made: %r", type(error).__qualname__, failure)


async def report(end: AttemptEnd) -> None:
    """Report a failure, once per attempt, in the scope of the attempt."""
    integration = _integration()
    if integration is None:
        return
    with ExitStack() as stack:
        is_of_lost_runner = _attempt.get() != end.id
        if is_of_lost_runner or hasattr(end.error, EVENT):  # the event of a worker process has its own scope
            scope = stack.enter_context(sentry_sdk.isolation_scope())
            scope.clear()
            sentry_sdk.get_current_scope().clear()
            _describe(scope, end.id, end.handler, end.queue, end.attempt)
        if is_of_lost_runner and integration.check_ins and end.verb == "die" and (name := end.headers.get("schedule")):
            _check_in(name, end.id, "error")
        if end.verb == "die" or integration.failures == "each":
            _capture(end)


def _capture(end: AttemptEnd) -> None:
    hint: dict[str, Any] = {}
    if end.error is None:
        event: Any = {"message": f"{end.handler}: {end.reason}"}
    elif text := getattr(end.error, EVENT, None):
        event = json.loads(text)
    else:
        event, hint = _event_of(end.error)
    event["level"] = "error" if end.verb == "die" else "warning"
    tags = {"outcome": end.verb} | ({} if end.tenant is None else {"tenant": end.tenant})
    event["tags"] = {**event.get("tags", {}), **tags}
    sentry_sdk.capture_event(event, hint=hint)


def _event_of(error: BaseException) -> tuple[Any, dict[str, Any]]:
    """The event of an exception with the frames of the handler, without local variables, which hold payloads."""
    options = sentry_sdk.get_client().options | {"include_local_variables": False}
    mechanism = {"type": "tasktui", "handled": False}
    info = (type(error), error, _handler_frames(error.__traceback__))
    event, hint = event_from_exception(info, client_options=options, mechanism=mechanism)
    return event, dict(hint)


def _handler_frames(trace: TracebackType | None) -> TracebackType | None:
    """The frames after those of the runner and of middleware; all frames if there are none."""
    first = each = trace
    while each is not None:
        is_caller = each.tb_frame.f_globals.get("__name__") in CALLERS
        each = each.tb_next
        first = each if is_caller else first
    return first or trace


class _Rules:
    """The configurations of the monitors by schedule, as far as Sentry can represent them."""

    def __init__(self) -> None:
        self.read_at = 0.0
        self.configs: dict[str, Any] = {}

    async def read(self, schedule: str) -> Any:
        """The configuration of a schedule; None if it has none."""
        if schedule not in self.configs or time.monotonic() > self.read_at + RULES_LIMIT:
            rows = await schedules.all_async()
            self.configs = {row.id: monitor_config(row.spec.rule, row.spec.timezone, row.spec.jitter) for row in rows}
            self.read_at = time.monotonic()
        return self.configs.get(schedule)


_rules = _Rules()


def monitor_config(rule: str, timezone: str, jitter: float = 0.0) -> dict[str, Any] | None:
    """The configuration of a monitor for the rule of a schedule.

    Args:
        rule: a cron line, "every 5m", or "after_end 30s".
        jitter: longest delay of a task after its tick in seconds.

    Returns:
        None for a rule that Sentry cannot represent: after the end of a run, or not whole minutes.
    """
    margin = {"checkin_margin": ceil(jitter / 60) + 1} if jitter else {}
    word, _, length = rule.partition(" ")
    if word == "after_end":
        return None
    if word != "every":
        return {"schedule": {"type": "crontab", "value": rule}, "timezone": timezone, **margin}
    seconds = _seconds(length)
    for unit, size in UNITS:
        if seconds and seconds % size == 0:
            interval = {"type": "interval", "value": int(seconds // size), "unit": unit}
            return {"schedule": interval, "timezone": "UTC", **margin}
    return None


def _seconds(length: str) -> float:
    """The seconds of the interval of a rule, such as 1h30m."""
    sizes = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
    return sum(float(number) * sizes.get(unit, 0) for number, unit in re.findall(r"([\d.]+)(ms|[smhdw])", length))


async def _begin_check_in(ctx: Context, schedule: str) -> None:
    try:
        config = await _rules.read(schedule)
        if config is None:
            return
        if ctx.attempt == 1:
            _check_in(schedule, ctx.id, "in_progress", config)
        ctx.after_settle(lambda end: _end_check_in(end, schedule, config))
    except Exception as error:
        log.warning("task %d (%s) has no check-in in Sentry: %r", ctx.id, ctx.handler, error)


def _end_check_in(end: AttemptEnd, schedule: str, config: dict[str, Any]) -> None:
    status = {"succeed": "ok", "die": "error", "cancel": "error"}.get(end.verb)
    if status is not None:
        _check_in(schedule, end.id, status, config, end.duration)


def _check_in(
    schedule: str, id: int, status: str, config: dict[str, Any] | None = None, duration: float | None = None
) -> None:
    """Send a check-in; those of one task have the same id, on any runner."""
    slug = re.sub(r"[^a-z0-9_-]+", "-", schedule.lower()).strip("-")[:SLUG]
    check_in_id = uuid5(NAMESPACE_URL, f"tasktui:{schedule}:{id}").hex
    sentry_sdk.crons.capture_checkin(slug, check_in_id, status, duration, config)  # type: ignore[arg-type] # as JSON
