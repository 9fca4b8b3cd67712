"""FreeSlots: the free slots of HTTP executors, each of which all handlers of its executor share."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from runner.policy.slot_shares import SlotUse, slot_share

if TYPE_CHECKING:
    from runner.engine.serving.protocol import PullRequest
    from runner.engine.serving.pulled_call import Key, PulledCall


Kind: TypeAlias = frozenset[str]
"""The handlers of an executor. Executors of one kind are alike."""


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


class SlotGroup(NamedTuple):
    """Handlers that only these kinds of executors run: their tasks together need no more slots than those have."""

    kinds: frozenset[Kind]
    handlers: frozenset[str]


class FreeSlots:
    """The free slots by kind, and the tasks that wait for one.

    Args:
        uses: returns what each database uses for some handlers: the tasks that are claimed, and that no executor has.
        held: returns the number of tasks of a handler that executors have.
    """

    def __init__(self, uses: Callable[[frozenset[str]], Mapping[str, SlotUse]], held: Callable[[str], int]) -> None:
        self._uses, self._held = uses, held
        self._free = Counter[Kind]()
        self._sessions = Counter[Kind]()
        self._groups: dict[str, list[SlotGroup]] | None = None
        """The groups of each handler; None after a change of the kinds."""

    def change(self, session: HttpSession, free: int, handlers: Kind | None = None) -> None:
        """Set the free slots of an executor, and its handlers."""
        if handlers is not None and (handlers != session.handlers or not self._sessions[handlers]):
            self.remove(session)
            session.handlers = handlers
            self._sessions[handlers] += 1
            self._groups = None
        self._free[session.handlers] += free - session.free
        session.free = free

    def remove(self, session: HttpSession) -> None:
        """Forget an executor."""
        self.change(session, 0)
        if session.handlers:
            self._sessions[session.handlers] -= 1
            self._groups = None
        session.handlers = frozenset()

    @property
    def free(self) -> int:
        """The number of free slots."""
        return sum(self._free.values())

    def free_for(self, handler: str) -> int:
        """Return the number of free slots for a handler, if no other one takes them."""
        return sum(free for kind, free in self._free.items() if handler in kind)

    def room(self, shard: str, handler: str, *, is_short: bool) -> int:
        """Return the number of tasks of a handler to claim now in a database.

        Args:
            shard: the name of the database.
            is_short: True if its tasks are so short that each slot should have its next task before it is free.
        """
        if self._groups is None:
            self._groups = groups_of(kind for kind, sessions in self._sessions.items() if sessions)
            self._free = Counter({kind: free for kind, free in self._free.items() if free})
        groups = self._groups.get(handler, ())
        return max(0, min((self._room(shard, group, is_short=is_short) for group in groups), default=0))

    def _room(self, shard: str, group: SlotGroup, *, is_short: bool) -> int:
        size = sum(self._free[kind] for kind in group.kinds)
        if is_short:
            size += size + sum(map(self._held, group.handlers))
        uses = self._uses(group.handlers)
        return min(size - sum(use.used for use in uses.values()), slot_share(size, shard, uses) - uses[shard].used)


def groups_of(kinds: Iterable[Kind]) -> dict[str, list[SlotGroup]]:
    """Return the groups of each handler.

    Tasks have a slot each if every set of handlers has enough of them (Hall's theorem). Of the sets, these are checked:
    the handlers that no other executors run than one of them has, and those that are connected by executors. Others are
    exceeded by few tasks, which return to the queue after a short wait.
    """
    all_kinds = set(kinds)
    runs = {name: frozenset(kind for kind in all_kinds if name in kind) for name in frozenset().union(*all_kinds)}
    connected: list[frozenset[Kind]] = []
    for part in set(runs.values()):
        joined = [other for other in connected if other & part]
        connected = [other for other in connected if not other & part] + [part.union(*joined)]
    groups = [
        SlotGroup(part, frozenset(name for name, own in runs.items() if own <= part))
        for part in {*runs.values(), *connected}
    ]
    return {name: [group for group in groups if name in group.handlers] for name in runs}
