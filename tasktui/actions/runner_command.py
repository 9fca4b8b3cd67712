"""Draining and resizing a runner: its confirmation."""

from functools import partial

from runner.text import formatting
from tasktui.actions.action import Action, Confirmation
from tasktui.actions.as_command import runner_command_words
from tasktui.actions.question import Dialog, Question
from tasktui.actions.targets import Targets
from tasktui.messages import Notice
from tasktui.render.render import content, line
from tasktui.session.session import Session


def ask(action: Action, session: Session, targets: Targets) -> Dialog | None:
    """Ask to drain or resize the selected runner."""
    from tasktui.actions import perform  # imports all operations, which the first screen does not need

    runner = targets.runner()
    if runner is None:
        return None
    name = f"runner {runner.id} on {line(runner.host)}"
    about = [content((f"{action.label} {name} at its next heartbeat", "bold"))]
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
    )


async def _send(session: Session, action: Action, runner_id: int, confirmation: Confirmation) -> Notice:
    from tasktui.actions import perform

    command = confirmation.answer if action.prompt else action.name
    result = await perform.send_runner_command(session, runner_id, command, confirmation.reason)
    return Notice(f"Runner {runner_id} {result}")
