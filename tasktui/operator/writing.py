"""Whether the console may change anything: decided here, asked before every change and by every key that makes one."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from runner.errors import InvalidInput, RunnerError
from runner.people.times import parse_duration
from runner.store.observe import Standing


class Barrier(NamedTuple):
    """What nothing that is typed takes away.

    Args:
        told: what the heading says of it.
        why: why nothing can be changed, for a sentence.
    """

    told: str
    why: str


ASKED = Barrier("read-only", "it was started with --read-only")
LOGIN = Barrier("read-only login", "this login may only look; the role task_operator may change tasks")
STANDBY = Barrier("read-only standby", "this server is a standby; connect to the one that it follows to change tasks")
CLOSED = Barrier("read-only database", "default_transaction_read_only is on for this database or login")
FILE = Barrier("read-only file", "you may only read the file of the database")

HELD = {
    Standing.INTERVENES: None,
    Standing.LOOKS: LOGIN,
    Standing.STANDBY: STANDBY,
    Standing.CLOSED: CLOSED,
}
"""What keeps from changing anything, by what the console is to the database."""

LONGEST_UNLOCK = 3600.0
"""Seconds for which a production database stays unlocked at most."""

USUAL_UNLOCK = 600.0
"""Seconds for which it stays unlocked when no time is typed."""


class ReadOnly(RunnerError):
    """Nothing was changed: this console is read-only ({why})."""

    exit_code = 6


class FileReplaced(RunnerError):
    """Nothing was changed: the file {path} is gone, or another one stands in its place now. Look at it again first."""

    exit_code = 4


@dataclass(slots=True)
class WriteLock:
    """Open until a moment, closed from then on.

    Args:
        open_until: seconds on the clock that `now` is read from; -inf is closed, inf open for good.
        barrier: keeps it closed, that of a standby until it is promoted; None when there is none.
        reason: given when it was opened; it goes into the audit where an action has none of its own.
    """

    open_until: float = inf
    barrier: Barrier | None = None
    reason: str | None = None

    def is_open(self, now: float) -> bool:
        """Tell whether changes are allowed."""
        return self.barrier is None and now < self.open_until

    def open(self, now: float, words: tuple[str, ...]) -> None:
        """Allow changes for a time.

        Args:
            now: seconds.
            words: how long, and why, as they were typed; without a time ten minutes.

        Raises:
            ReadOnly: there is a barrier.
            InvalidInput: the time is too long, or there is no reason.
        """
        if self.barrier:
            raise ReadOnly(why=self.barrier.why)
        length, reason = _split_length(words)
        if length > LONGEST_UNLOCK:
            raise InvalidInput(why="an hour is the longest time to unlock for; it can be unlocked again")
        if not reason:
            raise InvalidInput(why="say why: :write 10m mend the mail queue")
        self.open_until, self.reason = now + length, reason

    def close(self) -> None:
        """Allow no changes from now on."""
        self.open_until = -inf

    @property
    def why(self) -> str:
        """Why no changes are allowed, for a sentence."""
        return self.barrier.why if self.barrier else ":write 10m REASON unlocks it"

    def told(self, now: float) -> str:
        """What the heading says of it."""
        if self.barrier:
            return self.barrier.told
        if not self.is_open(now):
            return "read-only, :write unlocks"
        left = self.open_until - now
        return "" if left == inf else f"WRITE for {int(left) // 60}m{int(left) % 60:02}s"


def _split_length(words: tuple[str, ...]) -> tuple[float, str]:
    """Tell a length of time at the beginning, in seconds, from the words behind it."""
    try:
        return parse_duration(words[0]).total_seconds(), " ".join(words[1:])
    except (InvalidInput, IndexError):
        return USUAL_UNLOCK, " ".join(words)
