"""Ending: the end of an attempt as an HTTP executor reports it, converted to an outcome."""

from typing import assert_never

from runner.engine.executing.attempt_outcome import done
from runner.engine.processes.messages import ProcessEnd, RemoteError
from runner.engine.serving.protocol import (
    Die,
    Ending,
    ExecutorError,
    HandBack,
    RetryLater,
    SnoozeTask,
    Stopped,
    Succeed,
)
from runner.engine.serving.pulled_call import PulledCall
from runner.model.outcome import Cancelled, Dead, Failure, Interrupted, Outcome, Release, Retry, Snooze


def end_call(call: PulledCall, ending: Ending, result_limit: int) -> ProcessEnd | str:
    """Return the end of a call, or why the ending is refused.

    Args:
        result_limit: maximum size of a result in bytes.
    """
    outcome: Outcome
    match ending:
        case Succeed():
            outcome = done(ending.result, result_limit)
        case RetryLater():
            outcome = Retry(ending.delay, ending.why, _failure(ending.error))
        case Die():
            outcome = Dead(ending.why, _failure(ending.error))
        case SnoozeTask():
            outcome = Snooze(ending.delay, ending.why)
        case HandBack():
            outcome = Release(ending.why)
        case Stopped() if not call.is_stopped:
            return "the server did not ask the executor to stop it: settle it with another outcome"
        case Stopped():
            outcome = Cancelled() if call.is_terminated else Interrupted()
        case _:
            assert_never(ending)
    error = ending.error if isinstance(ending, (RetryLater, Die)) else None
    return ProcessEnd(outcome, None if error is None else _remote(error), True)


def _failure(error: ExecutorError | None) -> Failure | None:
    return None if error is None else Failure(error.type, error.message, error.traceback)


def _remote(error: ExecutorError) -> RemoteError:
    return RemoteError("", error.type, error.message, error.traceback, {})
