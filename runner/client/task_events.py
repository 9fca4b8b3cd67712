"""TaskEvents: the events of a task, as an iterator for event loops and for threads."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

from runner.client.client import refuse_event_loop
from runner.client.event_pages import EventPages
from runner.client.event_position import EventPage, read_cursor
from runner.client.event_stream import EventStream
from runner.errors import InvalidTask
from runner.model.duration import parse_duration
from runner.model.outcome import Delay
from runner.model.task_event import EVENT_KINDS, TaskEvent

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

    def stream(self, ping: Delay = "15s") -> EventStream:
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
