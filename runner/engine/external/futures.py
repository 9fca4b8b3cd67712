"""FuturesExecutor: a concurrent.futures.Executor, such as one of loky or mpi4py, as an external executor."""

import importlib
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future

from runner.engine.external.call import ExternalCall
from runner.engine.external.executor import End, ExecutorLost, Receive, StartedCall, WorkerLost
from runner.engine.external.worker_messages import WorkerMessages, run_call
from runner.errors import InvalidSettings
from runner.own_code import OwnCodeFault, call_own
from runner.policy.executor_spec import ExecutorSpec


class FuturesExecutor:
    """The workers of a concurrent.futures.Executor.

    A pool of processes ends when one of its processes does. Then the task of that process loses its attempt, and the
    other tasks are handed back.

    Args:
        spec: its address is the path package.module:function. The function returns an Executor, without arguments. The
            attribute `_max_workers` of the Executor is the number of slots; without it, the number of processors is.

    Raises:
        InvalidSettings: the function does not exist.
    """

    calls_on_loop = False
    span = 0.0

    def __init__(self, spec: ExecutorSpec) -> None:
        module, _, name = spec.address.partition(":")
        try:
            self._make: Callable[[], object] = call_own(lambda: getattr(importlib.import_module(module), name))
        except OwnCodeFault as error:
            raise InvalidSettings(where="executors", why=f"{spec}: {error.error}") from None
        self._executor: Executor | None = None
        self._messages = WorkerMessages(self._lose_calls)
        self._ends: dict[int, End] = {}
        self._futures: set[Future[bytes]] = set()
        self._lost: Callable[[str], object] = lambda _: None
        self._is_broken = False

    def open(self, resize: Callable[[int], object], lost: Callable[[str], object]) -> None:
        """Make the executor, in a thread."""
        executor = self._make()
        if not isinstance(executor, Executor):
            raise TypeError(
                f"the function returned a value of type {type(executor).__name__}, not a concurrent.futures.Executor"
            )
        self._lost, self._executor, self._is_broken = lost, executor, False
        self._messages.listen()
        resize(getattr(executor, "_max_workers", None) or os.cpu_count() or 1)

    def start(self, call: ExternalCall, receive: Receive, end: End) -> StartedCall:
        """Start a call."""
        number = call.call.number
        if self._executor is None:
            raise ExecutorLost("it is closed")
        self._messages.expect(number, receive)
        self._ends[number] = end
        try:
            future = self._executor.submit(run_call, number, call.dumps(), self._messages.address, self._messages.key)
        except BrokenExecutor as error:
            self._break(error)
            raise
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        future.add_done_callback(lambda done: self._end(number, done))
        return FuturesCall(number, future, self._messages)

    def close(self) -> None:
        """Start no more calls."""
        executor, self._executor = self._executor, None
        self._messages.close()
        for future in list(self._futures):
            future.cancel()
        if executor is not None:
            executor.shutdown(wait=False)

    def _end(self, number: int, future: "Future[bytes]") -> None:
        end = self._ends.pop(number, None)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokenExecutor):
            self._break(error)
        elif end is not None:
            cancelled = WorkerLost("the executor has cancelled its call")
            end(cancelled if future.cancelled() else error or future.result())

    def _break(self, error: BrokenExecutor) -> None:
        self._is_broken = True
        self._lost(f"{type(error).__name__}: {error}")

    def _lose_calls(self, numbers: set[int]) -> None:
        """End the calls of a worker that ended first. The pool ends the others, whose calls are handed back."""
        if self._is_broken or self._executor is None:
            return
        for number in numbers:
            self._messages.forget(number)
            if (end := self._ends.pop(number, None)) is not None:
                end(WorkerLost("its worker process ended before the task"))


class FuturesCall:
    """A call in a concurrent.futures.Executor."""

    def __init__(self, number: int, future: "Future[bytes]", messages: WorkerMessages) -> None:
        self._number, self._future, self._messages = number, future, messages

    def send(self, data: bytes) -> None:
        """Send a message to the handler, if its worker is connected."""
        self._messages.send(self._number, data)

    def close(self) -> None:
        """Receive no more messages of the call."""
        self._messages.forget(self._number)

    def kill(self) -> None:
        """Cancel the call if it has not started."""
        self._future.cancel()
