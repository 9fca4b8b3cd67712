"""Executor: runs the handler of a task and returns an outcome. It never raises."""

import asyncio
import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from runner.engine.executing.attempt_error import clear_frames
from runner.engine.executing.attempt_outcome import (
    DONE,
    AttemptLimits,
    cancelled_from_inside,
    cut_outcome,
    failed,
    failure_of,
    handed_back,
    interrupted,
    redact_error,
    redact_outcome,
    result_outcome,
    timed_out,
)
from runner.engine.executing.chunk_call import ChunkCall, member_outcome
from runner.engine.executing.deadlines import Deadlines
from runner.engine.executing.durable_steps import DurableSteps
from runner.engine.executing.jobs import AttemptJob, take_disturber
from runner.engine.executing.sealing import Sealing, refusal_of
from runner.engine.executing.task_threads import ContainedCall, TaskThreads
from runner.engine.hosting.hooks import Middleware
from runner.engine.running import ChunkRunning, Running
from runner.errors import (
    CodecFailed,
    InvalidPayload,
    KeyMissing,
    StepsUnavailable,
    StoreError,
    TransactionInChunk,
    TransactionInProcess,
    Undecodable,
)
from runner.handlers.context import AttemptLogger, Context, KeptNotes, MemoryNotes
from runner.handlers.dependencies import BatchResult, ParentResults
from runner.handlers.functions import FORKS, call_on_loop, end_copy
from runner.handlers.own_transaction import OwnTransaction
from runner.handlers.steps import OwnSteps, StepStore
from runner.logs import log_exception
from runner.model.headers import NO_HEADERS, read_headers
from runner.model.outcome import Cancelled, Dead, Done, Failure, Interrupted, Outcome, Release, Retry
from runner.model.task import CURRENT_TASK
from runner.text.sanitize import count_noun

if TYPE_CHECKING:
    from runner.engine.external.attempts import ExternalAttempts
    from runner.engine.processes.attempt import ProcessAttempts

log = logging.getLogger("runner.task")

NO_RESOURCES: Mapping[str, Any] = {}
NO_MIDDLEWARE = Middleware()

TOO_LARGE = (
    "the payload has {size} bytes, more than the setting payload_limit of the runner allows; submit a reference to the "
    "data instead, or raise the setting and retry the task"
)


class Executor:
    """Executes tasks: async handlers on the event loop, plain functions in threads, process handlers in processes.

    Args:
        threads: maximum number of plain functions that run at the same time.
        open_tx: opens `ctx.transaction()`; None without a database.
        parents: returns the reader of `ctx.batch.results()`; None without a database.
        resources: the open resources by name.
        middleware: runs around each handler.
        notes: begins the notes of an attempt: checkpoints, progress and logs; None without a database.
        steps: makes the store of the steps of an attempt; None without a database.
        open_processes: makes the worker processes when the first task needs one; None runs process handlers here.
        open_external: makes the attempts in external executors when the first task needs one; None runs them here.
        ask_server: returns the outage of a server that hangs while a task waits for it; None without a database.
        sealing: decrypts payloads and encrypts what attempts leave; None without a database.
        on_outcome: called with a task of a chunk, in the thread that sets its outcome.
        pool: runs plain functions; None for threads of its own.
    """

    def __init__(  # noqa: PLR0913 - the parts of an executor
        self,
        threads: int,
        limits: AttemptLimits,
        open_tx: Callable[[Running], OwnTransaction] | None = None,
        parents: Callable[[Running], ParentResults] | None = None,
        resources: Mapping[str, Any] = NO_RESOURCES,
        middleware: Middleware = NO_MIDDLEWARE,
        notes: "Callable[[Running], KeptNotes] | None" = None,
        open_processes: "Callable[[], ProcessAttempts] | None" = None,
        *,
        steps: Callable[[Running], StepStore] | None = None,
        open_external: "Callable[[], ExternalAttempts] | None" = None,
        ask_server: Callable[[Running], Awaitable[StoreError | None]] | None = None,
        sealing: Sealing | None = None,
        on_outcome: Callable[[Running], object] = lambda _: None,
        pool: TaskThreads | None = None,
    ) -> None:
        self._threads = threads
        self._pool = pool or TaskThreads(threads + limits.spare_threads)
        self._limits, self._rules = limits, limits.rules
        self._open_tx = open_tx
        self._parents, self._resources = parents, resources
        self.middleware = middleware
        """Runs around each handler."""
        self._notes, self._steps, self._ask_server, self._sealing = notes, steps, ask_server, sealing
        self._deadlines, self._open_processes = Deadlines(), open_processes
        self._processes: ProcessAttempts | None = None
        self._open_external = open_external
        self._external: ExternalAttempts | None = None
        self._on_outcome = on_outcome
        self.stuck = 0
        """Threads that still run the function of an abandoned task."""
        self.replaced = 0
        """Those of which the slot is free again, because a spare thread replaces them."""

    async def execute(self, running: Running, release_slot: Callable[[Running], None]) -> Outcome:
        """Run a task's handler, in an asyncio task of its own, and return the outcome.

        Args:
            release_slot: called when the body has really ended; for a thread this can be after the outcome.
        """
        handler, running.make_context, sealing = running.handler, self._context, self._sealing
        refused = None if running.is_chunk else await self._opened(running)
        CURRENT_TASK.set(running.task)  # until the end of its asyncio task, whose context is its own
        if self.middleware.callbacks:
            running.around = self.middleware.of(running.task)
        if running.is_chunk:
            arguments: dict[str, Any] | Outcome = await self._chunk_arguments(running)
        else:
            if refused is None and (handler.context or running.around):
                refused = await self._begin_notes(running)
            read = refused or self._read(running, self._arguments)
            arguments = read.outcome if isinstance(read, _Refused) else read
        if not isinstance(arguments, dict):
            release_slot(running)
            outcome = arguments
        else:
            outcome = await self._body(running, arguments, release_slot)
        if type(outcome) is not Done:
            outcome = await self._redacted(running, outcome)
        elif running.steps is not None:
            _note_left_out(running)
        if sealing is None or running.vault is None or not isinstance(arguments, dict):
            return outcome
        return await sealing.seal(running, running.vault, outcome)

    def _body(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[Running], None]
    ) -> Awaitable[Outcome]:
        """Run the handler where it belongs: in a process, an external executor, on the event loop or in a thread."""
        handler = running.handler
        if handler.in_process and self._open_processes is not None:
            return self._in_process(running, self._open_processes, release_slot)
        if handler.external is not None and self._open_external is not None:
            self._external = self._external or self._open_external()
            return self._external.execute(running, lambda: self._context(running), release_slot)
        run = self._on_loop if handler.is_async else self._in_thread
        return run(running, arguments, release_slot)

    async def execute_chunk(
        self, chunk: ChunkRunning, release_slot: Callable[[Running], None]
    ) -> list[tuple[Running, Outcome]]:
        """Call a chunk handler, and return the outcome of each of its tasks; see `execute`."""
        general = await self.execute(chunk, release_slot)
        chunk.end_call()
        if chunk.stop is not None and chunk.stop.is_set():
            chunk.stop_members()
        outcomes: list[tuple[Running, Outcome]] = []
        for member in chunk.members:
            outcome = member_outcome(chunk, member, general, self._limits)
            member.context = chunk.context
            if type(outcome) is not Done:
                outcome = await self._redacted(member, outcome)
            if self._sealing is not None and member.vault is not None:
                outcome = await self._sealing.seal(member, member.vault, outcome)
            outcomes.append((member, outcome))
        return outcomes

    async def _opened(self, running: Running) -> Outcome | None:
        """Decrypt the payload of a task; return an outcome if its handler must not run."""
        sealing = self._sealing
        return await sealing.open(running) if sealing is not None and sealing.concerns(running) else None

    async def _chunk_arguments(self, running: Running) -> dict[str, Any] | Outcome:
        """Return the arguments of a chunk handler. A task whose payload does not fit has its outcome before."""
        chunk = cast("ChunkRunning", running)
        for member in chunk.members:
            member.decision = await self._opened(member)
        # The others begin their notes if the handler uses them.
        resumed = [each for each in chunk.members if each is chunk.members[0] or each.task.fence > 1]
        noted = [member for member in resumed if member.decision is None]
        for member, outcome in zip(noted, await asyncio.gather(*map(self._begin_notes, noted)), strict=True):
            member.decision = outcome
        call = ChunkCall(chunk, self._limits, self._context, self._on_outcome)
        chunk.end_call = call.end
        apart, rest = chunk.handler.in_process and self._open_processes is not None, 0
        for member in chunk.members:
            member.make_context = self._context
            if member.decision is None:
                payload = self._read(member, _left_unread if apart else _value)
                if isinstance(payload, _Refused):
                    member.decision, member.vault = payload.outcome, None
                else:
                    call.add(member, payload)
                    rest += 1
        if not rest:
            return DONE
        if apart or chunk.handler.chunk is None:
            return {}
        try:
            injected = chunk.handler.injections(lambda: self._context(chunk), self._resources)
        except BaseException as error:  # a resource that is not open
            chunk.error = error
            return Retry(failure=failure_of(error))
        return injected | {chunk.handler.chunk.parameter: call.argument}

    @staticmethod
    def _read(running: Running, read: Callable[[Running, str], Any]) -> "Any | _Refused":
        """Return what a function makes of the payload of a task, or the outcome of a payload that does not fit."""
        task = running.task
        if task.payload is None:
            return _Refused(Dead(failure=Failure("PayloadTooLarge", TOO_LARGE.format(size=task.oversize))))
        try:
            return read(running, task.payload)
        except InvalidPayload as error:
            return _Refused(Dead(failure=Failure("InvalidPayload", str(error))))
        except BaseException as error:  # broken annotations, or a type whose validation raises or exits
            text = "task %d (%s) could not be executed"
            log_exception(log, logging.ERROR, text, task.id, running.handler.name, error=error)
            running.error = error
            return _Refused(Retry(failure=failure_of(error)))

    async def _begin_notes(self, running: Running) -> Outcome | None:
        """Begin the notes of an attempt with its last checkpoint; return an outcome if that cannot be read."""
        if self._notes is None or running.task.payload is None:
            return None
        running.notes, running.open_step_store = self._notes(running), self._steps
        try:
            if running.task.fence > 1:
                await running.notes.load()
        except (KeyMissing, CodecFailed, Undecodable) as error:
            return refusal_of(error)
        except (StoreError, ValueError) as error:
            return Release(f"its checkpoint could not be read: {error}")
        except asyncio.CancelledError:
            return Cancelled() if running.cancel_requested else Release("cancelled before the handler started")
        return None

    def _arguments(self, running: Running, payload: str) -> dict[str, Any]:
        """Return the arguments of a handler in this process."""
        handler = running.handler
        if (handler.in_process and self._open_processes) or (handler.external and self._open_external):
            if not handler.is_declared:  # an HTTP executor must be able to read the reply to its pull
                handler.signature.decode(payload)
            return {}
        arguments = handler.signature.decode(payload)
        if handler.context or handler.resources:
            arguments |= handler.injections(lambda: self._context(running), self._resources)
        return arguments

    async def _redacted(self, running: Running, outcome: Outcome) -> Outcome:
        """Mask secrets in an outcome that is not a success, cut its text, and free the variables of its frames."""
        if running.notes is not None and running.notes.unsaved is not None:
            with contextlib.suppress(asyncio.CancelledError):  # it is stored, and the body has ended
                await running.notes.save_kept()
        redacted = redact_outcome(outcome, running.secrets)
        if running.error is not None:
            clear_frames(running.error)
            if redacted != outcome:
                running.error = redact_error(running.error, redacted)
        running.outages = ()
        return cut_outcome(redacted)

    async def _on_loop(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[Running], None]
    ) -> Outcome:
        limit, job, late, forks = self.limit(running), running.job, False, FORKS.count
        try:
            if limit is not None and (job := job or asyncio.current_task()) is not None:
                running.deadline = self._deadlines.watch(job, limit)
            try:
                if running.around:
                    context, handler = self._context_of(running, arguments), running.handler
                    call = partial(call_on_loop, handler.body, arguments, handler.name, running.task.id)
                    result = await self.middleware.run(context, partial(_in_middleware, running, call), running.around)
                else:
                    result = await running.handler.body(**arguments)
            finally:
                end_copy(forks, running.handler.name, running.task.id)
                if limit is not None and job is not None and self._deadlines.end(job, limit):
                    late = True
                    job.uncancel()
        except BaseException as error:  # a handler's SystemExit must not end the runner
            outage = await self.hung_server(running) if late else None
            if outage is not None:
                outcome = handed_back(running, error, outage, self._limits.interruptions)
            elif isinstance(error, asyncio.CancelledError):
                outcome = self._cancelled(running, error, limit if late else None)
            elif late and isinstance(error, TimeoutError):
                outcome = timed_out(running, limit, self._rules)
            else:
                outcome = failed(running, error, self._limits)
            clear_frames(error)
            return outcome
        finally:
            release_slot(running)
        return result_outcome(running, result, self._limits)

    async def _in_thread(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[Running], None]
    ) -> Outcome:
        limit, job = self.limit(running), running.job or cast("asyncio.Task[None]", asyncio.current_task())
        body: asyncio.Future[Any]
        if running.around:
            middleware = self._thread_in_middleware(running, arguments, release_slot)
            body = waiter = AttemptJob(middleware, loop=asyncio.get_running_loop())
            waiter.owner = running.task
        else:
            body = self._begin(running, arguments, release_slot)
        outcome: Outcome | None = None
        if limit is not None:
            running.deadline = self._deadlines.watch(job, limit)
        if await self._asked_to_end(body, job, limit, lambda: running.cancel_requested or running.interrupted):
            outcome = Cancelled() if running.cancel_requested else interrupted(running, self._limits.interruptions)
            if running.cancel_requested:  # ctx.stop is set; the result of the function decides
                if limit is not None:
                    self._deadlines.watch(job, limit)
                await self._asked_to_end(body, job, limit, lambda: running.interrupted)
        if not body.done():
            hung = await self.hung_server(running) if outcome is None else None
            if hung is not None:
                outcome = handed_back(running, TimeoutError(), hung, self._limits.interruptions)
            return self._give_up(running, body, outcome or timed_out(running, limit, self._rules), release_slot)
        result, error = body.result().take()
        if running.cancel_requested and (error is not None or result is None):
            return Cancelled()
        if error is None:
            return result_outcome(running, result, self._limits)
        outcome = failed(running, error, self._limits)
        clear_frames(error)
        return outcome

    async def _asked_to_end(
        self, body: "asyncio.Future[Any]", job: "asyncio.Task[None]", limit: float | None, asked: Callable[[], bool]
    ) -> bool:
        """Wait for a function in its thread, or its deadline; return True if the runner asks it to end before.

        Nothing else can cancel a thread, so any other cancellation of its asyncio task is ignored.
        """
        is_asked = False
        while not (body.done() or is_asked or self._deadlines.has_expired(job)):
            waiter = job.get_loop().create_future()
            body.add_done_callback(partial(_wake, waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                is_asked = asked()
        if limit is not None and self._deadlines.end(job, limit):
            job.uncancel()
        return is_asked

    async def hung_server(self, running: Running) -> StoreError | None:
        """Return the outage of a server that hangs, for which a task waits whose timeout has passed."""
        if self._ask_server is None or running.cancel_requested or running.interrupted:
            return None
        return await self._ask_server(running)

    async def _in_process(
        self, running: Running, open_processes: "Callable[[], ProcessAttempts]", release_slot: Callable[[Running], None]
    ) -> Outcome:
        self._processes = self._processes or open_processes()
        try:
            return await self._processes.execute(running, lambda: self._context(running))
        finally:
            release_slot(running)

    def _begin(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[Running], None]
    ) -> "asyncio.Future[Any]":
        """Start a plain function in a thread."""
        if running.is_chunk:  # others get theirs with a Context
            running.stop = running.stop or threading.Event()
        running.context = contextvars.copy_context()
        work = partial(running.context.run, _call, running, arguments)
        end = partial(_release, running, release_slot)
        try:
            running.body = self._pool.start(work, end)
        except RuntimeError as error:  # the system allows no thread
            running.body = asyncio.get_running_loop().create_future()
            running.body.set_result(ContainedCall(None, error))
            end()
        return running.body

    async def _thread_in_middleware(
        self, running: Running, arguments: dict[str, Any], release_slot: Callable[[Running], None]
    ) -> ContainedCall:
        """Run a plain function in a thread, inside the middleware, which runs on the event loop."""

        async def body() -> Any:
            result, error = (await asyncio.shield(self._begin(running, arguments, release_slot))).take()
            if error is not None:
                raise error
            return result

        try:
            return ContainedCall(await self.middleware.run(self._context_of(running, arguments), body, running.around))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                clear_frames(error)  # the asyncio task keeps it, if the attempt was given up
            return ContainedCall(None, error)
        finally:
            if running.body is None:
                release_slot(running)

    def _context_of(self, running: Running, arguments: Mapping[str, Any]) -> Context:
        """Return the Context that the handler receives, or one for the middleware alone."""
        context = arguments.get(running.handler.context or "")
        return context if isinstance(context, Context) else self._context(running)

    def _give_up(
        self, running: Running, waiter: "asyncio.Future[Any]", outcome: Outcome, release_slot: Callable[[Running], None]
    ) -> Outcome:
        """Abandon a thread that cannot be stopped. The fence of its task is void, so its writes are refused."""
        if running.stop is not None:
            running.stop.set()
        if waiter is not running.body:
            waiter.cancel()  # only the middleware ends
        body = running.body
        if body is None:
            return outcome
        body.add_done_callback(_forget)
        if body.done():
            return outcome
        self.stuck += 1
        if running.handler.in_process:  # its process is killed
            return outcome
        if self.replaced < self._limits.spare_threads and not isinstance(outcome, Interrupted):
            running.replaced = True
            self.replaced += 1

        def report(_: object) -> None:
            self.stuck -= 1
            self.replaced -= running.replaced
            log.warning("task %d (%s) ended after its runner abandoned it", running.task.id, running.handler.name)

        body.add_done_callback(report)
        effect = f"a spare thread replaces it ({self.replaced} of {self._limits.spare_threads} used)"
        if not running.replaced:
            effect = f"it keeps its slot until it ends ({count_noun(self.stuck - self.replaced, 'slot')} lost)"
        name = running.handler.name
        log.warning("task %d (%s) does not end: abandoning its thread; %s", running.task.id, name, effect)
        if running.replaced:
            release_slot(running)
        return outcome

    def _cancelled(self, running: Running, error: asyncio.CancelledError, expired: float | None) -> Outcome:
        """Distinguish a cancellation by the runner, which has recorded its reason, from any other.

        Args:
            error: the exception that ended the body.
            expired: the timeout that the attempt exceeded; None before its deadline.
        """
        if running.cancel_requested:
            return Cancelled()
        if running.interrupted:
            return interrupted(running, self._limits.interruptions)
        if expired is not None:
            return timed_out(running, expired, self._rules)
        if (by := take_disturber(running.task)) is not None:
            return Release(f"{by} cancelled an asyncio task of this attempt")
        return cancelled_from_inside(running, error, is_job=_is_cancelled())

    def limit(self, running: Running) -> float | None:
        """Return the seconds allowed for an attempt; None for no limit. A chunk has the shortest time of its tasks."""
        if running.is_chunk:
            limits = [limit for member in running.parts() if (limit := self._limit(member)) is not None]
            return min(limits, default=None)
        return self._limit(running)

    def _limit(self, running: Running) -> float | None:
        limit = running.task.timeout
        if limit is None:
            limit = running.handler.defaults.timeout
        if limit is None:
            return self._limits.timeout
        return limit if limit != inf else None

    def _context(self, running: Running) -> Context:
        if running.is_chunk:  # for its middleware
            running = running.parts()[0]
        task, limit = running.task, self.limit(running.chunk or running)
        running.stop = running.stop or threading.Event()
        if running.cancel_requested:
            running.stop.set()
        elapsed = 0.0 if running.chunk is None else time.monotonic() - running.started
        deadline = None if limit is None else datetime.now(UTC) + timedelta(seconds=limit - elapsed)
        if running.chunk is not None and running.notes is None and self._notes is not None:
            running.notes = self._notes(running)  # most tasks of a chunk need none
        notes = running.notes or MemoryNotes()
        extra = {"task": task.id, "handler": task.handler, "attempt": task.attempt}
        open_tx: Callable[[], OwnTransaction] | None = None
        if running.chunk is not None:
            open_tx = partial(_refuse_in_chunk, task.id)
        elif running.handler.in_process or running.handler.external is not None:
            open_tx = partial(_refuse_transaction, task.id, running.handler.defaults.executor)
        elif self._open_tx is not None:
            open_tx = partial(self._open_tx, running)
        ids = (task.id, task.key, task.attempt, task.max_attempts, task.fence, deadline)
        logger = AttemptLogger(log, extra, notes, task.payload or "{}", task.headers)
        parents = BatchResult.read(task.parents, self._parents(running) if task.parents and self._parents else None)
        headers = NO_HEADERS if task.headers is None else read_headers(task.headers)
        steps = self._steps_of(running)
        places = task.handler, task.queue, notes, headers, running.wait, running
        return Context(*ids, logger, running.stop, open_tx, parents, *places, steps)

    def _steps_of(self, running: Running) -> Callable[[], OwnSteps] | None:
        """Return a function that returns the steps of an attempt, or refuses them; None without a runner."""
        id, external = running.task.id, running.handler.external
        if running.chunk is not None:
            return partial(_refuse_steps, id, "a chunk", "the option chunk")
        if external is not None:
            return partial(_refuse_steps, id, f"executor {external!r}", f'executor="{external}"')
        if self._steps is None and self._notes is not None:
            return partial(_refuse_steps, id, "an HTTP executor", "the steps")
        if running.open_step_store is None:
            return None
        return partial(self._own_steps, running, asyncio.current_task() if running.handler.is_async else None)

    def _own_steps(self, running: Running, job: "asyncio.Task[Any] | None") -> OwnSteps:
        """Return the steps of an attempt; `job` is the asyncio task of a coroutine."""
        if running.steps is None:
            in_body = partial(_in_body, running, job)
            running.steps = DurableSteps(running.task, running.store_of_steps(), self._limits.result, in_body)
        return running.steps

    def resize(self, threads: int) -> None:
        """Set the number of threads. Functions that already run finish in the old pool."""
        self._threads = threads
        old_pool, self._pool = self._pool, TaskThreads(threads + self._limits.spare_threads)
        old_pool.shutdown(wait=False)

    def end_idle(self) -> None:
        """End the idle threads and processes: the system allows no further ones, and the database needs threads."""
        self.resize(self._threads)
        if self._processes is not None:
            self._processes.pool.end_idle()

    def process_ids(self) -> list[int]:
        """Return the ids of the handler processes."""
        return [] if self._processes is None else self._processes.pool.process_ids

    async def close(self) -> None:
        """Start no more functions, and end the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._processes is not None:
            await self._processes.pool.close()


def _is_cancelled() -> bool:
    """True if something cancels the current asyncio task."""
    job = asyncio.current_task()
    return job is not None and job.cancelling() > 0


class _Refused(NamedTuple):
    """The outcome of a task whose payload does not fit."""

    outcome: Outcome


def _value(member: Running, payload: str) -> Any:
    return member.handler.signature.read(payload)


def _left_unread(_member: Running, _payload: str) -> None:
    return None


def _refuse_in_chunk(task_id: int) -> NoReturn:
    raise TransactionInChunk(id=task_id)


def _in_body(running: Running, job: "asyncio.Task[Any] | None") -> bool:
    """True in the asyncio task of a coroutine, or in the thread of a plain function."""
    return threading.get_ident() == running.thread if job is None else asyncio.current_task() is job


def _refuse_steps(task_id: int, where: str, option: str) -> NoReturn:
    raise StepsUnavailable(id=task_id, where=where, option=option)


def _refuse_transaction(task_id: int, executor: str | None) -> NoReturn:
    raise TransactionInProcess(id=task_id, executor=executor)


def _release(running: Running, release_slot: Callable[[Running], None]) -> None:
    """Release the slot of a function that has ended, unless a spare thread replaces it."""
    if not running.replaced:
        release_slot(running)


def _wake(waiter: "asyncio.Future[None]", _: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _note_left_out(running: Running) -> None:
    """Name stored steps that a success did not call: a deploy may have removed them, or it went another way."""
    names = running.steps.left_out() if isinstance(running.steps, DurableSteps) else None
    if names is None:
        return
    text = f"stored steps that attempt {running.task.attempt} did not call: {names}"
    log.warning("task %d (%s) succeeded: %s", running.task.id, running.handler.name, text)
    if running.notes is not None:
        running.notes.line(logging.WARNING, text)


async def _in_middleware(running: Running, body: Callable[[], Awaitable[Any]]) -> Any:
    """Run a handler and keep the context of its end: middleware may reset the values that it has set."""
    try:
        return await body()
    finally:
        running.context = contextvars.copy_context()


def _call(running: Running, arguments: dict[str, Any]) -> ContainedCall:
    """Call a plain function in its thread."""
    running.thread, forks = threading.get_ident(), FORKS.count
    try:
        try:
            return ContainedCall(running.handler.body(**arguments))
        finally:
            end_copy(forks, running.handler.name, running.task.id)
    except BaseException as error:
        return ContainedCall(None, error)


def _forget(body: "asyncio.Future[ContainedCall]") -> None:
    """Forget the end of an abandoned function."""
    if not body.cancelled() and body.exception() is None:
        body.result().take()
