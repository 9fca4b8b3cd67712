"""Keys of the console for the commands that `why` advises."""

import shlex

from tasktui.actions.actions import ACTIONS

OF_THE_TASK = {name for name, action in ACTIONS.items() if action.verb}
"""Commands whose keys act on the task under the cursor."""


def keys_of(advice: str, task_id: int) -> tuple[str, ...]:
    """Find the keys for the commands of an advice, each once, in order; empty if any command has no key.

    Args:
        advice: command lines joined by `&&`, or a sentence.
        task_id: id of the task under the cursor.
    """
    keys = [_key(command, task_id) for command in advice.split(" && ")]
    return tuple(dict.fromkeys(key for key in keys if key)) if all(keys) else ()


def shortcut(advice: str, task_id: int) -> str:
    """Format the keys for an advice as a suffix; empty if there are none."""
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
    except ValueError:  # A sentence with an apostrophe is not a command line.
        pass
    return ""
