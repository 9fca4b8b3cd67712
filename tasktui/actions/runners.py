"""Actions on runners: drain, resize, stack."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from runner.errors import InvalidInput
from runner.model.task import State
from runner.policy.runner_command import MOST_SLOTS, RunnerCommand, parse_runner_command
from runner.queries.runners import RunnerRow, runners
from runner.text import formatting
from runner.text.runner_name import runner_name
from tasktui.actions.action import Action, Confirmation, Targets
from tasktui.actions.as_command import runner_command_words, stack_words
from tasktui.actions.question import AnswerPart, Dialog, Question
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.render.rows import Part
from tasktui.session.session import Session


def ask_to_command(action: Action, session: Session, targets: Targets) -> Dialog | Coroutine[Any, Any, Dialog] | None:
    """Ask to drain or resize the selected runner, or the one that a remedy names."""
    if targets.runner_id is not None:
        return _ask_about_runner(action, session, targets.runner_id, targets.answer)
    runner = targets.runner()
    return None if runner is None else _question(action, session, runner)


async def _ask_about_runner(action: Action, session: Session, id: int, answer: str) -> Dialog:
    runner = next((row for row in await session.read(runners) if row.id == id), None)
    if runner is None:
        return Notice(f"{action.label}: runner {id} does not exist any more", bad=True)
    return _question(action, session, runner, answer)


def _question(action: Action, session: Session, runner: RunnerRow, answer: str = "") -> Question:
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    effect = "" if action.prompt else ": it claims no more tasks, finishes those that run, and exits"
    about = [content((f"At its next heartbeat{effect}", "bold"))]
    about.append(content(f"  {runner.running_tasks:,} of {runner.capacity:,} slots in use"))
    if not runner.alive:
        about.append(content((f"  no heartbeat for {formatting.age(runner.heartbeat_age)}", "retrying")))
    return Question(
        action,
        about,
        1,
        words=partial(runner_command_words, action, runner.id),
        change=partial(_send, session, action, runner.id),
        sql=partial(perform.runner_command_sql, session, action, runner.id),
        parts=_sizes(runner, answer) if action.prompt else (),
        subject=line(runner_name(runner.id, runner.host, runner.pid)),
    )


def _sizes(runner: RunnerRow, answer: str) -> list[AnswerPart]:
    """An input for each kind of slots of a runner, with its present size or the one that a remedy suggests."""
    typed = dict(part.split("=", 1) for part in answer.split())
    sizes = {"concurrency": runner.capacity - runner.threads - runner.processes, "threads": runner.threads}
    return [
        AnswerPart(
            name,
            name.capitalize(),
            str(number),
            typed.get(name, str(number)),
            "slots",
            partial(_size_meaning, name, number),
        )
        for name, number in sizes.items()
        if number > 0
    ]


def _size_meaning(name: str, number: int, text: str) -> Part:
    try:
        parse_runner_command(f"{name}={text}")
    except InvalidInput:
        return f"✗ 1 to {MOST_SLOTS:,} slots", "dead"
    return f"✓ was {number}", "muted"


def ask_for_stack(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask the runner of the selected task for its stack."""
    task = targets.task()
    if task is None:
        return None
    if task.state is not State.RUNNING or task.runner_id is None:
        return Notice(f"{action.label}: task {task.id} is {task.shown}, not running", bad=True)
    command = str(RunnerCommand(stacks=(task.id,)))
    where = f"runner {task.runner_id} writes the place of its handler into the log of task {task.id}"
    return Question(
        action,
        [content((f"At its next heartbeat, {where}", "bold"))],
        1,
        subject=f"of task {task.id}",
        words=partial(stack_words, task.id),
        change=partial(_send_stack, session, task.runner_id, command),
        sql=partial(_stack_sql, session, task.runner_id, command),
    )


async def _send_stack(session: Session, runner_id: int, command: str, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    return Notice(
        f"Runner {runner_id} {await perform.send_runner_command(session, runner_id, command, confirmation.reason)}"
    )


async def _stack_sql(session: Session, runner_id: int, command: str, confirmation: Confirmation) -> str:
    from runner.operations.sql_export import command_script  # imports SQLAlchemy, which the first screen does not need

    return await session.write(command_script, runner_id, command, session.by(confirmation.reason))


async def _send(session: Session, action: Action, runner_id: int, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    command = confirmation.answer if action.prompt else action.name
    result = await perform.send_runner_command(session, runner_id, command, confirmation.reason)
    return Notice(f"Runner {runner_id} {result}")
