"""Shortcuts: the key that does what a line of advice says, where there is one on the screens of a task."""

import shlex

from tasktui.act.actions import ACTIONS

OF_THE_TASK = ("retry", "terminate", "delay", "unblock", "edit")
"""Verbs whose keys are for the task under the cursor."""


def keys_of(advice: str, task_id: int) -> tuple[str, ...]:
    """Find the keys for commands, each once, in their order; none where one of them has no key.

    Args:
        advice: command lines with `&&` between, or words that are none.
        task_id: the task that is under the cursor, which is what its keys are for.
    """
    found = [_key(command, task_id) for command in advice.split(" && ")]
    return tuple(dict.fromkeys(key for key in found if key)) if all(found) else ()


def shortcut(advice: str, task_id: int) -> str:
    """The keys for commands as they stand behind them; empty where there are none."""
    keys = keys_of(advice, task_id)
    return f"  (or escape, {', '.join(keys)})" if keys else ""


def _key(command: str, task_id: int) -> str:
    try:
        match shlex.split(command):
            case ["runner", verb, id, *_] if verb in OF_THE_TASK and id == str(task_id):
                return ACTIONS[verb].key
            case ["runner", "resume", "--handler", _]:
                return ACTIONS["pause --handler"].key
            case ["runner", "resume", _]:
                return ACTIONS["pause"].key
            case ["runner", "resize", *_]:
                return f"5 {ACTIONS['resize'].key}"
    except ValueError:  # it is a sentence, with an apostrophe in it
        pass
    return ""
