"""Before many tasks are changed: what it would touch, and whether that is meant."""

import sys
from typing import Any

from runner.cli.ending import complain
from runner.cli.printing import Column, print_json, print_line, print_table
from runner.cli.tasks import COLUMNS, listed, row
from runner.errors import CountChanged, InvalidInput
from runner.people import cells
from runner.people.person import now
from runner.policy.consent import MANY, Demand, demand
from runner.settings import Settings
from runner.store.intervene import LAST, Preview

GROUPS = (Column("STATE", whole=True), Column("QUEUE"), Column("TASKS", right=True, whole=True))


def number(seen: Preview) -> str:
    """How many tasks would be changed: what has to be confirmed."""
    return f"{seen.eligible}{'+' if seen.total.more else ''}"


def document(seen: Preview) -> dict[str, Any]:
    """A preview for JSON."""
    return {
        "verb": cells.verb(seen.verb),
        "total": seen.total,
        "eligible": seen.eligible,
        "groups": [{"shown": shown, "queue": queue, "tasks": count} for (shown, queue), count in seen.groups.items()],
        "skipped": [{"why": why, "tasks": count} for why, count in seen.skipped.items()],
        "last": seen.last,
        "samples": [listed(task) for task in seen.samples],
    }


def show(seen: Preview, *, json: bool) -> None:
    """Print a preview."""
    if json:
        print_json(document(seen))
        return
    match = "task matches" if str(seen.total) == "1" else "tasks match"
    print_line(f"{cells.verb(seen.verb)}: {seen.total} {match}, {number(seen)} would be changed", style="bold")
    groups = [[cells.state(shown), queue, f"{count:,}"] for (shown, queue), count in seen.groups.items()]
    if groups:
        print_table(GROUPS, groups)
    for why, count in seen.skipped.items():
        print_line(f"{count:,} would be left alone: {why}")
    if seen.last:
        print_line(f"{seen.last:,} {LAST}")
    if seen.samples:
        print_line("for example:")
        print_table(COLUMNS, [row(task, now()) for task in seen.samples])


def demanded(number: str, settings: Settings) -> Demand:
    """What has to be said before so many tasks are changed."""
    count = MANY + 1 if number.endswith("+") else int(number)
    return demand(count, production=settings.production, name=settings.called)


def need_reason(wanted: Demand, reason: str | None) -> None:
    """Make sure that there is a reason where one is needed.

    Raises:
        InvalidInput: there is none.
    """
    if wanted.reason and not reason:
        why = f"on production, as for more than {MANY:,} tasks, a change needs a reason: --reason '...'"
        raise InvalidInput(why=why)


def ask(number: str, wanted: Demand) -> str:
    """Ask the person at the terminal whether what was shown is meant.

    Args:
        number: of tasks that would be changed.
        wanted: what has to be typed.

    Returns:
        The number of tasks that was confirmed.

    Raises:
        InvalidInput: nobody can be asked, or the answer was no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was done; to do it, say --yes {number}")
    complain(f"Type {wanted.word} to go on, anything else to leave all as it is.")
    if sys.stdin.readline().strip().lower() != wanted.word.lower():
        raise InvalidInput(why="nothing was done, as it was not confirmed")
    return number


def confirm(number: str, yes: str) -> None:
    """Make sure that as many tasks would be changed as were confirmed.

    Raises:
        CountChanged: it would be another number by now.
    """
    if yes.replace(",", "") != number:
        raise CountChanged(found=number, confirmed=yes)
