"""The actions of the console. Key bindings, footers, help, the palette and the read-only guard derive from ACTIONS."""

from tasktui.actions import edit, pause, runner_command, tasks, undo
from tasktui.actions.action import Action, ActionTarget

ACTIONS = {
    action.name: action
    for action in (
        Action(
            "retry",
            "R",
            "Retry",
            ActionTarget.TASKS,
            tasks.ask,
            "Spread over",
            "0s",
            verb="retry_now",
            operation=tasks.retry,
            options=tasks.retry_options,
        ),
        Action(
            "terminate",
            "T",
            "Terminate",
            ActionTarget.TASKS,
            tasks.ask,
            verb="terminate",
            operation=tasks.terminate,
        ),
        Action(
            "delay",
            "D",
            "Delay",
            ActionTarget.TASKS,
            tasks.ask,
            "Delay by",
            "10m",
            required=True,
            verb="delay",
            operation=tasks.delay,
            options=tasks.delay_options,
        ),
        Action(
            "unblock",
            "U",
            "Unblock",
            ActionTarget.TASKS,
            tasks.ask,
            "Dependency",
            tasks.EVERY,
            in_footer=False,
            verb="unblock",
            operation=tasks.unblock,
            options=tasks.unblock_options,
        ),
        Action("edit", "E", "Edit", ActionTarget.TASK, edit.ask, verb="edit"),
        Action("pause", "P", "Pause", ActionTarget.QUEUE, pause.ask_for_queue, "Pause for", "30m", required=True),
        Action(
            "pause --handler",
            "H",
            "Pause handler",
            ActionTarget.HANDLER,
            pause.ask_for_handler,
            "Pause for",
            "30m",
            required=True,
            in_footer=False,
        ),
        Action("drain", "L", "Drain", ActionTarget.RUNNER, runner_command.ask),
        Action(
            "resize",
            "S",
            "Resize",
            ActionTarget.RUNNER,
            runner_command.ask,
            "New size",
            "concurrency=100 threads=10",
            required=True,
        ),
        Action("undo", "Z", "Undo", ActionTarget.ENTRY, undo.ask),
        Action("undo --group", "B", "Undo group", ActionTarget.ENTRY, undo.ask_for_group, in_footer=False),
    )
}
"""Every action by name."""
