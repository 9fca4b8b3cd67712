"""The dialog of an operation on the command line: preview, confirmation, progress, result and SQL."""

import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.output import NO_MATCH, print_json, print_line, print_table
from runner.cli.tasks import shard_task_columns, task_columns
from runner.db.database import Database
from runner.errors import CountChanged, InvalidInput, NoSqlEquivalent, NotConfirmed, StoreError
from runner.filter.parse import Filter
from runner.model.task import Shown
from runner.operations.bulk import Operation
from runner.operations.bulk import matching as apply_matching
from runner.operations.preview import Preview
from runner.operations.results import Result, Target, local_actor
from runner.operations.sql_export import MOST_SCRIPTED, script
from runner.operations.targets import LAST, MANY, MISSING, RequiredConfirmation, required_confirmation
from runner.queries.audit import audit
from runner.queries.counting import Count
from runner.queries.fate import GroupFate
from runner.queries.task_list.row import TaskRow
from runner.queries.task_list.shard_page import ShardTask
from runner.settings import Settings
from runner.text import formatting
from runner.text.columns import Column, figure, thousands
from runner.text.document import Flat
from runner.text.operator import now

GROUPS: tuple[Column[tuple[tuple[Shown, str], int]], ...] = (
    Column("STATE", lambda group: group[0][0], formatting.state, fixed=True),
    Column("QUEUE", lambda group: group[0][1]),
    figure("TASKS", lambda group: group[1], thousands),
)


def eligible(preview: Preview, limit: int | None) -> Count:
    """The number of tasks that would change: at most a limit, None for no limit."""
    return Count(preview.eligible, preview.total.more).at_most(limit)


def confirmed_text(count: Count) -> str:
    """The number that --yes repeats: `57`, or `10000+` at the cap."""
    return f"{count.number}{'+' if count.more else ''}"


class PreviewGroup(NamedTuple):
    """The tasks of a preview with one displayed state in one queue."""

    shown: Shown
    queue: str
    tasks: int


class SkippedGroup(NamedTuple):
    """The tasks, or changes, to which an operation does not apply for one reason."""

    why: str
    number: int


class PreviewDocument(NamedTuple):
    """The preview of an operation.

    Args:
        total: the tasks that match.
        eligible: the tasks that would change, at most --limit; --yes repeats this number.
        last: the tasks whose last attempt it would be.
        samples: some of the tasks that would change.
    """

    verb: str
    total: Count
    eligible: int
    groups: list[PreviewGroup]
    skipped: list[SkippedGroup]
    last: int
    samples: list[TaskRow]


class ResultDocument(NamedTuple):
    """The result of an operation.

    Args:
        change_group: the id for `runner undo --group`; None for a single change, and if nothing changed.
    """

    verb: str
    result: Annotated[Result, Flat()]
    change_group: str | None


CHANGE_DOCUMENTS = (PreviewDocument, ResultDocument)
"""The documents of an operation on tasks."""


def skipped_groups(numbers: Mapping[str, int]) -> list[SkippedGroup]:
    """The reasons of a preview, with the number of tasks or changes of each."""
    return [SkippedGroup(*item) for item in numbers.items()]


def preview_document(preview: Preview, limit: int | None = None) -> PreviewDocument:
    """A preview for programs; see `print_preview`."""
    groups = [PreviewGroup(shown, queue, count) for (shown, queue), count in preview.groups.items()]
    numbers = (groups, skipped_groups(preview.skipped), preview.last)
    would_change = eligible(preview, limit).number
    return PreviewDocument(formatting.verb(preview.verb), preview.total, would_change, *numbers, preview.samples)


def print_preview(preview: Preview, *, json: bool, limit: int | None = None) -> None:
    """Print a preview.

    Args:
        limit: the number of tasks that the operation changes at most; None without a limit.
    """
    if json:
        print_json(preview_document(preview, limit))
        return
    if not preview.total.number and not preview.total.more:
        print_line(NO_MATCH)
        return
    match = "task matches" if str(preview.total) == "1" else "tasks match"
    every, count = (confirmed_text(eligible(preview, each)) for each in (None, limit))
    newest = f": --limit takes the newest of {every}" if count != every else ""
    title = f"{formatting.verb(preview.verb)}: {preview.total} {match}, {count} would change{newest}"
    print_line(title, style="bold")
    _print_groups(preview.groups, preview.skipped, preview.last)
    if preview.samples:
        print_line("examples:")
        print_table(task_columns(now()), preview.samples)


def _print_groups(groups: Mapping[tuple[Shown, str], int], skipped: Mapping[str, int], last: int) -> None:
    if groups:
        print_table(GROUPS, groups.items())
    for why, count in skipped.items():
        print_line(f"{count:,} skipped: {why}")
    if last:
        print_line(f"{last:,} {LAST}")


def print_shard_previews(previews: Mapping[str, Preview]) -> None:
    """Print the groups of the previews of all shards as one, and examples of each."""
    groups, skipped = Counter[tuple[Shown, str]](), Counter[str]()
    for preview in previews.values():
        groups.update(preview.groups)
        skipped.update(preview.skipped)
    last = sum(preview.last for preview in previews.values())
    _print_groups(dict(groups.most_common()), dict(skipped.most_common()), last)
    if samples := [ShardTask(shard, row) for shard, preview in previews.items() for row in preview.samples]:
        print_line("examples:")
        print_table(shard_task_columns(now()), samples)


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

    Returns:
        The confirmed count.

    Raises:
        NotConfirmed: the answer was another one.
        InvalidInput: the input is not a terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(why=f"nothing was changed; confirm with --yes {count}")
    print_stderr(f"Type {demanded.word} to continue, anything else to cancel.")
    if sys.stdin.readline().strip().lower() != demanded.word.lower():
        raise NotConfirmed
    return count


def check_count(count: str, yes: str) -> None:
    """Check that the confirmed count is still right.

    Raises:
        CountChanged: another number of tasks would change now.
    """
    if yes.replace(",", "") != count:
        raise CountChanged(found=count, confirmed=yes)


MAX_LINES = 50
"""Skipped tasks listed at most."""


async def undo_command(database: Database, result: Result, change_group: str | None = None) -> str:
    """Return the command that undoes an operation; empty if nothing was changed.

    Args:
        change_group: id of the change group; None for a single change.
    """
    if change_group is not None or not result.changed:
        return f"runner undo --group {change_group}" if result.changed else ""
    operator, host, *_ = local_actor(None)
    with suppress(StoreError):  # the change is done; an operator may lack the right to read the audit
        entries = await database.read(audit, task_id=result.changed[0], limit=1, operator=operator)
        return " ".join(["runner undo", *(str(entry.id) for entry in entries if entry.host == host)])
    return "runner undo"


def print_result(verb: str, result: Result, *, json: bool, change_group: str | None = None, undo: str = "") -> int:
    """Print the result of an operation.

    Args:
        result: the tasks it changed and skipped.
        json: print one JSON document instead of text.
        change_group: id of the change group; None for a single change.
        undo: the command that undoes it; empty for none.

    Returns:
        The exit code: full, partial or no success.
    """
    if json:
        print_json(ResultDocument(verb, result, change_group if result.changed else None))
    else:
        print_line(f"{verb}: {result}{f'; undo with: {undo}' if undo else ''}")
    print_reasons(result)
    return exit_code(result)


def print_reasons(result: Result) -> None:
    """Print why tasks were not changed."""
    lines = result.reasons()
    for line in lines[:MAX_LINES]:
        print_stderr(line)
    if len(lines) > MAX_LINES:
        print_stderr(f"and {len(lines) - MAX_LINES:,} more skipped")


def exit_code(result: Result) -> int:
    """The exit code of an operation."""
    if not (result.conflicts or result.skipped or result.stuck):
        return Exit.OK
    if result.changed:
        return Exit.PARTIAL
    missing = not (result.conflicts or result.stuck) and all(skipped.why == MISSING for skipped in result.skipped)
    return Exit.NOT_FOUND if missing else Exit.CONFLICT


PERIOD = 0.5
"""Seconds between two updates; shorter work shows no line."""


class ProgressLine:
    """The progress of an operation on many tasks. It is silent unless standard error is a terminal.

    Args:
        total: number of tasks to change; None if the count stopped at its cap.
    """

    def __init__(self, label: str, total: int | None) -> None:
        self.label = label
        self.total = total
        self.done = 0
        self._started_at = self._updated_at = time.monotonic()
        self._is_drawn = False

    def show(self, result: Result) -> None:
        """Update the line, at most once per PERIOD."""
        self.done, now = len(result.changed), time.monotonic()
        if now - self._updated_at >= PERIOD and sys.stderr.isatty():
            self._updated_at, self._is_drawn = now, True
            text = formatting.progress(self.done, self.total, now - self._started_at)
            print(f"\r\x1b[K{self.label}: {text}; ctrl-c to stop", end="", file=sys.stderr, flush=True)

    def wait(self, fate: GroupFate) -> None:
        """Show the tasks that the next stage of a canary waits for."""
        now = time.monotonic()
        if fate.pending and now - self._updated_at >= PERIOD and sys.stderr.isatty():
            self._updated_at, self._is_drawn = now, True
            text = f"{self.done:,} changed, waiting for {len(fate.pending):,} of them; ctrl-c to stop"
            print(f"\r\x1b[K{self.label}: {text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._is_drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


async def print_script(database: Database, operation: Operation, targets: list[Target]) -> None:
    """Print SQL that applies an operation to tasks; the output is safe for a terminal.

    Raises:
        NoSqlEquivalent: the operation has no SQL equivalent.
    """
    print(await database.write(script, operation, targets), end="")


async def select_targets(database: Database, task_filter: Filter) -> list[Target]:
    """The tasks that match a filter, if they are few enough for a script.

    Raises:
        NoSqlEquivalent: too many tasks match.
    """
    matching = await database.read(apply_matching, task_filter, MOST_SCRIPTED)
    if matching.next is not None:
        why = f"a script covers at most {MOST_SCRIPTED} tasks; narrow the filter, or run the command without --sql"
        raise NoSqlEquivalent(why=why)
    return matching.targets
