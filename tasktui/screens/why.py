"""Opening the dialog that explains why a task is not running, and the screen of the cause."""

from typing import TYPE_CHECKING

from runner.queries.why.cause import RelatedView
from tasktui.messages import Notice

if TYPE_CHECKING:
    from tasktui.screens.live import LiveScreen


def open_why(screen: "LiveScreen", task_id: int | None) -> None:
    """Explain why a task is not running.

    Args:
        screen: the screen to open the dialog on.
        task_id: the id of the task; None if no task is under the cursor.
    """
    if task_id is None:
        text = "No task under the cursor: select one to see why it is not running"
        screen.post_message(Notice(text, bad=True))
        return

    def open_cause(view: RelatedView | None) -> None:
        if view is not None:
            _open_cause(screen, view)

    from tasktui.dialogs.why import WhyScreen

    screen.app.push_screen(WhyScreen(screen.session, task_id), open_cause)


def _open_cause(screen: "LiveScreen", view: RelatedView) -> None:
    match view.kind:
        case "tasks":
            screen.session.filter_text = view.about
        case "task":
            screen.session.task_id = int(view.about)
        case "runners" | "audit":
            screen.session.target = view.about
    screen.app.switch_mode(view.kind)
