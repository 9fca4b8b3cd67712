"""`runner why`: the reasons why a task, or many tasks, are not running."""

import textwrap
from typing import Annotated

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_targets, warn_of_names
from runner.cli.output import NO_MATCH, console, print_json, print_line, print_table
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.past.as_of import read_moment
from runner.queries.why.many import EXAMINED, CauseGroup, WhyMany, why_many
from runner.queries.why.remedies import sentence
from runner.queries.why.why import Why, why_as_of
from runner.queries.why.why import why as read_why
from runner.text.columns import Column, figure, thousands
from runner.text.operator import local_zone
from runner.text.sanitize import count_noun

MIN_WIDTH = 40
"""Columns for a sentence, even on a narrower terminal."""


MOST_EXAMINED = 100_000


MOST_CAUSES = 20
"""Causes to print; --json prints all."""


COLUMNS: tuple[Column[CauseGroup], ...] = (
    figure("TASKS", lambda group: group.tasks, thousands),
    Column("CAUSE", lambda group: group.phrase),
    figure("EXAMPLE", lambda group: group.example),
    Column("CHANGE", lambda group: group.advice),
)


DOCUMENTS = (Why, WhyMany)


async def why(
    *words: Annotated[str, Parameter(name="TASKS")],
    limit: int = EXAMINED,
    at: str | None = None,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Explain why a task is not running, or why many are not.

    For one id, prints one sentence per cause, the decisive one first, with a
    remedy. The causes come from the rules that runners claim by.

    For a filter, counts its waiting and blocked tasks by their decisive cause, and
    names the change that frees most of them:

      runner why queue:mail
      runner why 'handler:smtp.* state:waiting'

    Args:
        words: The id of a task, several ids, or a filter.
        limit: Maximum number of tasks to examine, in the order of their due times.
        at: Explain one task as it was at a past time: 03:12, yesterday 03:12, 20m.
        json: Print one JSON document.
        connection: The database.
    """
    targets = read_targets(words)
    if not 1 <= limit <= MOST_EXAMINED:
        raise InvalidInput(why=f"--limit must be between 1 and {MOST_EXAMINED:,}, not {limit}")
    if at is not None and (isinstance(targets, Filter) or len(targets) != 1):
        raise InvalidInput(why="--at explains one task; name its id: runner why 123 --at 03:12")
    zone = local_zone()
    async with open_database(connection.settings()) as database:
        if isinstance(targets, list) and len(targets) == 1:
            if at is not None:
                explanation = await database.read(
                    why_as_of, targets[0], await database.read(read_moment, at, zone), zone
                )
            else:
                explanation = await database.read(read_why, targets[0], zone)
            print_json(explanation) if json else _print_why(explanation)
            return Exit.OK
        task_filter = targets if isinstance(targets, Filter) else Filter((Term("id", Operator.IN, tuple(targets)),))
        answer = await database.read(why_many, task_filter, zone, limit)
        if not answer.causes:
            await warn_of_names(database, task_filter)
    print_json(answer) if json else _print_many(answer)
    return Exit.OK


def _print_many(answer: WhyMany) -> None:
    if not answer.causes:
        print_line(f"{NO_MATCH} Only waiting and blocked tasks are examined.")
        return
    print_line(answer.verdict, style="bold")
    groups, rest = answer.causes[:MOST_CAUSES], answer.causes[MOST_CAUSES:]
    print_table(COLUMNS, groups)
    if rest:
        tasks = sum(group.tasks for group in rest)
        print_line(f"and {len(rest)} more causes of {count_noun(tasks, 'task')}; --json lists them", style="dim")
    if answer.frees_most is not None:
        print_line(f"-> {answer.frees_most.command} frees {answer.frees_most.freed:,}", style="bold")


def _print_why(explanation: Why) -> None:
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
