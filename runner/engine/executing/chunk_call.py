"""ChunkCall: the call of a chunk handler, with the tasks that it receives and the outcome of each."""

from collections.abc import Callable
from typing import Any

from runner.engine.executing.attempt_outcome import AttemptLimits, failed, result_outcome
from runner.engine.running import ChunkRunning, Running
from runner.handlers.chunk import Chunk, ChunkOutcome, ChunkTask, Succeeded
from runner.handlers.context import Context
from runner.model.outcome import Cancelled, Done, Outcome


class ChunkCall:
    """The call of a chunk handler.

    Args:
        context: makes the Context of a task, in any thread.
        on_outcome: called with a task, in the thread that sets its outcome; a process sends it to its runner.
    """

    def __init__(
        self,
        chunk: ChunkRunning,
        limits: AttemptLimits,
        context: Callable[[Running], Context],
        on_outcome: Callable[[Running], object] = lambda _: None,
    ) -> None:
        self._chunk, self._limits, self._context = chunk, limits, context
        self._on_outcome = on_outcome
        self._tasks: list[ChunkTask[Any, Any]] = []
        self._has_ended = False

    def add(self, member: Running, payload: Any) -> None:
        """Add a task.

        Args:
            payload: its arguments.
        """

        def set_outcome(outcome: ChunkOutcome) -> None:
            if not self._has_ended:  # a thread that the runner has abandoned may go on
                self._set(member, outcome)

        self._tasks.append(ChunkTask(payload, lambda: self._context(member), set_outcome))

    @property
    def argument(self) -> Chunk[Any, Any]:
        """The Chunk that the function receives."""
        return Chunk(self._tasks)

    def end(self) -> None:
        """Ignore later outcomes: those of the tasks are about to be written."""
        self._has_ended = True

    def _set(self, member: Running, outcome: ChunkOutcome) -> None:
        member.error = None
        if isinstance(outcome, Succeeded):
            member.decision = result_outcome(member, outcome.result, self._limits)
        else:
            member.decision = failed(member, outcome, self._limits)
        self._on_outcome(member)


def member_outcome(chunk: ChunkRunning, member: Running, general: Outcome, limits: AttemptLimits) -> Outcome:
    """Return the outcome of one task.

    Args:
        general: the outcome of the call, for the tasks without one of their own.
    """
    if member.decision is not None:
        return member.decision
    if member.cancel_requested:
        return Cancelled()
    member.error = chunk.error
    if chunk.general is not None:
        return chunk.general(member)
    return result_outcome(member, None, limits) if isinstance(general, Done) else general
