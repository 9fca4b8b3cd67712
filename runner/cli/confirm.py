"""Preview and confirmation of a change of many tasks."""

import sys
from typing import Any

from runner.cli.exit_codes import print_stderr
from runner.cli.output import NO_MATCH, TableColumn, print_json, print_line, print_table
from runner.cli.tasks import COLUMNS, task_cells, task_document
from runner.errors import CountChanged, InvalidInput
from runner.operations.eligibility import LAST
from runner.operations.preview import Preview
from runner.policy.confirmation import MANY, RequiredConfirmation, required_confirmation
from runner.settings import Settings
from runner.text import formatting
from runner.text.operator import now

GROUPS = (TableColumn("STATE", no_wrap=True), TableColumn("QUEUE"), TableColumn("TASKS", right=True, no_wrap=True))


def eligible_count(preview: Preview) -> str:
    """The number of tasks that would change, as --yes expects it: `57`, or `10000+` at the cap."""
    return f"{preview.eligible}{'+' if preview.total.more else ''}"


def document(preview: Preview) -> dict[str, Any]:
    """A preview as a JSON object."""
    return {
        "verb": formatting.verb(preview.verb),
        "total": preview.total,
        "eligible": preview.eligible,
        "groups": [
            {"shown": shown, "queue": queue, "tasks": count} for (shown, queue), count in preview.groups.items()
        ],
        "skipped": [{"why": why, "tasks": count} for why, count in preview.skipped.items()],
        "last": preview.last,
        "samples": [task_document(task) for task in preview.samples],
    }


def print_preview(preview: Preview, *, json: bool) -> None:
    """Print a preview."""
    if json:
        print_json(document(preview))
        return
    if not preview.total.number and not preview.total.more:
        print_line(NO_MATCH)
        return
    match = "task matches" if str(preview.total) == "1" else "tasks match"
    title = f"{formatting.verb(preview.verb)}: {preview.total} {match}, {eligible_count(preview)} would change"
    print_line(title, style="bold")
    groups = [[formatting.state(shown), queue, f"{count:,}"] for (shown, queue), count in preview.groups.items()]
    if groups:
        print_table(GROUPS, groups)
    for why, count in preview.skipped.items():
        print_line(f"{count:,} skipped: {why}")
    if preview.last:
        print_line(f"{preview.last:,} {LAST}")
    if preview.samples:
        print_line("examples:")
        print_table(COLUMNS, [task_cells(task, now()) for task in preview.samples])


def demand_for(count: str, settings: Settings) -> RequiredConfirmation:
    """The confirmation required to change this many tasks."""
    number = MANY + 1 if count.endswith("+") else int(count)
    return required_confirmation(number, production=settings.production, name=settings.called)


def require_reason(demanded: RequiredConfirmation, reason: str | None) -> None:
    """Check that there is a reason if one is required.

    Raises:
        InvalidInput: the reason is missing.
    """
    if demanded.reason and not reason:
        why = f"changes on production, or of more than {MANY:,} tasks, need a reason: --reason '...'"
        raise InvalidInput(why=why)


def ask(count: str, demanded: RequiredConfirmation) -> str:
    """Ask for confirmation at the terminal.

    Args:
        count: number of tasks that would change.
        demanded: the word to type.

    Returns:
        The confirmed count.

    Raises:
        InvalidInput: the answer was no, or the input is not a terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was changed; confirm with --yes {count}")
    print_stderr(f"Type {demanded.word} to continue, anything else to cancel.")
    if sys.stdin.readline().strip().lower() != demanded.word.lower():
        raise InvalidInput(why="not confirmed; nothing was changed")
    return count


def check_count(count: str, yes: str) -> None:
    """Check that the confirmed count is still right.

    Raises:
        CountChanged: another number of tasks would change now.
    """
    if yes.replace(",", "") != count:
        raise CountChanged(found=count, confirmed=yes)
