"""Executing a task: one outcome, no exception, and a released slot for every behaviour of a handler."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.engine.executing.attempt_outcome import AttemptLimits
from runner.engine.executing.executor import Executor
from runner.engine.in_flight import InFlight
from runner.engine.running import Running
from runner.handlers.context import Context
from runner.handlers.registry import Handler, Options
from runner.model.outcome import Cancelled, Dead, Done, Outcome, Retry, Snooze
from runner.model.task import Claimed
from tests.engine.harness import WAIT_SECONDS, until

RESULT_LIMIT = 1000
NO_LIMIT = None
AT_ONCE = 0.01
KINDS = ["async", "thread"]


class Trial:
    """Executes single tasks, and counts how often a slot was given back."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.slots_released = 0

    async def execute(self, function: Callable[..., Any], payload: str = "{}", **options: Any) -> Outcome:
        return await self.execute_running(running_task(function, payload, **options))

    async def execute_running(self, running: Running) -> Outcome:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.executor.execute(running, self._leave)

    def _leave(self, _: Running) -> None:
        self.slots_released += 1


def running_task(
    function: Callable[..., Any],
    payload: str = "{}",
    timeout: float | None = None,
    default: float | None = None,
    on_error: Any = "retry",
) -> Running:
    """A claimed task with its own timeout and that of its handler."""
    handler = Handler("work", function, Options(timeout=default, on_error=on_error))
    task = Claimed(7, "default", "work", "order-7", payload, 1, datetime.now(UTC), 2, 5, 12, timeout, 0, None)
    running = InFlight(1, 1, 0).add(task, handler)
    assert running is not None
    return running


def raising(kind: str, error: BaseException) -> Callable[[], Any]:
    """A handler of either kind that raises."""
    return doing(kind, lambda: _raise(error))


def doing(kind: str, act: Callable[[], Any]) -> Callable[[], Any]:
    """A handler of either kind that does this."""

    async def on_loop() -> Any:
        return act()

    return on_loop if kind == "async" else lambda: act()  # noqa: PLW0108 - a builtin would have no signature


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
async def trial() -> AsyncIterator[Trial]:
    trial = Trial(Executor(2, AttemptLimits(NO_LIMIT, RESULT_LIMIT)))
    yield trial
    await until(lambda: trial.executor.stuck == 0)
    await trial.executor.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_result_of_a_handler_is_stored_as_json(trial: Trial, kind: str) -> None:
    assert await trial.execute(doing(kind, lambda: {"found": [1, 2]})) == Done('{"found":[1,2]}')
    assert trial.slots_released == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_returned_is_nothing_kept(trial: Trial, kind: str) -> None:
    assert await trial.execute(doing(kind, lambda: None)) == Done(None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outcome", [Retry("5m", "busy"), Dead("no such user"), Snooze("10m", "not yet")])
async def test_an_outcome_returned_is_the_outcome(trial: Trial, kind: str, outcome: Outcome) -> None:
    assert await trial.execute(doing(kind, lambda: outcome)) == outcome


def _circular() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return deep


def _failing() -> Iterator[int]:
    yield 1 // 0


UNKEPT: dict[str, Callable[[], Any]] = {
    "huge": lambda: "x" * (RESULT_LIMIT + 1),
    "not JSON": object,
    "circular": _circular,
    "failing": _failing,
    "deep": _deep,
    "half a surrogate pair": lambda: "\ud800",
    "NUL": lambda: "\0",
    "not a number": lambda: float("nan"),
    "infinite": lambda: [float("inf")],
    "bytes that are no text": lambda: b"\xff",
}

NO_JSON = "it cannot be serialized as JSON"
NOT_KEPT = {
    "huge": f"{RESULT_LIMIT + 3:,} bytes exceed the result_limit of {RESULT_LIMIT:,}",
    "NUL": "it contains the character NUL, which PostgreSQL cannot store",
    "not JSON": "it contains an object of type object, which cannot be serialized as JSON",
    "not a number": "it contains NaN, which is not JSON",
    "infinite": "it contains Infinity, which is not JSON",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("result", list(UNKEPT))
async def test_a_result_that_cannot_be_kept_is_a_success_without_one(
    trial: Trial, kind: str, result: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await trial.execute(doing(kind, UNKEPT[result]))
    assert isinstance(outcome, Done)
    assert (outcome.result, outcome.why) == (None, f"the result was not kept: {NOT_KEPT.get(result, NO_JSON)}")
    assert caplog.messages == [f"task 7 (work): {outcome.why}"]
    assert trial.slots_released == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_only_mentions_infinity_is_kept(trial: Trial, kind: str) -> None:
    assert await trial.execute(doing(kind, lambda: "to Infinity and NaN")) == Done('"to Infinity and NaN"')


@pytest.mark.parametrize("result", [r"\u0000", r"\\u0000", r"C:\u0000\u0001"])
async def test_a_text_that_only_spells_nul_is_kept(trial: Trial, result: str) -> None:
    outcome = await trial.execute(doing("async", lambda: {"text": result, result: 1}))
    assert isinstance(outcome, Done)
    assert outcome.why is None
    assert json.loads(outcome.result or "") == {"text": result, result: 1}


@pytest.mark.parametrize("result", ["\\\0", "\\\\\0", r"\u0000" + "\0"])
async def test_nul_after_backslashes_is_not_kept(trial: Trial, result: str) -> None:
    outcome = await trial.execute(doing("async", lambda: [result]))
    assert outcome == Done(None, f"the result was not kept: {NOT_KEPT['NUL']}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("payload", ['{"n": "seven"}', "{}", '{"n": 7, "more": 1}', "[]", "null", "{"])
async def test_a_payload_that_does_not_fit_is_dead_with_the_reason(trial: Trial, kind: str, payload: str) -> None:
    async def on_loop(n: int) -> None: ...
    def in_thread(n: int) -> None: ...

    outcome = await trial.execute(on_loop if kind == "async" else in_thread, payload)
    assert isinstance(outcome, Dead)
    assert outcome.failure is not None
    assert outcome.failure.type == "InvalidPayload"
    assert "seven" not in outcome.failure.message
    assert trial.slots_released == 1


async def test_annotations_that_name_nothing_are_a_failure_and_free_the_slot(trial: Trial) -> None:
    async def work(n: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    outcome = await trial.execute(work, '{"n": 1}')
    assert isinstance(outcome, Retry)
    assert outcome.failure is not None
    assert outcome.failure.type.endswith("InvalidHandler")
    assert trial.slots_released == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_is_a_failed_attempt_with_its_own_words(trial: Trial, kind: str) -> None:
    outcome = await trial.execute(raising(kind, KeyError("missing")))
    assert isinstance(outcome, Retry)
    assert outcome.delay is None
    assert outcome.failure is not None
    assert outcome.failure.reason == "KeyError: 'missing'"
    assert "in _raise" in outcome.failure.traceback
    assert "execute.py" not in outcome.failure.traceback
    assert trial.slots_released == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError("of its own"),
        StopIteration(4),
        StopAsyncIteration(),
        BaseExceptionGroup("many", [KeyboardInterrupt()]),
        RecursionError("too deep"),
        MemoryError(),
        TimeoutError("of its own"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_every_exception_is_a_failed_attempt(trial: Trial, kind: str, error: BaseException) -> None:
    outcome = await trial.execute(raising(kind, error))
    assert isinstance(outcome, Retry)
    assert outcome.delay is None, "the retry plan decides"
    assert outcome.failure is not None
    assert type(error).__name__ in outcome.failure.type + outcome.failure.message + outcome.failure.traceback
    assert trial.slots_released == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_recursion_is_a_failed_attempt(trial: Trial, kind: str) -> None:
    def dig() -> None:
        dig()

    outcome = await trial.execute(doing(kind, dig))
    assert isinstance(outcome, Retry)
    assert outcome.failure is not None
    assert outcome.failure.type == "RecursionError"
    assert len(outcome.failure.traceback) < 20_000


class Mute(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class Liar(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - that is the fault


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [Mute(), Liar()])
async def test_an_exception_whose_text_cannot_be_had_is_a_failed_attempt(
    trial: Trial, kind: str, error: Exception
) -> None:
    outcome = await trial.execute(raising(kind, error))
    assert isinstance(outcome, Retry)
    assert outcome.failure is not None
    assert outcome.failure.type.endswith(type(error).__name__)
    assert outcome.failure.message == "(message not readable)"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("on_error", "outcome"),
    [
        ("retry", Retry),
        ("dead", Dead),
        (ValueError, Retry),
        (LookupError, Dead),
        ((ValueError, KeyError), Dead),
        (lambda error: None, Retry),
        (lambda error: Dead("unknown customer"), Dead),
        (lambda error: Snooze("1m"), Snooze),
        (lambda error: Done(), Done),
        (lambda error: 1 / 0, Retry),
        (lambda error: "dead", Retry),
    ],
)
async def test_on_error_classifies_an_exception(trial: Trial, kind: str, on_error: Any, outcome: type[Outcome]) -> None:
    result = await trial.execute(raising(kind, KeyError("x")), on_error=on_error)
    assert type(result) is outcome
    if isinstance(result, (Retry, Dead)):
        assert result.failure is not None
        assert result.failure.type == "KeyError"


async def test_on_error_keeps_the_delay_that_it_chose(trial: Trial) -> None:
    outcome = await trial.execute(raising("async", KeyError("x")), on_error=lambda error: Retry("7m"))
    assert isinstance(outcome, Retry)
    assert outcome.delay == "7m"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decided", [Dead("unknown customer"), Retry("7m", why="unknown customer")])
@pytest.mark.parametrize(
    ("error", "message"), [(ValueError("no 7"), "unknown customer (no 7)"), (ValueError(), "unknown customer")]
)
async def test_the_reason_from_on_error_is_stored_with_the_message_of_the_exception(
    trial: Trial, kind: str, decided: Retry | Dead, error: ValueError, message: str
) -> None:
    outcome = await trial.execute(raising(kind, error), on_error=lambda _: decided)
    assert isinstance(outcome, type(decided))
    assert outcome.failure is not None
    assert (outcome.failure.type, outcome.failure.message) == ("ValueError", message)
    assert "ValueError" in outcome.failure.traceback


async def test_an_async_handler_that_takes_too_long_is_cancelled(trial: Trial) -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    assert timed_out(await trial.execute(work, timeout=AT_ONCE))
    assert events == ["cancelled"]
    assert trial.slots_released == 1


async def test_a_thread_that_takes_too_long_is_asked_to_stop_and_keeps_its_slot_until_it_ends(
    trial: Trial, caplog: pytest.LogCaptureFixture
) -> None:
    stop_request, go_on = threading.Event(), threading.Event()

    def work(ctx: Context) -> None:
        if ctx.stop.wait(WAIT_SECONDS):
            stop_request.set()
        go_on.wait(WAIT_SECONDS)

    assert timed_out(await trial.execute(work, timeout=AT_ONCE))
    assert await asyncio.to_thread(stop_request.wait, WAIT_SECONDS)
    assert (trial.slots_released, trial.executor.stuck) == (0, 1)
    go_on.set()
    await until(lambda: trial.slots_released == 1)
    assert trial.executor.stuck == 0
    assert "task 7 (work) ended after its runner abandoned it" in caplog.messages


async def test_an_abandoned_thread_that_fails_has_no_effect(trial: Trial) -> None:
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(WAIT_SECONDS)
        raise ZeroDivisionError

    assert timed_out(await trial.execute(work, timeout=AT_ONCE))
    go_on.set()
    await until(lambda: trial.slots_released == 1)


def timed_out(outcome: Outcome) -> bool:
    return isinstance(outcome, Retry) and outcome.failure is not None and outcome.failure.type == "Timeout"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_tasks_own_time_goes_before_the_handlers(trial: Trial, kind: str) -> None:
    hasty = await trial.execute_running(running_task(waiting(kind), timeout=AT_ONCE, default=WAIT_SECONDS))
    patient = await trial.execute_running(running_task(waiting_long(kind), timeout=WAIT_SECONDS, default=AT_ONCE))
    by_default = await trial.execute_running(running_task(waiting(kind), default=AT_ONCE))
    assert timed_out(hasty)
    assert timed_out(by_default)
    assert patient == Done('"done"')


def waiting_long(kind: str) -> Callable[[], Any]:
    """A handler of either kind that takes several times AT_ONCE."""

    async def on_loop() -> str:
        await asyncio.sleep(5 * AT_ONCE)
        return "done"

    def in_thread() -> str:
        time.sleep(5 * AT_ONCE)
        return "done"

    return on_loop if kind == "async" else in_thread


def waiting(kind: str) -> Callable[..., Any]:
    """A handler of either kind that does not end by itself within a moment, and does when its time is up."""

    async def on_loop() -> None:
        await asyncio.Event().wait()

    def in_thread(ctx: Context) -> None:
        ctx.stop.wait(WAIT_SECONDS)

    return on_loop if kind == "async" else in_thread


async def test_a_timeout_of_the_handlers_own_is_not_called_ours(trial: Trial) -> None:
    async def work() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    outcome = await trial.execute(work, timeout=WAIT_SECONDS)
    assert isinstance(outcome, Retry)
    assert outcome.failure is not None
    assert outcome.failure.type == "TimeoutError"


async def test_a_handler_that_awaits_a_cancelled_task_fails(trial: Trial) -> None:
    async def work() -> None:
        other = asyncio.ensure_future(asyncio.Event().wait())
        other.cancel()
        await other

    outcome = await trial.execute(work)
    assert isinstance(outcome, Retry)
    assert outcome.delay is None
    assert outcome.failure is not None
    assert "CancelledError" in outcome.failure.type


@pytest.mark.parametrize("kind", KINDS)
async def test_a_terminated_body_is_cancelled(trial: Trial, kind: str) -> None:
    begun = threading.Event()

    async def on_loop() -> None:
        begun.set()
        await asyncio.Event().wait()

    def in_thread(ctx: Context) -> None:
        begun.set()
        ctx.stop.wait(WAIT_SECONDS)

    running = running_task(on_loop if kind == "async" else in_thread)
    job = asyncio.ensure_future(trial.execute_running(running))
    running.job, running.started = job, time.monotonic()  # type: ignore[assignment]
    await until(begun.is_set)
    running.cancel()
    assert isinstance(await job, Cancelled)
    assert trial.slots_released == 1


async def test_a_context_describes_its_task(trial: Trial) -> None:
    contexts: list[Context] = []
    before = datetime.now(UTC)

    async def work(ctx: Context, n: int) -> None:
        contexts.append(ctx)

    await trial.execute(work, '{"n": 1}', timeout=60)
    (ctx,) = contexts
    assert (ctx.id, ctx.key, ctx.attempt, ctx.max_attempts, ctx.fence) == (7, "order-7", 2, 5, 12)
    assert ctx.deadline is not None
    assert timedelta(seconds=60) <= ctx.deadline - before < timedelta(seconds=60 + WAIT_SECONDS)
    assert not ctx.cancelled


async def test_a_context_without_a_limit_has_no_deadline(trial: Trial) -> None:
    deadlines: list[datetime | None] = []

    def work(ctx: Context) -> None:
        deadlines.append(ctx.deadline)

    await trial.execute(work)
    assert deadlines == [None]


async def test_a_contexts_log_names_the_task(trial: Trial, caplog: pytest.LogCaptureFixture) -> None:
    async def work(ctx: Context) -> None:
        ctx.logger.warning("halfway")

    await trial.execute(work)
    (record,) = caplog.records
    assert (record.__dict__["task"], record.__dict__["handler"]) == (7, "work")


async def test_two_contexts_are_kept_apart(trial: Trial) -> None:
    contexts: list[Context] = []

    async def work(ctx: Context) -> None:
        contexts.append(ctx)

    await asyncio.gather(trial.execute(work), trial.execute(work))
    contexts[0].stop.set()
    assert [ctx.cancelled for ctx in contexts] == [True, False]


async def test_a_plain_function_that_returns_a_coroutine_has_not_done_its_work(trial: Trial) -> None:
    begun = asyncio.Event()

    async def forgotten() -> None:
        begun.set()

    def work() -> Any:
        return forgotten()

    outcome = await trial.execute(work)
    assert not begun.is_set()
    assert isinstance(outcome, Dead)
    assert "coroutine" in outcome.why


@pytest.mark.parametrize("kind", [Retry, Dead, Snooze])
async def test_a_handler_that_returns_the_class_of_an_outcome_has_not_succeeded(trial: Trial, kind: type) -> None:
    def work() -> Any:
        return kind

    outcome = await trial.execute(work)
    assert isinstance(outcome, Dead)
    assert outcome.why == f"the handler returned the class {kind.__name__}: call it, such as {kind.__name__}(...)"
