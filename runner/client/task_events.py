"""TaskEvents: the events of a task for event loops, threads and browsers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from runner.client.client import get_client, refuse_event_loop
from runner.client.event_position import EventPage, EventPosition, read_cursor
from runner.errors import InvalidTask
from runner.model.duration import parse_duration
from runner.model.outcome import Delay
from runner.model.task_event import EVENT_KINDS, TaskEvent
from runner.text.redact import mask

if TYPE_CHECKING:
    from concurrent.futures import Future


class TaskEvents:
    """The events of a task, which `TaskHandle.events` returns. Each iteration begins at the same position."""

    def __init__(self, id: int, after: str | None, kinds: Iterable[str]) -> None:
        self._id, self._after = id, read_cursor(after)
        self._kinds = frozenset([kinds] if isinstance(kinds, str) else kinds)
        for kind in self._kinds.difference(EVENT_KINDS):
            raise InvalidTask(field="kinds", value=kind, why=f"the kinds of events are {', '.join(EVENT_KINDS)}")

    async def __aiter__(self) -> AsyncIterator[TaskEvent]:
        pages = EventPages(self._id, self._after, self._kinds)
        while not pages.ended:
            for event in pages.take(await asyncio.wrap_future(pages.begin())):
                yield event

    def __iter__(self) -> Iterator[TaskEvent]:
        refuse_event_loop("for event in events()", "async for event in events()")
        pages = EventPages(self._id, self._after, self._kinds)
        while not pages.ended:
            yield from pages.take(_result(pages.begin()))

    def stream(self, ping: Delay = "15s") -> "EventStream":
        """The events in the format of server-sent events, for the `EventSource` of a browser.

        It is the body of a response with the type `text/event-stream`, on an event loop and in a thread. The id of each
        event is its cursor: a browser that connects again sends it in the header `Last-Event-ID`. The data is a JSON
        object. Values that look like secrets are masked. The last event is called `end`.

        Args:
            ping: interval of comments that keep the connection open: text ("15s"), seconds or timedelta.
        """
        return EventStream(self._id, self._after, self._kinds, parse_duration(ping).total_seconds())


def _result(future: "Future[tuple[EventPage, float]]") -> tuple[EventPage, float]:
    try:
        return future.result()
    finally:
        future.cancel()


class EventPages:
    """The pages of one iteration."""

    def __init__(self, id: int, position: EventPosition | None, kinds: frozenset[str]) -> None:
        self._id, self._position, self._kinds = id, position, kinds
        self._known_at = 0.0
        self.ended = False

    def begin(self) -> "Future[tuple[EventPage, float]]":
        """Begin to wait for the next page."""
        client = get_client().client_of(self._id)
        return client.following.wait(self._id, self._position, self._kinds, self._known_at)

    def take(self, answer: tuple[EventPage, float]) -> list[TaskEvent]:
        """Continue after a page, and return its events."""
        page, self._known_at = answer
        self._position, self.ended = page.position, page.ended
        return page.events


PING = ": ping\n\n"
"""A comment."""

END = "event: end\ndata:\n\n"
"""The last event of a stream, after which a browser must not connect again."""


class EventStream:
    """The events of a task in the format of server-sent events, which `TaskEvents.stream` returns."""

    def __init__(self, id: int, after: EventPosition | None, kinds: frozenset[str], ping: float) -> None:
        self._id, self._after, self._kinds, self._ping = id, after, kinds, ping

    async def __aiter__(self) -> AsyncIterator[str]:
        pages = EventPages(self._id, self._after, self._kinds)
        while not pages.ended:
            page = asyncio.wrap_future(pages.begin())
            try:
                while not (await asyncio.wait([page], timeout=self._ping))[0]:
                    yield PING
                events = pages.take(page.result())
            finally:
                page.cancel()
            for event in events:
                yield _server_sent(event)
        yield END

    def __iter__(self) -> Iterator[str]:
        refuse_event_loop("for text in stream()", "async for text in stream()")
        pages = EventPages(self._id, self._after, self._kinds)
        while not pages.ended:
            page = pages.begin()
            try:
                while not page.done():
                    try:
                        page.result(self._ping)
                    except TimeoutError:
                        if not page.done():
                            yield PING
                events = pages.take(page.result())
            finally:
                page.cancel()
            for event in events:
                yield _server_sent(event)
        yield END


def _server_sent(event: TaskEvent) -> str:
    values = {name: mask(value) if isinstance(value, str) else value for name, value in event.values().items()}
    return f"id: {event.cursor}\nevent: {event.kind}\ndata: {json.dumps(values)}\n\n"
