"""EventStream: the events of a task in the format of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from runner.client.client import refuse_event_loop
from runner.client.event_pages import EventPages
from runner.text.redact import mask

if TYPE_CHECKING:
    from runner.client.event_position import EventPosition
    from runner.model.task_event import TaskEvent

PING = ": ping\n\n"
"""A comment."""

END = "event: end\ndata:\n\n"
"""The last event of a stream, after which a browser must not connect again."""


class EventStream:
    """The events of a task in the format of server-sent events, which `TaskEvents.stream` returns."""

    def __init__(self, id: int, after: "EventPosition | None", kinds: frozenset[str], ping: float) -> None:
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


def _server_sent(event: "TaskEvent") -> str:
    values = {name: mask(value) if isinstance(value, str) else value for name, value in event.values().items()}
    return f"id: {event.cursor}\nevent: {event.kind}\ndata: {json.dumps(values)}\n\n"
