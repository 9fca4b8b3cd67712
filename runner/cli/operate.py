"""Change of tasks by a command: the targets, the confirmation, and the report."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import (
    ProgressLine,
    ask,
    check_count,
    confirmed_text,
    demand_for,
    eligible,
    preview_document,
    print_preview,
    print_result,
    print_script,
    print_shard_previews,
    require_reason,
    select_targets,
    undo_command,
)
from runner.cli.options import ChangeOptions, Connection, open_database, read_targets, warn_of_names
from runner.cli.output import NO_MATCH
from runner.cli.shard_changes import ShardChange, ShardOutcome, change_in_shards
from runner.db.database import Database
from runner.db.transaction import clock
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.model.shard import CURRENT_SHARD
from runner.operations.bulk import BulkOptions, to_all, to_each
from runner.operations.canary import canary as apply_canary
from runner.operations.preview import NO_VALUES, Objections, Preview, bounded
from runner.operations.preview import preview as apply_preview
from runner.operations.results import Actor, Result, Target, local_actor, with_change_group
from runner.queries.counting import Count
from runner.queries.failures import fails_now
from runner.settings import Settings
from runner.text import formatting
from runner.text.sanitize import count_noun, one_line

if TYPE_CHECKING:
    from datetime import datetime

Targets = Annotated[str, Parameter(name="TASKS")]


async def change_named(
    change: "Change",
    words: Sequence[str],
    options: ChangeOptions,
    connection: Connection,
) -> int:
    """Change the tasks that the words name, after a confirmation."""
    targets, settings = read_targets(words), connection.settings()
    if isinstance(targets, Filter) and works_in_shards(settings, options):
        return await change_matching_in_shards(change, targets, options, settings)
    async with open_database(settings) as database:
        return await change_targets(database, change, targets, options, settings)


def works_in_shards(settings: Settings, options: ChangeOptions) -> bool:
    """True if a change by a filter runs in each shard of a profile; SQL is for one database."""
    return bool(settings.shards) and settings.shard is None and not options.sql


async def change_matching_in_shards(
    change: "Change", targets: Filter, options: ChangeOptions, settings: Settings
) -> int:
    """Preview, confirm and apply an operation on the tasks of all shards that match a filter."""
    _check_limit(options)
    label, by = formatting.verb(change.verb), with_change_group(local_actor(options.reason))
    hinted = change.verb != "retry_now" or change.canary
    changes: dict[str | None, Change] = {}  # of each shard: its clock decides when +10m is

    async def previewed(database: Database) -> Preview:
        nonlocal hinted
        if not hinted:
            hinted = await _suggest_canary(database, targets)
        own = change if change.at is None else change.at(await database.read(clock))
        changes[CURRENT_SHARD.get()] = own
        return await own.preview(database, targets)

    async def apply(database: Database, preview: Preview, limit: int | None) -> ShardOutcome:
        own, most = bounded(targets, preview.newest), None if preview.total.more else preview.eligible
        return await _execute(database, changes[CURRENT_SHARD.get()], own, by, _fewest(most, limit))

    work = ShardChange(
        label,
        by.change_group or "",
        change.final,
        previewed,
        matching=lambda preview: preview.total,
        eligible=lambda preview: Count(preview.eligible, preview.total.more),
        show=print_shard_previews,
        document=preview_document,
        apply=apply,
        on_empty=partial(warn_of_names, task_filter=targets),
    )
    return await change_in_shards(work, settings, options)


class Change(NamedTuple):
    """An operation on tasks.

    Args:
        verb: a key of targets.ACCEPTED_STATES.
        function: the operation, which lacks its targets and its author.
        values: the validated values of an edit.
        canary: apply it in stages.
        final: True if no undo exists.
        objections: returns further reasons why tasks would not change, by id; None without any.
        at: returns the change at the time of a database, in place of this one; None if it does not depend on the time.
    """

    verb: str
    function: Callable[..., Awaitable[Result]]
    values: Mapping[str, Any] = NO_VALUES
    canary: bool = False
    final: bool = False
    objections: Objections | None = None
    at: "Callable[[datetime], Change] | None" = None

    async def preview(self, database: Database, targets: list[int] | Filter) -> Preview:
        """Preview the operation."""
        if isinstance(targets, list):
            one = Term("id", Operator.EQ, targets[0])
            targets = Filter((one if len(targets) == 1 else Term("id", Operator.IN, tuple(targets)),))
        return await database.read(apply_preview, targets, self.verb, values=self.values, objections=self.objections)


async def change_targets(
    database: Database, change: Change, targets: list[int] | Filter, options: ChangeOptions, settings: Settings
) -> int:
    """Preview, confirm and apply an operation on tasks.

    Args:
        targets: the ids of the tasks, or a filter.
    """
    _check_limit(options)
    if change.verb == "retry_now" and not change.canary and isinstance(targets, Filter):
        await _suggest_canary(database, targets)
    if options.dry_run:
        print_preview(await _previewed(database, change, targets), json=options.json, limit=options.limit)
        return Exit.OK
    if options.sql:
        await _print_script(database, change.function, targets, options)
        return Exit.OK
    if isinstance(targets, Filter):
        preview = await _previewed(database, change, targets)
        if not _is_applicable(preview, options):
            return _print_unchanged(preview, options)
        targets, limit = await _confirmed(database, change, targets, preview, options, settings)
    else:
        limit = len(targets)
    by, label = _actor(options, limit), formatting.verb(change.verb)
    result, failure = await _execute(database, change, targets, by, _fewest(limit, options.limit))
    undo = "" if change.final else await undo_command(database, result, by.change_group)
    code = print_result(label, result, json=options.json, change_group=by.change_group, undo=undo)
    if failure:
        print_stderr(failure)
    return Exit.PARTIAL if failure else code


def _check_limit(options: ChangeOptions) -> None:
    if options.limit is not None and options.limit < 1:
        raise InvalidInput(why=f"--limit must be at least 1, not {options.limit}")


def _fewest(*numbers: int | None) -> int | None:
    """The lowest of some limits; None without one."""
    return min((number for number in numbers if number is not None), default=None)


async def _suggest_canary(database: Database, targets: Filter) -> bool:
    """Warn of a cause that still fails: all of its tasks would probably spend another attempt; False without one."""
    seconds = await database.read(fails_now, targets)
    if seconds is not None:
        text = "--canary retries 1 task first, then 10, then 100, and stops at the first failure"
        print_stderr(f"this cause failed {formatting.age(seconds)} ago; {text}")
    return seconds is not None


def _actor(options: ChangeOptions, tasks: int | None) -> Actor:
    """The operator, with a change group for several tasks or an unknown number."""
    by = local_actor(options.reason)
    return by if tasks == 1 else with_change_group(by)


async def _previewed(database: Database, change: Change, targets: list[int] | Filter) -> Preview:
    preview = await change.preview(database, targets)
    if isinstance(targets, Filter) and preview.total.number == 0:
        await warn_of_names(database, targets)
    return preview


def _is_applicable(preview: Preview, options: ChangeOptions) -> bool:
    """False if there is nothing to change and therefore nothing to confirm."""
    is_confirmed = preview.total.number > 0 and options.yes is not None
    return preview.eligible > 0 or preview.total.more or is_confirmed


def _print_unchanged(preview: Preview, options: ChangeOptions) -> int:
    """Report that nothing changed: no task matches, or no matching task allows the operation."""
    if options.json:
        print_result(formatting.verb(preview.verb), Result(), json=True)
        for why, count in preview.skipped.items():
            print_stderr(f"{count:,} skipped: {why}")
    else:
        print_preview(preview, json=False)
    return Exit.CONFLICT if preview.total.number else Exit.OK


async def _print_script(
    database: Database,
    function: Callable[..., Awaitable[Result]],
    targets: list[int] | Filter,
    options: ChangeOptions,
) -> None:
    tasks = await select_targets(database, targets) if isinstance(targets, Filter) else [Target(id) for id in targets]
    if not tasks:
        print(f"-- {NO_MATCH}")
        if isinstance(targets, Filter):
            await warn_of_names(database, targets)
        return
    by = _actor(options, len(tasks))
    await print_script(database, partial(function, by=by), tasks[: options.limit])


async def _confirmed(
    database: Database,
    change: Change,
    task_filter: Filter,
    preview: Preview,
    options: ChangeOptions,
    settings: Settings,
) -> tuple[Filter, int | None]:
    """The filter bounded to the previewed tasks, and their number; None if the count stopped at its cap."""
    yes, count = options.yes, confirmed_text(eligible(preview, options.limit))
    demanded = demand_for(count, settings)
    if yes is None:
        print_preview(preview, json=False, limit=options.limit)
    require_reason(demanded, options.reason)
    if yes is None:
        yes = ask(count, demanded)
        preview = await change.preview(database, task_filter)  # tasks may have changed since
    check_count(confirmed_text(eligible(preview, options.limit)), yes)
    return bounded(task_filter, preview.newest), None if preview.total.more else preview.eligible


async def _execute(
    database: Database, change: Change, targets: list[int] | Filter, by: Actor, limit: int | None
) -> ShardOutcome:
    """Change chunk by chunk, and no more tasks than were confirmed, even if more match by now.

    A canary stops at the first failure.
    """
    operation, is_canary = partial(change.function, by=by), change.canary and isinstance(targets, Filter)
    progress = ProgressLine("canary" if is_canary else formatting.verb(change.verb), limit)
    bulk_options = BulkOptions(limit=limit, on_progress=progress.show)
    try:
        if isinstance(targets, list):
            return ShardOutcome(await to_each(database, operation, [Target(id) for id in targets], bulk_options))
        if not change.canary:
            return ShardOutcome(await to_all(database, operation, targets, bulk_options))
        canary = await apply_canary(database, operation, by, targets, bulk_options, progress.wait)
        return ShardOutcome(canary.result, one_line(canary.failure or ""))
    except asyncio.CancelledError:
        print_stderr(f"stopped: {count_noun(progress.done, 'task')} changed")
        raise
    finally:
        progress.end()
