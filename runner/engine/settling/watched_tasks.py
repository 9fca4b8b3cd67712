"""WatchedTasks: the tasks that clients wait for, and the notices of their changes."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from runner.db.schema import Tables
from runner.db.watch_request import Watch, WatchRequest, id_texts, notice_channel, read_request
from runner.engine.events import AttemptsEnded, Events, NotesWritten, TasksCancelled, TasksClaimed, TasksRescued
from runner.model.task import MOVES

KEEP_SECONDS = 30.0
"""Seconds for which a request counts, at least; its client repeats it more often."""

RECENT_SECONDS = 2.0
"""Seconds for which the changes of tasks are kept: the request of a client may arrive after the change."""

MOST_WATCHED = 100_000
"""Maximum number of watched tasks; polling finds the changes of others."""

Clients = dict[int, set[str]]
"""The names of clients, by task id."""


class WatchedTasks:
    """The tasks that clients wait for. Without any, an event of the runner costs one comparison.

    Args:
        events: publishes the changes of tasks after their commit.
    """

    def __init__(self, tables: Tables, events: Events) -> None:
        self._tables = tables
        self._send: Callable[[str, str], None] | None = None
        # Two generations, of which the older one is dropped: no request has a timer of its own.
        self._young: dict[Watch, Clients] = defaultdict(dict)
        self._old: dict[Watch, Clients] = defaultdict(dict)
        self._turned = 0.0
        self._until = 0.0
        """End of the time in which changes matter, monotonic."""
        self._recent: deque[tuple[float, Watch, list[int]]] = deque()
        events.subscribe(AttemptsEnded, self._on_ends)
        events.subscribe(TasksClaimed, self._on_claims)
        events.subscribe(NotesWritten, self._on_notes)
        events.subscribe(TasksRescued, self._on_rescues)
        events.subscribe(TasksCancelled, self._on_cancels)

    @contextmanager
    def sending(self, send: Callable[[str, str], None]) -> Iterator[None]:
        """Send notices during the block.

        Args:
            send: sends a text to a channel.
        """
        self._send = send
        try:
            yield
        finally:
            self._send = None

    def receive(self, text: str) -> None:
        """Receive the request of a client, and report the changes of the last seconds."""
        if (request := read_request(text)) is None:
            return
        now = time.monotonic()
        self._turn(now)
        self._until = now + 2 * KEEP_SECONDS
        clients = self._young[request.watch]
        for id in request.ids:
            if id in clients or len(clients) < MOST_WATCHED:
                clients.setdefault(id, set()).add(request.client)
        self._report_recent(request)

    def _report_recent(self, request: WatchRequest) -> None:
        wanted, recent = set(request.ids), set[int]()
        for _, watch, ids in self._recent:
            if watch is Watch.END or request.watch is Watch.CHANGE:
                recent.update(wanted.intersection(ids))
        if recent:
            self._notify({request.client: [*recent]})

    def _turn(self, now: float) -> None:
        """Forget old requests and old changes."""
        while self._recent and self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()
        if now - self._turned > KEEP_SECONDS:
            is_late = now - self._turned > 2 * KEEP_SECONDS
            self._old, self._young = defaultdict(dict) if is_late else self._young, defaultdict(dict)
            self._turned = now

    def _on_ends(self, event: AttemptsEnded) -> None:
        if self._until and event.verb is not None:
            watch = Watch.END if MOVES[event.verb].target.final else Watch.CHANGE
            self._report(watch, [settlement.id for _, settlement in event.attempts])

    def _on_claims(self, event: TasksClaimed) -> None:
        if self._until:
            self._report(Watch.CHANGE, [task.id for task in event.tasks])

    def _on_notes(self, event: NotesWritten) -> None:
        if self._until:
            self._report(Watch.CHANGE, [*event.ids])

    def _on_rescues(self, event: TasksRescued) -> None:
        if self._until:
            ends = [id for id, rescued in event.tasks.items() if MOVES[rescued.verb].target.final]
            self._report(Watch.END, ends)
            self._report(Watch.CHANGE, [*event.tasks.keys() - set(ends)])

    def _on_cancels(self, event: TasksCancelled) -> None:
        if self._until:
            self._report(Watch.END, [task.id for task in event.tasks])

    def _report(self, watch: Watch, ids: list[int]) -> None:
        """Notify the clients that watch some of these tasks."""
        now = time.monotonic()
        if now > self._until:
            self._until = 0.0
            self._young.clear()
            self._old.clear()
            self._recent.clear()
            return
        self._turn(now)
        self._recent.append((now, watch, ids))
        notices: dict[str, list[int]] = defaultdict(list)
        for clients in self._clients_of(watch):
            for id in clients.keys() & ids:
                for client in clients.pop(id) if watch is Watch.END else clients[id]:
                    notices[client].append(id)
        if notices:
            self._notify(notices)

    def _clients_of(self, watch: Watch) -> Iterable[Clients]:
        """The clients that ask for changes of this kind; an end is also a change."""
        for kind in Watch if watch is Watch.END else (watch,):
            yield self._young[kind]
            yield self._old[kind]

    def _notify(self, notices: dict[str, list[int]]) -> None:
        if self._send is not None:
            for client, ids in notices.items():
                for text in id_texts([*dict.fromkeys(ids)]):
                    self._send(notice_channel(self._tables, client), text)
