"""The keys of a dialog, which a click presses."""

from collections.abc import Sequence
from typing import NamedTuple

from textual import events

from tasktui.render.rows import Part, Row, cap, ends, width_of
from tasktui.widgets.canvas import Canvas


class Cap(NamedTuple):
    """A key of a dialog.

    Args:
        key: the key as it is written on a cap.
        label: its effect in a few words, sanitized.
        action: action of the dialog that a click runs.
        locked: True if the key does nothing yet.
    """

    key: str
    label: str
    action: str
    locked: bool = False


class Caps(Canvas):
    """The keys of a dialog at the right end of a row, beside a text."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: tuple[Row, Sequence[Cap]] = ((), ())
        self._places: list[tuple[range, str]] = []

    def show(self, left: Row, caps: Sequence[Cap]) -> None:
        """Show a text and the keys; a locked key loses its cap."""
        self._shown = (left, caps)
        self._arrange()

    def on_resize(self) -> None:
        """Move the keys to the right end."""
        self._arrange()

    def _arrange(self) -> None:
        left, caps = self._shown
        parts: list[list[Part]] = [cap(hint.key, hint.label, locked=hint.locked) for hint in caps]
        width = self.size.width
        place = width - sum(map(width_of, parts))
        self._places = []
        for hint, part in zip(caps, parts, strict=True):
            self._places.append((range(place, place + width_of(part)), hint.action))
            place += width_of(part)
        self.draw([ends(left, [piece for part in parts for piece in part], width)])

    async def on_click(self, event: events.Click) -> None:
        """Run the action of the key under the pointer."""
        for cells, action in self._places:
            if event.x in cells:
                await self.screen.run_action(action)
