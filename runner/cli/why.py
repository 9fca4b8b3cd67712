"""`runner why`: explain why a task is not running."""

import textwrap
from typing import Any

from runner.cli.connection import DEFAULT_CONNECTION, Connection, open_database
from runner.cli.exit_codes import Exit
from runner.cli.output import console, plain, print_json, print_line
from runner.cli.task_filter import TaskId
from runner.cli.tasks import task_document
from runner.queries.why.remedies import sentence
from runner.queries.why.why import Why
from runner.queries.why.why import why as read_why
from runner.text.operator import local_zone

MIN_WIDTH = 40
"""Columns for a sentence, even on a narrower terminal."""


async def why(id: TaskId, /, *, json: bool = False, connection: Connection = DEFAULT_CONNECTION) -> int:
    """Explain why a task is not running.

    Prints one sentence per cause, the decisive one first, with a remedy. The causes
    come from the rules that runners claim by.

    Args:
        id: The id of the task.
        json: Print one JSON document.
        connection: The database.
    """
    async with open_database(connection.settings()) as database:
        explanation = await database.read(read_why, id, local_zone())
    print_json(_document(explanation)) if json else _print(explanation)
    return Exit.OK


def _document(explanation: Why) -> dict[str, Any]:
    details = plain(explanation)
    remedies = [{"text": remedy.text, **plain(remedy)} for remedy in explanation.remedies]
    causes = [plain(cause) | {"view": cause.view and cause.view.command} for cause in explanation.causes]
    document = {
        "task": task_document(explanation.task),
        "at": details["at"],
        "verdict": explanation.verdict,
        "causes": causes,
    }
    return document | {"would_start_if": remedies}


def _print(explanation: Why) -> None:
    print_line(explanation.verdict, style="bold")
    width = max(MIN_WIDTH, console().width - 1)
    for index, cause in enumerate(explanation.causes, 1):
        for line in textwrap.wrap(cause.text, width, initial_indent=f"  {index}. ", subsequent_indent="     "):
            print_line(line)
        if cause.advice:
            print_line(f"     -> {cause.advice}", style="dim")
        if cause.view and cause.view.command not in cause.advice:
            print_line(f"     see: {cause.view.command}", style="dim")
    for line in textwrap.wrap(sentence(explanation.remedies), width, initial_indent="  ", subsequent_indent="  "):
        print_line(line)
    for remedy in explanation.remedies:
        print_line(f"     -> {remedy.commands}", style="dim")
