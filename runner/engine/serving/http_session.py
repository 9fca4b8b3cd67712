"""HttpSession: one HTTP executor, as its server knows it."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.engine.serving.protocol import PullRequest
    from runner.engine.serving.pulled_call import Key, PulledCall


class HttpSession:
    """One HTTP executor, known by its token and its name."""

    def __init__(self, token: str, name: str) -> None:
        self.token, self.name = token, name
        self.handlers: frozenset[str] = frozenset()
        self.free = 0
        """The number of tasks that it can start now, of any of its handlers."""
        self.pulls = False
        """True until its last pull asks for no tasks, or loses its connection: then an end frees no slot."""
        self.last_pull: PullRequest | None = None
        self.seen_at = time.monotonic()
        self.held: dict[Key, PulledCall] = {}
