"""`runner why`: why a task is not running."""

import textwrap
from typing import Any

from runner.cli.connection import NOWHERE, Connection, opened
from runner.cli.ending import Exit
from runner.cli.printing import console, plain, print_json, print_line
from runner.cli.targets import TaskId
from runner.cli.tasks import listed
from runner.people.person import local_zone
from runner.store.observe import Why
from runner.store.observe import why as read_why
from runner.store.observe.chances import sentence

NARROWEST = 40
"""Columns that a sentence is given at least."""


async def why(id: TaskId, /, *, json: bool = False, connection: Connection = NOWHERE) -> int:
    """Say why a task is not running, or what became of it.

    One sentence for each cause that is found, the most decisive first, with what
    can be done about it. They come from the same rules that runners claim by.

    Args:
        id: The task's number.
        json: Print one JSON document.
        connection: Which database.
    """
    async with opened(connection.settings()) as database:
        found = await database.read(read_why, id, local_zone())
    print_json(_document(found)) if json else _print(found)
    return Exit.OK


def _document(found: Why) -> dict[str, Any]:
    rest = plain(found)
    chances = [{"text": chance.text, **plain(chance)} for chance in found.chances]
    causes = [plain(cause) | {"sight": cause.sight and cause.sight.command} for cause in found.causes]
    document = {"task": listed(found.task), "at": rest["at"], "verdict": found.verdict, "causes": causes}
    return document | {"would_start_if": chances}


def _print(found: Why) -> None:
    print_line(found.verdict, style="bold")
    width = max(NARROWEST, console().width - 1)
    for number, cause in enumerate(found.causes, 1):
        for line in textwrap.wrap(cause.text, width, initial_indent=f"  {number}. ", subsequent_indent="     "):
            print_line(line)
        if cause.advice:
            print_line(f"     -> {cause.advice}", style="dim")
        if cause.sight and cause.sight.command not in cause.advice:
            print_line(f"     look: {cause.sight.command}", style="dim")
    for line in textwrap.wrap(sentence(found.chances), width, initial_indent="  ", subsequent_indent="  "):
        print_line(line)
    for chance in found.chances:
        print_line(f"     -> {chance.commands}", style="dim")
