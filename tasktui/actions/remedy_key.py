"""RemedyKey: the action key that does the same as a command which an explanation recommends."""

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from runner.filter.parse import Filter
from tasktui.actions.action import Targets
from tasktui.actions.actions import ACTIONS, OF_THE_TASK

if TYPE_CHECKING:
    from runner.queries.task_list.row import TaskRow


class RemedyKey(NamedTuple):
    """A key that opens the dialog of an action, with a preview, for other targets than the selection of the screen.

    Args:
        action: the name of the action.
        words: the change, after the key.
    """

    action: str
    words: str
    targets: Targets

    @property
    def key(self) -> str:
        """The key."""
        return ACTIONS[self.action].key


def remedy_keys(
    advice: str, task: "TaskRow | None" = None, parse: Callable[[str], Filter] | None = None
) -> Sequence[RemedyKey]:
    """Find the keys for the commands of an advice, each once, in order; empty if any command has no key.

    Args:
        advice: command lines joined by `&&`, or a sentence.
        task: the task that is explained.
        parse: reads the filter of a command on many tasks; None if it has none.
    """
    keys = [_key(command, task, parse) for command in advice.split(" && ")]
    found = {key.action: key for key in keys if key is not None}
    return tuple(found.values()) if None not in keys else ()


def _key(command: str, task: "TaskRow | None", parse: Callable[[str], Filter] | None) -> RemedyKey | None:
    try:
        match shlex.split(command):
            case ["runner", verb, id, *options] if task is not None and verb in OF_THE_TASK and id == str(task.id):
                change = " ".join(["", *options]).replace(" --", " ")
                return RemedyKey(verb, f"{verb} task {id}{change}", Targets(tasks=lambda: (task,)))
            case ["runner", ("retry" | "unblock") as verb, text] if parse is not None:
                chosen = parse(text)
                return RemedyKey(verb, f"{verb} {text}", Targets(task_filter=lambda: chosen))
            case ["runner", *words]:
                return _of_registry(words)
    except ValueError:  # A sentence with an apostrophe is not a command line.
        pass
    return None


def _of_registry(words: Sequence[str]) -> RemedyKey | None:
    """The key for a change of a queue, a handler or a runner, with the values of the command in its dialog."""
    answer = ""
    match words:
        case ["runners", "resize", id, *options] if id.isdecimal():
            targets = Targets(runner_id=int(id), answer=_answer(options))
            return RemedyKey("resize", f"resize runner {id} to {_answer(options)}", targets)
        case ["resume", "--handler", name]:
            action, change, of_queue = "pause --handler", "resume handler", False
        case ["resume", name]:
            action, change, of_queue = "pause", "resume queue", True
        case ["limit", "handler", name, "--breaker", "close"]:
            action, change, of_queue = "breaker", "close the breaker of", False
        case ["limit", ("queue" | "handler") as kind, name, *options]:
            action, change, of_queue = f"limit {kind}", f"limit {kind}", kind == "queue"
            answer = _answer(options)
        case _:
            return None
    targets = Targets(queue=lambda: name, answer=answer) if of_queue else Targets(handler=lambda: name, answer=answer)
    return RemedyKey(action, " ".join(part for part in (change, name, answer) if part), targets)


def _answer(options: Sequence[str]) -> str:
    """The options of a command as the answer of its dialog: `concurrency=20 rate=none`."""
    names, values = options[::2], options[1::2]
    return " ".join(f"{name.removeprefix('--')}={value}" for name, value in zip(names, values, strict=False))
