"""PreviewPane: the task under the cursor of the task list, below the list or beside it."""

from contextlib import suppress
from functools import partial

from textual.geometry import Size

from runner.errors import TaskNotFound
from runner.queries.task.detail import TaskDetail, task_detail
from tasktui.data.task_panels import preview
from tasktui.render.rows import BLANK
from tasktui.session.cache import TtlCache
from tasktui.session.session import Session
from tasktui.widgets.canvas import Canvas

TALL, PREVIEW = 34, 9
"""Rows of a screen with a preview below the list, and of the preview."""

WIDE, SIDE = 180, 72
"""Columns of a screen with a preview beside the list, and of the preview."""

PREVIEW_EVERY = 2.0
"""Seconds to cache the task of the preview."""


class PreviewPane:
    """The task under the cursor, where the screen has room for it."""

    def __init__(self) -> None:
        self.below = Canvas(id="below")
        self.beside = Canvas(id="preview")
        self._wanted = True
        self._detail: TaskDetail | None = None
        self._details = TtlCache[TaskDetail | None](PREVIEW_EVERY)

    def fits(self, size: Size) -> bool:
        """True if the operator has not hidden the preview and the screen has room for it."""
        return self._wanted and (size.width >= WIDE or (size.height >= TALL and size.width >= 100))

    def toggle(self) -> None:
        """Show or hide the preview."""
        self._wanted = not self._wanted

    async def read(self, session: Session, id: int) -> None:
        """Read a task; the result is cached."""
        self._detail = await self._details.get(id, partial(_read, session, id))

    def draw(self, cursor: int | None, session: Session, size: Size) -> None:
        """Show a task if it was read, and empty rows until then.

        Args:
            cursor: id of the task.
            session: the operator's session.
            size: cells of the screen.
        """
        shown, wide = self.fits(size), size.width >= WIDE
        self.below.display, self.beside.display = shown and not wide, shown and wide
        detail = self._detail if self._detail is not None and self._detail.task.id == cursor else None
        if self.below.display:
            self.below.styles.height = PREVIEW
            rows = preview(detail, session.zone, size.width, PREVIEW, tall=False) if detail else []
            self.below.draw([*rows, *[BLANK] * (PREVIEW - len(rows))])
        elif self.beside.display:
            height = size.height - 8
            rows = preview(detail, session.zone, SIDE, height, tall=True) if detail else []
            self.beside.draw([*rows, *[BLANK] * (height - len(rows))])


async def _read(session: Session, id: int) -> TaskDetail | None:
    with suppress(TaskNotFound):
        return await session.read(task_detail, id)
    return None
