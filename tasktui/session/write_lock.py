"""Decides whether the console may change anything. Every change and every action key checks it."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from runner.errors import InvalidInput, RunnerError
from runner.model.duration import parse_duration
from runner.queries.health import Permission


class ReadOnlyReason(NamedTuple):
    """A reason for read-only mode that no command removes.

    Args:
        end: the event that removes it, for a notice; empty if it lasts for the whole session.
    """

    label: str
    why: str
    end: str = ""


ASKED = ReadOnlyReason("READ-ONLY", "started with --read-only")
LOGIN = ReadOnlyReason(
    "READ-ONLY login",
    "this login may only read; the role task_operator may change tasks",
    "This login got the right to change tasks",
)
STANDBY = ReadOnlyReason(
    "READ-ONLY standby",
    "this server is a standby; connect to its primary to change tasks",
    "The server was promoted from standby to primary",
)
CLOSED = ReadOnlyReason(
    "READ-ONLY database",
    "default_transaction_read_only is on for this database or login",
    "default_transaction_read_only is off",
)
UNOPENED = ReadOnlyReason(
    "READ-ONLY",
    "the database has not been reached, so the rights of this login are unknown",
    "The database was reached",
)
FILE = ReadOnlyReason("READ-ONLY file", "you may only read the database file", "You may now write the database file")

BARRIERS = {
    Permission.READ_WRITE: None,
    Permission.READ_ONLY: LOGIN,
    Permission.STANDBY: STANDBY,
    Permission.CLOSED: CLOSED,
}
"""The barrier for each permission of the login."""

MAX_UNLOCK = 3600.0
"""Maximum seconds of an unlock of a production database."""

DEFAULT_UNLOCK = 600.0
"""Seconds of an unlock without a duration."""


class ReadOnly(RunnerError):
    """Nothing was changed: this console is read-only ({why})."""

    exit_code = 6


class FileReplaced(RunnerError):
    """Nothing was changed: the file {path} was deleted or replaced. Reload the screen first."""

    exit_code = 4


@dataclass(slots=True)
class WriteLock:
    """A lock for changes that opens for a limited time.

    Args:
        open_until: end of the unlock, in seconds on the clock of `now`; -inf is closed, inf open without limit.
        barrier: keeps the lock closed; removed when its reason ends; None without a barrier.
        reason: reason for the unlock; used in the audit for actions without a reason.
    """

    open_until: float = inf
    barrier: ReadOnlyReason | None = None
    reason: str | None = None

    def is_open(self, now: float) -> bool:
        """True if changes are allowed."""
        return self.barrier is None and now < self.open_until

    def open(self, now: float, words: tuple[str, ...]) -> None:
        """Allow changes for a limited time.

        Args:
            now: the current time in seconds.
            words: duration and reason; ten minutes without a duration.

        Raises:
            ReadOnly: there is a barrier.
            InvalidInput: the duration is too long, or the reason is missing.
        """
        if self.barrier:
            raise ReadOnly(why=self.barrier.why)
        length, reason = _split_length(words)
        if length > MAX_UNLOCK:
            raise InvalidInput(why="an unlock lasts an hour at most; repeat it when it ends")
        if not reason:
            raise InvalidInput(why="add a reason: :write 10m mend the mail queue")
        self.open_until, self.reason = now + length, reason

    def close(self) -> None:
        """Forbid changes."""
        self.open_until = -inf

    @property
    def why(self) -> str:
        """The reason why changes are forbidden, for messages."""
        return self.barrier.why if self.barrier else ":write 10m REASON unlocks it"

    @property
    def unlock(self) -> str:
        """The command that opens the lock; empty while there is a barrier."""
        return "" if self.barrier else ":write"

    def label(self, now: float) -> str:
        """The label in the heading."""
        if self.barrier:
            return self.barrier.label
        if not self.is_open(now):
            return "READ-ONLY"
        seconds_left = self.open_until - now
        return "" if seconds_left == inf else f"WRITE {int(seconds_left) // 60}m{int(seconds_left) % 60:02}s left"


def _split_length(words: tuple[str, ...]) -> tuple[float, str]:
    """Split words into a duration in seconds and the remaining text."""
    try:
        return parse_duration(words[0]).total_seconds(), " ".join(words[1:])
    except (InvalidInput, IndexError):
        return DEFAULT_UNLOCK, " ".join(words)
