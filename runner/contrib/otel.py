"""instrument: spans of OpenTelemetry for submits and attempts."""

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any, ParamSpec, TypeVar

from runner import (
    AttemptEnd,
    Claimed,
    Context,
    NewTask,
    SubmitResult,
    around_execute,
    around_process,
    around_submit,
)
from runner.errors import InvalidTask, PackageMissing

try:
    from opentelemetry import context as current
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise PackageMissing(package=error.name or "", use="runner.contrib.otel", extra="otel", instead="") from None

log = logging.getLogger("runner.traces")

P = ParamSpec("P")
T = TypeVar("T")

TRACEPARENT = "traceparent"
"""The header with the position of the submit, or of the first attempt without one."""

FIRST = "first-attempt"
"""The header with the position of the span of the first attempt, to which retries link."""

ATTEMPT = "attempt"
"""The header with the position of the span of a retry, for its worker process."""

MOST_LINKS = 100
"""Maximum number of links to parents."""

SLOW = 0.25
"""Seconds that a call of the tracer may take. A span processor that sends spans itself takes longer, and blocks."""

PAUSE = 60.0
"""Seconds without spans after a call of the tracer that failed or took too long."""

OPERATIONS = {"submit": "send", "process": "process", "settle": "settle"}
"""The value of messaging.operation.type by messaging.operation.name."""

FAILURES = ("retry", "die", "fenced")
"""The ends of an attempt that make its span an error."""


def instrument(tracer_provider: trace.TracerProvider | None = None) -> None:
    """Make spans for the submits and attempts of this process, and let them continue the traces of their submits.

    Call it once per process that submits or runs tasks, and in the modules of handlers with `executor="process"`.
    The sampler and the exporter are those of the application.

    Args:
        tracer_provider: the provider of the tracer; None for the global one.
    """
    traces = _Traces(trace.get_tracer("tasktui", version("tasktui"), tracer_provider), tracer_provider)
    around_submit(traces.around_submit)
    around_execute(when=traces.begins)(traces.around_attempt)
    around_process(traces.around_process)


class _Guard:
    """Calls of the tracer. One that fails or blocks costs spans, and never a task."""

    def __init__(self) -> None:
        self._resume_at = 0.0

    def begin(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a call that begins a span; None if it failed, and during a pause."""
        return self.call(function, *args, **kwargs) if time.monotonic() >= self._resume_at else None

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a call; None if it failed."""
        began = time.monotonic()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self._pause(f"the tracer raised {error!r}")
            return None
        finally:
            if (took := time.monotonic() - began) > SLOW:
                self._pause(f"a call of the tracer took {took:.1f} s; a BatchSpanProcessor does not block")

    def _pause(self, fact: str) -> None:
        if time.monotonic() >= self._resume_at:
            log.warning("no spans for %.0f s: %s", PAUSE, fact)
        self._resume_at = time.monotonic() + PAUSE


class _Traces:
    """The spans of this process."""

    def __init__(self, tracer: trace.Tracer, provider: trace.TracerProvider | None) -> None:
        self._tracer, self._provider = tracer, provider
        self._guard = _Guard()
        self._attempt: ContextVar[_AttemptSpans | None] = ContextVar("runner_attempt_span", default=None)
        self._follows_parents: bool | None = None
        """True if the sampler drops each attempt whose parent is not sampled; None if unknown."""

    def around_submit(self, tasks: list[NewTask]) -> Generator[Sequence[NewTask] | None, SubmitResult, None]:
        """Run a submit in its span, and give the position of the span to the tasks."""
        begun = self._guard.begin(self._begin_submit, tasks)
        if begun is None:
            yield None
            return
        span, token, injected = begun
        try:
            result = yield injected
            if len(result.ids) == 1:
                span.set_attribute("messaging.message.id", str(result.ids[0]))
        except BaseException as error:
            _set_error(span, type(error).__qualname__)
            raise
        finally:
            current.detach(token)
            self._guard.call(span.end)

    def _begin_submit(self, tasks: Sequence[NewTask]) -> tuple[Span, Any, Sequence[NewTask]]:
        handlers, queues = ({getattr(task, name) for task in tasks} for name in ("handler", "queue"))
        attributes = _attributes("submit", queues.pop() if len(queues) == 1 else None)
        attributes |= {"tasktui.handler": next(iter(handlers))} if len(handlers) == 1 else {}
        attributes |= {"messaging.batch.message_count": len(tasks)} if len(tasks) > 1 else {}
        name = _name("submit", next(iter(handlers)) if len(handlers) == 1 else "")
        span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes)
        inside = trace.set_span_in_context(span)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, inside)
        examples = {task.headers: task for task in tasks}
        injected = {text: _inject(task, carrier).headers for text, task in examples.items()}
        return span, current.attach(inside), [task._replace(headers=injected[task.headers]) for task in tasks]

    def begins(self, task: Claimed) -> bool:
        """Begin the span of an attempt in its context; return True if it is sampled."""
        headers = task.headers
        if headers is not None and (at := headers.find(_BEGIN)) >= 0:
            end = at + _LENGTH
            if headers[end - 3 : end] in _UNSAMPLED and self._drops(headers):  # most attempts end here
                _headers.set(headers)
                current.attach(_UNSAMPLED_CONTEXT)  # ends with the attempt, as its headers do
                return False
        attempt = self._guard.begin(_AttemptSpans, self._tracer, self._guard, task)
        if attempt is None:
            return False
        current.attach(attempt.inside)
        if attempt.is_recording:
            self._attempt.set(attempt)
        return attempt.is_recording

    def _drops(self, headers: str) -> bool:
        """True if the sampler drops an attempt because its submit is not sampled."""
        if '"baggage"' in headers or '"schedule"' in headers:
            return False
        if self._follows_parents is None:
            self._follows_parents = _follows_parents(self._provider or trace.get_tracer_provider())
        return self._follows_parents

    async def around_attempt(self, ctx: Context) -> AsyncIterator[None]:
        """Run a sampled attempt in its span."""
        attempt = self._attempt.get()
        if attempt is not None:
            self._guard.call(attempt.enter, ctx)
            if ctx.batch is not None:
                await attempt.link_parents(ctx, ctx.batch.headers_async)
        try:
            yield
        finally:
            if attempt is not None:
                attempt.leave()

    def around_process(self, ctx: Context) -> Iterator[None]:
        """Continue the trace of an attempt in its worker process."""
        inside = propagate.extract(ctx.headers)
        position = _read(ctx.headers.get(ATTEMPT) or ctx.headers.get(FIRST))
        if position is not None or TRACEPARENT not in ctx.headers:
            inside = trace.set_span_in_context(NonRecordingSpan(position or UNSAMPLED), inside)
        token = current.attach(inside)
        try:
            yield
        finally:
            current.detach(token)


class _AttemptSpans:
    """The spans of one attempt: its wait, itself and its settle."""

    _is_retry = False
    _outside = current.Context()
    """The context of the submit."""

    def __init__(self, tracer: trace.Tracer, guard: _Guard, task: Claimed) -> None:
        self._tracer, self._guard = tracer, guard
        self._queue, self._handler = task.queue, task.handler
        links = None if task.headers is None else self._follow(task.headers)
        attributes: dict[str, str | int] = {
            "messaging.system": "tasktui",
            "messaging.operation.name": "process",
            "messaging.operation.type": OPERATIONS["process"],
            "messaging.destination.name": task.queue,
            "messaging.message.id": str(task.id),
            "tasktui.handler": task.handler,
            "tasktui.attempt": task.attempt,
        }
        self._began_at = self._ended_at = time.time_ns()
        name, outside, kind = _name("process", task.handler), self._outside, SpanKind.CONSUMER
        self._span = tracer.start_span(name, outside, kind, attributes, links, start_time=self._began_at)
        self.inside = trace.set_span_in_context(self._span, outside)
        """The context inside the span."""
        self.is_recording = self._span.is_recording()
        """True if the span is sampled."""

    def _follow(self, text: str) -> list[Link]:
        """Continue the trace of the submit, and return the links to the first attempt or to the schedule."""
        stored: dict[str, Any] = json.loads(text)
        texts = ((name, value) for name, value in stored.items() if isinstance(value, str))
        headers = dict(texts)  # plain SQL may store other values
        self._outside = propagate.extract(headers, NOTHING)
        first = _read(headers.get(FIRST))
        self._is_retry = first is not None
        if first is not None:
            return [Link(first, {"tasktui.link": "first attempt"})]
        if "schedule" not in headers:
            return []
        position = trace.get_current_span(self._outside).get_span_context()
        self._outside = trace.set_span_in_context(trace.INVALID_SPAN, self._outside)
        return [Link(position, {"tasktui.link": "schedule"})] if position.is_valid else []

    def enter(self, ctx: Context) -> None:
        """Make the span of the wait, and give the position of the span to later attempts."""
        ctx.after_settle(self._settled)
        self._set_headers(ctx)
        if ctx.wait is not None:
            began = self._began_at - int(ctx.wait * 1e9)
            has_parent = trace.get_current_span(self._outside).get_span_context().is_valid
            beside = self._outside if has_parent else self.inside
            self._tracer.start_span(_name("wait", ctx.queue), beside, start_time=began).end(self._began_at)

    def _set_headers(self, ctx: Context) -> None:
        """Keep the position of the span for retries, log lines and the worker process."""
        position = _write(self._span.get_span_context())
        names = [ATTEMPT] if self._is_retry else [FIRST]
        if not self._is_retry and ("schedule" in ctx.headers or TRACEPARENT not in ctx.headers):
            names.append(TRACEPARENT)
        try:
            for name in names:
                ctx.set_header(name, position)
        except InvalidTask as error:
            log.debug("task %d (%s): %s", ctx.id, ctx.handler, error)

    async def link_parents(self, ctx: Context, read: Callable[[int], Awaitable[Sequence[Mapping[str, str]]]]) -> None:
        """Link to the first attempts or the submits of the tasks that this one depended on."""
        try:
            parents = await read(MOST_LINKS)
        except Exception as error:  # the trace is not worth the attempt
            log.debug("task %d (%s): its trace has no links to its parents: %r", ctx.id, ctx.handler, error)
            return
        for headers in parents:
            position = _read(headers.get(FIRST) or headers.get(TRACEPARENT))
            if position is not None:
                self._guard.call(self._span.add_link, position, {"tasktui.link": "parent"})

    def leave(self) -> None:
        """Note the end of the handler; its outcome follows."""
        self._ended_at = time.time_ns()

    def _settled(self, end: AttemptEnd) -> None:
        self._guard.call(self._end, end)

    def _end(self, end: AttemptEnd) -> None:
        self._span.set_attribute("tasktui.outcome", end.verb)
        if end.verb in FAILURES:
            if end.error is not None:
                self._span.record_exception(end.error, timestamp=self._ended_at)
            _set_error(self._span, end.verb if end.error is None else type(end.error).__qualname__, end.reason)
        self._span.end(self._ended_at)
        attributes = _attributes("settle", self._queue) | {"messaging.message.id": str(end.id)}
        attributes |= {"tasktui.outcome": end.verb}
        name, kind = _name("settle", self._handler), SpanKind.CLIENT
        self._tracer.start_span(name, self.inside, kind, attributes, start_time=self._ended_at).end()


NOTHING = current.Context()

(SPAN_KEY,) = trace.set_span_in_context(trace.INVALID_SPAN, NOTHING)
"""The key of the current span in a context."""

UNSAMPLED = SpanContext(1, 1, is_remote=True, trace_flags=TraceFlags.get_default())
"""The position of an attempt without a span: its worker process starts no traces of its own."""

_BEGIN = '"traceparent": "'

_LENGTH = len(_BEGIN + '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"')

_UNSAMPLED = frozenset(f'{flags:02x}"' for flags in range(0, 256, 2))
"""The ends of the headers that have the position of a span that is not sampled."""


_headers: ContextVar[str] = ContextVar("runner_attempt_headers", default="")
"""The headers of an attempt whose submit is not sampled."""


class _Unsampled(NonRecordingSpan):
    """The span of a submit that is not sampled, in another process. All attempts share it: one for each costs 1 us."""

    def __init__(self) -> None:
        """Keep nothing: the context of the attempt has its position."""

    def get_span_context(self) -> SpanContext:
        """Read the position, which most attempts never need."""
        headers = _headers.get()
        begin = headers.find(_BEGIN) + len(_BEGIN)
        return _read(headers[begin : begin + _LENGTH - len(_BEGIN) - 1]) or trace.INVALID_SPAN_CONTEXT


_UNSAMPLED_CONTEXT = current.Context({SPAN_KEY: _Unsampled()})


def _follows_parents(provider: trace.TracerProvider) -> bool:
    """True if the sampler of a provider drops each span whose remote parent is not sampled."""
    try:
        from opentelemetry.sdk.trace.sampling import Decision, ParentBased
    except ModuleNotFoundError:  # the API alone makes no spans
        return False
    sampler = getattr(provider, "sampler", None)
    if not isinstance(sampler, ParentBased):
        return False
    parent = trace.set_span_in_context(NonRecordingSpan(UNSAMPLED), NOTHING)
    return sampler.should_sample(parent, 1, "process").decision is Decision.DROP


def _name(operation: str, target: str) -> str:
    return f"{operation} {target}" if target else operation


def _attributes(operation: str, queue: str | None) -> dict[str, Any]:
    """The attributes of the conventions for messaging."""
    return {
        "messaging.system": "tasktui",
        "messaging.operation.name": operation,
        "messaging.operation.type": OPERATIONS[operation],
        **({} if queue is None else {"messaging.destination.name": queue}),
    }


def _set_error(span: Span, kind: str, reason: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, reason))


def _inject(task: NewTask, carrier: Mapping[str, str]) -> NewTask:
    """Give a task the position of its submit, unless it has one or its headers leave no room."""
    try:
        return task if task.headers and f'"{TRACEPARENT}"' in task.headers else task.with_headers(carrier)
    except InvalidTask:
        return task


def _write(position: SpanContext) -> str:
    """Write a position as the header traceparent does."""
    return f"00-{position.trace_id:032x}-{position.span_id:016x}-{position.trace_flags:02x}"


def _read(text: str | None) -> SpanContext | None:
    """Read a position; None if there is none."""
    if text is None:
        return None
    outside = TraceContextTextMapPropagator().extract({TRACEPARENT: text})
    position = trace.get_current_span(outside).get_span_context()
    return position if position.is_valid else None
