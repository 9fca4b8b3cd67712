"""EventPages: one iteration over the events of a task, page by page."""

from typing import TYPE_CHECKING

from runner.client.client import get_client

if TYPE_CHECKING:
    from concurrent.futures import Future

    from runner.client.event_position import EventPage, EventPosition
    from runner.model.task_event import TaskEvent


class EventPages:
    """The pages of one iteration."""

    def __init__(self, id: int, position: "EventPosition | None", kinds: frozenset[str]) -> None:
        self._id, self._position, self._kinds = id, position, kinds
        self._known_at = 0.0
        self.ended = False

    def begin(self) -> "Future[tuple[EventPage, float]]":
        """Begin to wait for the next page."""
        client = get_client().client_of(self._id)
        return client.following.wait(self._id, self._position, self._kinds, self._known_at)

    def take(self, answer: "tuple[EventPage, float]") -> "list[TaskEvent]":
        """Continue after a page, and return its events."""
        page, self._known_at = answer
        self._position, self.ended = page.position, page.ended
        return page.events
