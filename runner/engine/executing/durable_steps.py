"""DurableSteps: the steps, calls, sleeps and waits of one attempt, which use the results of earlier attempts."""

import asyncio
import contextvars
import inspect
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import random
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from runner.client.results import value_of
from runner.engine.executing.attempt_outcome import failure_of, json_text
from runner.errors import InvalidRetryPlan, InvalidStep, StepsChanged, StoreError, TaskCancelled, TaskFailed
from runner.handlers.own_transaction import INSIDE, INSIDE_OF
from runner.handlers.signature import Returned
from runner.handlers.steps import Ended, StepCall, StepStore, Suspension, TaskCall, Unawaited
from runner.model.duration import LONGEST_SECONDS, format_duration, parse_duration
from runner.model.outcome import Delay, HandlerOutcome, Suspended
from runner.model.step import CALLS, SLEEPS, WAITS, Signal, StepKind, StepWrite, StoredStep
from runner.model.task import Claimed, NewTask, State
from runner.model.text_limits import LONGEST_NAME
from runner.policy.attempt_verdict import STANDARD, AttemptState
from runner.policy.retry import load_retry, stages_of
from runner.queries.task.results import TaskResult
from runner.text.redact import hide, secrets
from runner.text.sanitize import first_names, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runner.handlers.steps import SignalWait

LONGEST_PAUSE = 86_400.0 * 365
"""Seconds after which a task that waits without a timeout starts an attempt, which waits on."""

TURNS = 5
"""Turns of the event loop in which no step runs until an attempt ends."""

MOST_NAMED = 5
"""Maximum number of steps that one line names."""

SHORTEST_PAUSE = 0.001
"""Seconds of the shortest suspension."""

_IN_STEP: contextvars.ContextVar[str] = contextvars.ContextVar("step", default="")
"""The name of the step whose function runs."""


class _Call(NamedTuple):
    """A call of the Context.

    Args:
        number: position among the steps of the handler's own asyncio task or thread; None in another one.
        function: qualified name of the function; None without one.
    """

    name: str
    kind: StepKind
    number: int | None
    function: str | None = None

    def write(self, **values: Any) -> StepWrite:
        """The step with these values."""
        return StepWrite(self.name, self.kind.value, self.number, self.function, **values)


class DurableSteps:
    """The steps of one attempt.

    Args:
        task: the task, whose steps of earlier attempts are read before the first one.
        limit: maximum size of a result in bytes.
        in_body: True in the asyncio task or thread of the handler itself, whose steps always have the same order.
    """

    def __init__(self, task: Claimed, store: StepStore, limit: int, in_body: Callable[[], bool]) -> None:
        self._task, self._store, self._limit, self._in_body = task, store, limit, in_body
        self._stored: dict[str, StoredStep] | None = {} if task.fence == 1 else None
        self._loaded_at = time.monotonic()
        self._loading: asyncio.Future[None] | None = None
        self._used = set[str]()
        self._counts = Counter[str]()
        self._position = 0
        self._running = 0
        """Functions of steps that run now."""
        self._none_running = asyncio.Event()
        self._none_running.set()
        self._pauses: list[Suspended] = []
        self._ended = False
        """True if a pause has ended the attempt."""
        self._advanced = False
        """True if another asyncio task than that of the handler has got the result of a step in this attempt."""
        self._failed: list[StepWrite] = []
        """Calls whose children have failed. They are done as soon as the handler goes on to another step: it has caught
        the error. Otherwise the next attempt looks for the child again, which may have been retried."""

    # The calls of a Context

    def step(self, given: StepCall) -> Any:
        """Run a function once, and return its stored result in later attempts."""
        if not callable(given.function):
            self._refuse(
                str(given.name), f"pass the function and then its arguments, not {type(given.function).__name__}"
            )
        plan = StepPlan(self._task, given.name, given.retry)
        run = _Run(self._begin(given.name, StepKind.FUNCTION, given.function), given, plan, self._text)
        return self._on_loop(run) if _on_loop() else self._in_thread(run)

    def sleep(self, delay: Delay, name: str | None) -> Awaitable[None]:
        """End the attempt until a time has passed, or a signal with the name of the step arrives."""
        seconds = parse_duration(delay).total_seconds()
        call = self._begin(name or self._numbered("sleep", always=True), StepKind.SLEEP)
        until = f"{SLEEPS}{format_duration(parse_duration(delay))}"
        waiting: Awaitable[None] = self._waiting(lambda: self._sleep(call, seconds, until))
        return waiting

    def wait_for(self, name: str, timeout: Delay | None) -> "SignalWait":
        """End the attempt until a signal arrives."""
        seconds = None if timeout is None else parse_duration(timeout).total_seconds()
        call = self._begin(self._numbered(name), StepKind.WAIT)
        waiting: SignalWait = self._waiting(lambda: self._wait(call, name, seconds))
        return waiting

    def call(self, name: str, task: NewTask) -> TaskCall[Any]:
        """Submit a task once, and end the attempt until it has ended."""
        if not isinstance(task, NewTask):
            self._refuse(str(name), f"pass a task made with handler.new(...), not {type(task).__qualname__}")
        call = self._begin(name, StepKind.CALL)._replace(function=task.handler)
        waiting: TaskCall[Any] = self._waiting(lambda: self._call(call, NewTask._make(task)))
        return waiting

    def left_out(self) -> str | None:
        """Name the steps of earlier attempts that this one did not call; None if there are none."""
        names = [
            f"{one_line(step.name)} (attempt {step.attempt}{f', {step.function}' if step.function else ''})"
            for step in (self._stored or {}).values()
            if step.name not in self._used
        ]
        return first_names(names, MOST_NAMED) or None

    # The forms of a step

    async def _on_loop(self, run: "_Run") -> Any:
        call, given = run.call, run.given
        stored = await self._find(call)
        if stored is not None and stored.done:
            return self._read(call, given.function, stored.result)
        if (pause := run.plan.pause(call, stored, self._left(stored))) is not None:
            await self._suspend(pause)
        try:
            with self._inside(call):
                if given.transaction:
                    own = self._store.transaction(run.done)
                    async with own as tx:
                        own.result = await _awaited(self._task.id, call, run.begin(tx))
                else:
                    await self._store.save(run.done(await _awaited(self._task.id, call, run.begin())))
            self._note_advance(call)
        except Exception as error:
            if (failed := run.plan.failed(call, stored, error)) is None:
                raise
            with self._busy():
                await self._store.save(failed[0])
            await self._suspend(failed[1])
        return self._read(call, given.function, run.text)

    def _in_thread(self, run: "_Run") -> Any:
        call, given = run.call, run.given
        stored = self._store.submit(lambda: self._find(call)).result()
        if stored is not None and stored.done:
            return self._read(call, given.function, stored.result)
        if (pause := run.plan.pause(call, stored, self._left(stored))) is not None:
            self._raise_suspension(pause)
        try:
            with self._inside(call):
                if given.transaction:
                    own = self._store.transaction(run.done)
                    with own as tx:
                        own.result = _plain(self._task.id, call, run.begin(tx))
                else:
                    write = run.done(_plain(self._task.id, call, run.begin()))
                    self._store.submit(lambda: self._store.save(write)).result()
        except Exception as error:
            if (failed := run.plan.failed(call, stored, error)) is None:
                raise
            write, pause = failed
            self._store.submit(lambda: self._store.save(write)).result()
            self._raise_suspension(pause)
        return self._read(call, given.function, run.text)

    async def _sleep(self, call: _Call, seconds: float, why: str) -> None:
        await self._receive(call, call.name, seconds, why)

    async def _wait(self, call: _Call, signal: str, seconds: float | None) -> Signal | None:
        result = await self._receive(call, signal, seconds, f"{WAITS}{one_line(signal)}")
        values = json.loads(result) if result is not None else None
        if values is None:
            return None
        sent_at = values["sent_at"] and datetime.fromisoformat(values["sent_at"])
        return Signal(signal, values["payload"], sent_at, values["by"])

    async def _receive(self, call: _Call, signal: str, seconds: float | None, why: str) -> str | None:
        """Return the signal that a wait is for, as JSON text; None after its timeout."""
        stored = await self._find(call)
        if stored is not None and stored.done:
            return stored.result
        left = seconds if stored is None else self._left(stored)
        with self._busy():
            step = await self._store.receive(call.write(signal=signal, due_in=seconds), left is not None and left <= 0)
        if not step.done:
            pause = LONGEST_PAUSE if left is None else min(max(left, SHORTEST_PAUSE), LONGEST_PAUSE)
            await self._suspend(Suspended(pause, why, waits=True))
        self._note_advance(call)
        return step.result

    async def _call(self, call: _Call, task: NewTask) -> Any:
        stored = await self._find(call)
        if stored is not None and stored.done:
            return value_of(_stored_end(stored, task.handler))
        with self._busy():
            child, end, may_keep = await self._store.call(call.write(), task, stored and stored.child)
        if end is None:
            why = f"{CALLS}{child}, {one_line(task.handler)}"
            await self._suspend(Suspended(LONGEST_PAUSE, why, children=(child,)))
        try:
            value = value_of(end)
        except (TaskFailed, TaskCancelled) as error:
            if may_keep:
                self._failed.append(call.write(done=True, failures=1, error=end.error, result=_failure_text(error)))
            raise
        if may_keep:
            await self._store.save(call.write(done=True, result=end.result))
        self._note_advance(call)
        return value

    def _waiting(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Begin a sleep or a wait: awaited in an async handler, blocking in a plain function."""
        return Unawaited(work()) if _on_loop() else Ended(self._store.submit(work).result())

    # The rules for all

    def _begin(self, name: str, kind: StepKind, function: Callable[..., Any] | None = None) -> _Call:
        """Check a call, and give it its position.

        Raises:
            InvalidStep: its name is not valid or used before, or it is inside of another step or a transaction.
        """
        if self._ended:
            self._raise_suspension(self._pauses[0])
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            self._refuse(str(name)[:LONGEST_NAME], f"a name has 1 to {LONGEST_NAME} printable characters")
        if outer := _IN_STEP.get():
            self._refuse(name, f"it is inside of step {outer!r}: call it from the handler, after or before that step")
        if INSIDE_OF.get() == (self._task.id, self._task.fence):
            self._refuse(name, INSIDE)
        if name in self._used:
            self._refuse(name, 'the name is used twice: names are unique in a task; loops use f"row-{i}"')
        self._used.add(name)
        number = None
        if self._in_body():
            self._position += 1
            number = self._position
        return _Call(name, kind, number, None if function is None else _name_of(function))

    def _numbered(self, name: str, *, always: bool = False) -> str:
        """The name of a step with a number from the second one on, or always."""
        self._counts[name] += 1
        number = self._counts[name]
        return f"{name} {number}" if always or number > 1 else name

    async def _find(self, call: _Call) -> StoredStep | None:
        """Return a step of an earlier attempt; None if there is none.

        Raises:
            StepsChanged: an earlier attempt had another step in its place.
        """
        while self._failed:
            await self._store.save(self._failed.pop())
        if self._stored is None:
            if self._loading is None:
                self._loading = asyncio.ensure_future(self._load())
            await asyncio.shield(self._loading)
        assert self._stored is not None  # noqa: S101 - just read
        stored = self._stored.get(call.name)
        if stored is None:
            other = next((each for each in self._stored.values() if each.number == call.number), None)
            if call.number is not None and other is not None:
                self._changed(other, f"step {call.number} was {other.name!r} and is {call.name!r} now")
        elif stored.kind != call.kind:
            self._changed(stored, f"step {call.name!r} was a {stored.kind} and is a {call.kind} now")
        elif stored.kind == StepKind.CALL and stored.function != call.function:
            self._changed(stored, f"step {call.name!r} calls {call.function} now")
        elif stored.number is not None and call.number is not None and stored.number != call.number:
            self._changed(stored, f"step {call.name!r} was number {stored.number} and is number {call.number} now")
        return stored

    def _left(self, stored: StoredStep | None) -> float | None:
        """Seconds until a stored step is due; None without a time."""
        if stored is None or stored.left is None:
            return None
        return stored.left - (time.monotonic() - self._loaded_at)

    async def _load(self) -> None:
        try:
            rows = await self._store.load()
        except BaseException:
            self._loading = None
            raise
        self._loaded_at = time.monotonic()
        self._stored = {row.name: row for row in rows}

    def _changed(self, stored: StoredStep, why: str) -> NoReturn:
        if stored.function is not None:
            why = f"{why} (function {stored.function})"
        at = datetime.now(UTC) - timedelta(seconds=stored.age)
        raise StepsChanged(
            id=self._task.id,
            attempt=stored.attempt,
            at=f"{at:%Y-%m-%d %H:%M} UTC",
            why=why,
            step=json.dumps(stored.name),
        )

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise InvalidStep(id=self._task.id, name=name, why=why)

    @contextmanager
    def _inside(self, call: _Call) -> "Iterator[None]":
        """Run the function of a step: a sleep in another part of the handler ends the attempt after it."""
        token = _IN_STEP.set(call.name)
        try:
            with self._busy():
                yield
        finally:
            _IN_STEP.reset(token)

    @contextmanager
    def _busy(self) -> "Iterator[None]":
        """Let a suspension wait for the end of the block."""
        self._running += 1
        self._none_running.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._none_running.set()

    def _note_advance(self, call: _Call) -> None:
        self._advanced = self._advanced or call.number is None

    async def _suspend(self, pause: Suspended) -> NoReturn:
        """End the attempt when the functions of other steps have ended."""
        self._pauses.append(pause)
        for _ in range(TURNS):  # the others of a gather may begin, or go on
            await asyncio.sleep(0)
            while self._running:
                await self._none_running.wait()
        self._raise_suspension(pause)

    def _raise_suspension(self, pause: Suspended) -> NoReturn:
        if pause not in self._pauses:
            self._pauses.append(pause)
        self._pauses.sort(key=lambda each: each.delay)
        children = tuple(sorted({child for each in self._pauses for child in each.children}))
        self._ended, first = True, replace(self._pauses[0], waits=any(each.waits for each in self._pauses))
        if children:  # they may have ended; and a task that may go on now does not wait for them, as they may for it
            first = replace(first, delay=SHORTEST_PAUSE, children=() if self._advanced else children)
        raise Suspension(first)

    def _text(self, call: _Call, value: Any) -> str:
        try:
            return json_text(value, self._limit, "result_limit")
        except ValueError as error:
            self._refuse(call.name, f"its result of type {type(value).__qualname__} is not stored: {error}")

    def _read(self, call: _Call, function: Callable[..., Any], text: str | None) -> Any:
        """Return a stored result as the type of the function's annotation: the same in each attempt."""
        try:
            return _returned(function).read("null" if text is None else text)
        except ValueError as error:
            self._refuse(call.name, f"its stored result does not match {_name_of(function)}: {error}")


def _failure_text(error: TaskFailed | TaskCancelled) -> str:
    """The failure of a child as JSON text, without its traceback."""
    dead = isinstance(error, TaskFailed)
    names = ("reason", "attempts", "error_type", "message") if dead else ("reason",)
    values = {name: error.fields[name] for name in names}
    return json.dumps({"state": State.DEAD if dead else State.CANCELLED, **values})


def _stored_end(step: StoredStep, handler: str) -> TaskResult:
    """The end of a child, from the step of its call."""
    if not step.failures:
        return TaskResult(step.child or 0, handler, State.SUCCEEDED, 0, step.result, None)
    values = json.loads(step.result or "{}")
    failure = values.get("error_type", ""), values.get("message", "")
    attempts = values.get("attempts", 0)
    return TaskResult(step.child or 0, handler, State(values["state"]), attempts, None, values["reason"], *failure)


class _Run:
    """The run of the function of one step.

    Args:
        to_text: writes its result as JSON text.
    """

    def __init__(self, call: _Call, given: StepCall, plan: "StepPlan", to_text: Callable[[_Call, Any], str]) -> None:
        self.call, self.given, self.plan, self._to_text = call, given, plan, to_text
        self.text = ""
        """The result."""
        self._started = 0.0

    def begin(self, *tx: Any) -> Any:
        """Call the function, with its transaction first if it has one."""
        self._started = time.monotonic()
        return self.given.function(*tx, *self.given.args, **self.given.kwargs)

    def done(self, value: Any) -> StepWrite:
        """The step with its result."""
        self.text = self._to_text(self.call, value)
        return self.call.write(done=True, result=self.text, duration=time.monotonic() - self._started)


class StepPlan:
    """The retry plan of one step.

    Args:
        retry: the plan as text; None lets the attempt fail.

    Raises:
        InvalidStep: the plan is not valid.
    """

    def __init__(self, task: Claimed, name: str, retry: str | None) -> None:
        self._task, self._retry = task, retry
        self._most = task.max_attempts - 1
        """Maximum number of retries."""
        try:
            stages = None if retry is None else stages_of(load_retry(retry))
        except InvalidRetryPlan as error:
            raise InvalidStep(id=task.id, name=name, why=str(error)) from None
        if stages is not None:
            self._most = len(stages)

    def pause(self, call: _Call, stored: StoredStep | None, left: float | None) -> Suspended | None:
        """Return the pause of a step whose retry is not due, because another step has started the attempt.

        Args:
            left: seconds until it is due; None without a time.
        """
        if self._retry is None or stored is None or left is None or left <= 0:
            return None
        return Suspended(left, f"step {call.name} waits for its retry {stored.failures} of {self._most}")

    def failed(self, call: _Call, stored: StoredStep | None, error: Exception) -> tuple[StepWrite, Suspended] | None:
        """Return the step and the pause after a failure; None if the error goes on to the handler."""
        if self._retry is None or isinstance(error, (HandlerOutcome, StoreError, InvalidStep)):
            return None
        failures = (stored.failures if stored is not None else 0) + 1
        if failures > self._most:
            return None
        task = self._task
        state = AttemptState(failures, task.max_attempts, self._retry, STANDARD, 0, cancel_requested=False)
        state = replace(state, task_id=task.id, handler=task.handler, queue=task.queue)
        delay, failure = state.decide(failure_of(error), random())  # noqa: S311 - spreads, guards nothing
        if delay is None:
            return None
        seconds = min(delay.total_seconds(), LONGEST_SECONDS - 1)
        reason = str(hide(failure.reason, secrets(task.payload or "{}", task.headers)))
        why = f"step {call.name} failed, retry {failures} of {self._most}: {reason}"
        return call.write(failures=failures, error=reason, due_in=seconds), Suspended(seconds, why, failure)


@lru_cache(maxsize=1_000)
def _returned(function: Callable[..., Any]) -> Returned:
    """The return type of a function, which takes longer to build than a step takes."""
    return Returned(function)


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


async def _awaited(task_id: int, call: _Call, result: Any) -> Any:
    if not inspect.isawaitable(result):
        why = f"{call.function} is a plain function: in an async handler, pass asyncio.to_thread and then the function"
        raise InvalidStep(id=task_id, name=call.name, why=why)
    return await result


def _plain(task_id: int, call: _Call, result: Any) -> Any:
    if inspect.iscoroutine(result):
        result.close()
        why = f"{call.function} is a coroutine function: use it in an async handler"
        raise InvalidStep(id=task_id, name=call.name, why=why)
    return result
