"""Task: everything of one task."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Static

from runner.store import observe
from runner.store.observe import Story, TaskRow
from tasktui.act import interventions
from tasktui.act.actions import Subject
from tasktui.draw.render import content, lines
from tasktui.look.storyboard import told
from tasktui.messages import Revealed
from tasktui.screens.acting import ActingScreen
from tasktui.screens.asking import acts


class TaskScreen(ActingScreen):
    """The story of the task that was opened last."""

    ABOUT = (
        "The task that was opened with enter, or with :task ID. Secrets are masked until v is pressed, which is "
        "written down in the audit. A long payload is folded until f is pressed."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *acts(Subject.TASKS, Subject.TASK, Subject.QUEUE, Subject.HANDLER, Subject.ENTRY),
        Binding("w", "why", "Why"),
        Binding("v", "reveal", "Reveal"),
        Binding("f", "fold", "Fold or unfold what is long", show=False),
        Binding("escape", "back", "To the list", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._story: Story | None = None
        self._reveal = self._unfold = False

    def parts(self) -> Iterable[Widget]:
        """One text that can be scrolled."""
        nothing = " No task is open: choose one from the list with enter, or type :task ID"
        yield VerticalScroll(Static(content((nothing, "dim"))), id="story")

    def on_screen_resume(self) -> None:
        """Do not say that nothing is open while what is open cannot be read."""
        if self._story is None and self.session.task_id is not None:
            self.query_one("#story Static", Static).update(content((f" Task {self.session.task_id} ...", "dim")))

    def question(self) -> object:
        """The task that is open."""
        return self.session.task_id

    async def look(self) -> object:
        """Read the story of the task that is open."""
        id = self.session.task_id
        if id is None:
            await self.session.read(observe.clock)  # tells how the database does, and whether it is there
            return None
        return await self.session.read(observe.story, id)

    def show(self, snapshot: Any) -> None:
        """Tell the story."""
        if snapshot is None:
            return
        if self._story is None or self._story.task.id != snapshot.task.id:
            self._reveal = self._unfold = False
            self.query_one("#story", VerticalScroll).scroll_home(animate=False)
        self._story = snapshot
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out what is written down while nothing may be written."""
        if action == "reveal" and not (self.session.writable or self._reveal):
            return None
        return super().check_action(action, parameters)

    def chosen(self) -> Sequence[TaskRow]:
        """The task whose story is on the screen."""
        return [self._story.task] if self._story else []

    def spoken(self) -> Sequence[object]:
        """What tells the same story."""
        return ["show", self.session.task_id] if self.session.task_id is not None else ["tasks"]

    def action_reveal(self) -> None:
        """Show secrets when that has been written down, or mask them again."""
        if self._reveal:
            self._reveal = False
            self._draw()
        elif self._story is not None:
            self.work(self._write_down(self._story.task.id))

    def action_fold(self) -> None:
        """Show all of a long payload, or its beginning again."""
        self._unfold = not self._unfold
        self._draw()

    async def _write_down(self, id: int) -> None:
        await interventions.reveal(self.session, id)
        self.post_message(Revealed(id))

    @on(Revealed)
    def _revealed(self, message: Revealed) -> None:
        self._reveal = self._story is not None and self._story.task.id == message.task_id
        self._draw()

    def action_back(self) -> None:
        """Go back to the list."""
        self.app.switch_mode("tasks")

    def _draw(self) -> None:
        if self._story is not None:
            story = told(self._story, self.session.zone, reveal=self._reveal, unfold=self._unfold)
            self.query_one("#story Static", Static).update(lines(story))
