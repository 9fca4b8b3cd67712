"""The dialog of each action. The first screen does not need them: a key press imports this module."""

from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from runner.operations.pause import PauseKind
from tasktui.actions import (
    alerts,
    breaker,
    each_queue,
    edit,
    new_task,
    queues,
    rewind,
    runners,
    schedule,
    shard_plan,
    task_question,
    undo,
)
from tasktui.actions.action import Action, ActionTarget, Targets
from tasktui.actions.question import Ask, Dialog
from tasktui.session.shards import ShardsSession

DIALOGS: Mapping[str, Ask] = {
    "retry": task_question.ask_about_tasks,
    "terminate": task_question.ask_about_tasks,
    "delay": task_question.ask_about_tasks,
    "unblock": task_question.ask_about_tasks,
    "edit": edit.ask,
    "rewind": rewind.ask,
    "signal": task_question.ask_about_tasks,
    "copy": new_task.ask_for_copy,
    "submit": new_task.ask_for_handler,
    "stack": runners.ask_for_stack,
    "pause": partial(queues.ask_to_pause_selected, kind=PauseKind.QUEUE),
    "pause --handler": partial(queues.ask_to_pause_selected, kind=PauseKind.HANDLER),
    "limit queue": partial(queues.ask_to_limit_selected, kind=PauseKind.QUEUE),
    "limit handler": partial(queues.ask_to_limit_selected, kind=PauseKind.HANDLER),
    "breaker": breaker.ask_for_breaker_of,
    "drain": runners.ask_to_command,
    "resize": runners.ask_to_command,
    "schedules add": schedule.ask_to_add,
    "schedules run": schedule.ask_to_run,
    "schedules pause": schedule.ask_to_pause,
    "schedules edit": schedule.ask_to_edit,
    "schedules delete": schedule.ask_to_delete,
    "alerts silence": alerts.ask_about_first,
    "undo ENTRY": undo.ask_for_schedule,
    "undo": undo.ask,
    "undo --group": undo.ask_for_group,
}
"""The function of each action that returns its dialog, by the name of the action."""


def in_shards(
    action: Action, session: ShardsSession, parts: Mapping[str, Targets]
) -> Coroutine[Any, Any, Dialog] | None:
    """The dialog of an action on tasks, a queue or a handler in several shards; None for another action.

    Args:
        parts: the targets in each shard, by its name.
    """
    parts = {each.name: parts[each.name] for each in session.shards if each.name in parts}
    if action.name == "edit":
        return edit.ask_in_shards(action, session, parts)
    if action.target in (ActionTarget.QUEUE, ActionTarget.HANDLER) and action.name != "submit":
        return each_queue.ask_in_each(action, session, parts, DIALOGS[action.name])
    return shard_plan.ask_in_shards(action, session, parts) if action.target is ActionTarget.TASKS else None
