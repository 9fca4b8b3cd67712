"""Opening the dialogs that explain why tasks are not running, and the screen of the cause."""

from typing import TYPE_CHECKING

from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.why.remedies import RelatedView
from tasktui.messages import Notice
from tasktui.screens.selection import Selection

if TYPE_CHECKING:
    from tasktui.screens.live import LiveScreen


def why_marked(screen: "LiveScreen", selection: Selection, cursor: int | None) -> None:
    """Explain the marked tasks if there are several, or else the task under the cursor.

    Args:
        screen: the screen to open the dialog on.
        selection: the marks.
        cursor: the id of the task under the cursor; None if there is none.
    """
    marks = selection.tasks()
    several = Filter((Term("id", Operator.IN, tuple(task.id for task in marks)),)) if len(marks) > 1 else None
    open_why(screen, selection.task_filter() or several or cursor)


def why_queue(screen: "LiveScreen", queue: str | None) -> None:
    """Explain why the tasks of a queue are not running; None if no queue is under the cursor."""
    open_why(screen, None if queue is None else Filter((Term("queue", Operator.EQ, queue),)))


def open_why(screen: "LiveScreen", tasks: int | Filter | None) -> None:
    """Explain why a task, or many tasks, are not running.

    Args:
        screen: the screen to open the dialog on.
        tasks: the id of a task, or the filter of many; None if nothing is selected.
    """
    if tasks is None:
        text = "No task under the cursor: select one to see why it is not running"
        screen.post_message(Notice(text, bad=True))
        return

    def open_cause(view: RelatedView | None) -> None:
        if view is not None:
            _open_cause(screen, view)

    from tasktui.dialogs.why import WhyManyScreen, WhyScreen

    dialog = WhyManyScreen(screen.session, tasks) if isinstance(tasks, Filter) else WhyScreen(screen.session, tasks)
    screen.app.push_screen(dialog, open_cause)


def _open_cause(screen: "LiveScreen", view: RelatedView) -> None:
    match view.kind:
        case "tasks":
            screen.session.filter_text = view.about
        case "task":
            screen.session.task_id = int(view.about)
        case "runners" | "audit":
            screen.session.target = view.about
    screen.app.switch_mode(view.kind)
