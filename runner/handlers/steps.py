"""Steps of a Context, as a handler sees them."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

from runner.errors import NoRunner
from runner.model.outcome import Delay, Suspended
from runner.model.step import Signal, StepWrite, StoredStep
from runner.model.task import NewTask

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.handlers.own_transaction import OwnTransaction

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Suspension(BaseException):
    """Ends an attempt whose task sleeps or waits. It is no Exception, so that `except Exception` does not catch it.

    Args:
        outcome: the outcome of the attempt.
    """

    def __init__(self, outcome: Suspended) -> None:
        super().__init__(outcome)
        self.outcome = outcome

    def __str__(self) -> str:
        return self.outcome.why


def suspension_in(error: BaseException) -> Suspension | None:
    """Return the suspension that ended a handler, also from a group of them; None for any other exception."""
    if isinstance(error, BaseExceptionGroup):
        found = [suspension_in(each) for each in error.exceptions]
        return None if None in found else found[0]
    return error if isinstance(error, Suspension) else None


class Ended:
    """A call that has ended in a plain function; `await` returns its value immediately."""

    def __init__(self, value: Any = None) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value
        yield  # type: ignore[unreachable] # makes it a generator

    def result(self) -> Any:
        """Return the value."""
        return self._value


class Unawaited:
    """A sleep, a wait or a call of an async handler."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()

    def result(self) -> NoReturn:
        """Refuse: it would block the event loop."""
        self.close()
        raise RuntimeError("await it: result() is for plain functions")

    def close(self) -> None:
        """Forget a call that no handler awaits."""
        self._work.close()


class SignalWait(Protocol):
    """The return value of `ctx.wait_for()`: `await` it in an async handler, call `result()` in a plain function."""

    def __await__(self) -> Generator[Any, None, Signal | None]: ...

    def result(self) -> Signal | None:
        """Return the signal, in a plain function; None after the timeout."""


class TaskCall(Protocol[R_co]):
    """The return value of `ctx.call()`: `await` it in an async handler, call `result()` in a plain function."""

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def result(self) -> R_co:
        """Return the result of the child, in a plain function."""


class StepCall(NamedTuple):
    """A call of `ctx.step`; see `Context.step`."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    retry: str | None
    transaction: bool


class OwnSteps(Protocol):
    """The steps of one attempt."""

    def step(self, call: StepCall, /) -> Any:
        """Run a function once, and return its stored result in later attempts."""

    def sleep(self, delay: Delay, name: str | None, /) -> Awaitable[None]:
        """End the attempt until a time has passed."""

    def wait_for(self, name: str, timeout: Delay | None, /) -> SignalWait:
        """End the attempt until a signal arrives."""

    def call(self, name: str, task: NewTask, /) -> TaskCall[Any]:
        """Submit a task once, and end the attempt until it has ended."""


class StepStore(Protocol):
    """Reads and writes the steps of one attempt. Its coroutines run on one event loop."""

    async def load(self) -> list[StoredStep]:
        """Read the steps of the task."""

    async def save(self, write: StepWrite) -> None:
        """Store a step."""

    async def receive(self, wait: StepWrite, timed_out: bool) -> StepWrite:
        """Take the signal that a wait is for, or store the wait; return it as it is stored."""

    async def call(self, call: StepWrite, task: NewTask, child: int | None) -> tuple[int, Any, bool]:
        """Submit a child, unless it has an id, and read its end.

        Returns:
            Its id; its TaskResult, or None while it is live; and whether the steps of the task may contain its end:
            they do not if only the child is encrypted.
        """

    def transaction(self, write: Callable[[Any], StepWrite], /) -> "OwnTransaction":
        """Open a transaction whose commit stores a step; `write` makes it of the transaction's `result`."""

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        """Run a coroutine function on the event loop, from a thread."""


class MemorySteps:
    """Steps without a runner, for tests that call a handler directly: functions run, and nothing is stored."""

    def step(self, call: StepCall, /) -> Any:
        """Call the function."""
        if call.transaction:
            self._refuse(f"ctx.step({call.name!r}, transaction=True)")
        return call.function(*call.args, **call.kwargs)

    def sleep(self, _delay: Delay, _name: str | None, /) -> Awaitable[None]:
        """Return immediately."""
        return Ended()

    def wait_for(self, name: str, _timeout: Delay | None, /) -> SignalWait:
        """Refuse: nothing can send a signal."""
        self._refuse(f"ctx.wait_for({name!r})")

    def call(self, name: str, _task: NewTask, /) -> TaskCall[Any]:
        """Refuse: no runner executes the child."""
        self._refuse(f"ctx.call({name!r})")

    def _refuse(self, call: str) -> NoReturn:
        raise NoRunner(call=call)


MEMORY_STEPS = MemorySteps()
