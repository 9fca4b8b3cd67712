"""Obeying: what each command after the colon does."""

import time
from collections.abc import Callable, Coroutine
from typing import Any

from runner.errors import InvalidInput, RunnerError
from runner.people import views
from runner.people.sorts import parse_sort
from tasktui.act import interventions
from tasktui.obey.console import Console
from tasktui.typed.commands import Command, place_of


def obey(console: Console, command: Command) -> None:
    """Do what a command says; one that is not in the table is the name of a screen.

    Raises:
        RunnerError: it cannot be done.
    """
    OBEYED.get(command.name, _go)(console, command)


def _go(console: Console, command: Command) -> None:
    console.switch_mode(command.name)


def _quit(console: Console, _command: Command) -> None:
    console.exit()


def _help(console: Console, _command: Command) -> None:
    console.action_help()


def _health(console: Console, _command: Command) -> None:
    console.action_health()


def _write(console: Console, command: Command) -> None:
    console.session.lock.open(time.monotonic(), command.words)


def _lock(console: Console, _command: Command) -> None:
    console.session.lock.close()


def _stop(console: Console, _command: Command) -> None:
    if console.session.work is not None:
        console.session.work.stop()


def _tasks(console: Console, command: Command) -> None:
    console.list_tasks(command.rest)


def _sort(console: Console, command: Command) -> None:
    console.session.sort = parse_sort(command.rest) if command.words else console.session.sort.reverse
    console.switch_mode("tasks")


def _task(console: Console, command: Command) -> None:
    text = command.rest
    if not text.isdecimal() or not 1 <= int(text[:20]) < 2**63:
        raise InvalidInput(why=f"{text[:30]!r} is not the number of a task")
    console.session.task_id = int(text)
    console.switch_mode("task")


def _view(console: Console, command: Command) -> None:
    saved, name = views.load(console.session.views), command.rest
    if name:
        console.list_tasks(views.chosen(saved, name))
    else:
        console.tell("\n".join(f"{view}: {wanted}" for view, wanted in saved.items()) or "No view is saved")


def _save(console: Console, command: Command) -> None:
    wanted = console.session.wanted
    views.save(console.session.views, command.rest, wanted)
    console.tell(f"Saved as {command.rest}: {wanted or 'all tasks'}")


def _forget(console: Console, command: Command) -> None:
    views.forget(console.session.views, command.rest)
    console.tell(f"Forgot {command.rest}")


def _pause(console: Console, command: Command) -> None:
    place, words = place_of(command)

    async def doing() -> None:
        timed = words[:1] if words and words[0][0] in "+0123456789" else ()
        reason = " ".join(words[len(timed) :])
        done = await interventions.pause(console.session, place, "".join(timed), reason or None)
        console.tell(f"{str(place).capitalize()} {done}")

    _work(console, doing)


def _resume(console: Console, command: Command) -> None:
    place, words = place_of(command)

    async def doing() -> None:
        done = await interventions.resume(console.session, place, " ".join(words) or None)
        console.tell(f"{str(place).capitalize()} {done}")

    _work(console, doing)


def _work(console: Console, doing: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def working() -> None:
        try:
            await doing()
        except RunnerError as error:
            console.tell(str(error), bad=True)

    console.run_worker(working(), group="act")


OBEYED: dict[str, Callable[[Console, Command], None]] = {
    "q": _quit,
    "help": _help,
    "health": _health,
    "write": _write,
    "lock": _lock,
    "stop": _stop,
    "tasks": _tasks,
    "sort": _sort,
    "task": _task,
    "view": _view,
    "save": _save,
    "forget": _forget,
    "pause": _pause,
    "resume": _resume,
}
"""Every command that is more than the name of a screen."""
