"""A change over shards: the preview of each shard, one confirmation, and the change in each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from runner.cli.exit_codes import Exit, print_stderr
from runner.cli.operation_output import (
    ResultDocument,
    ask,
    check_count,
    confirmed_text,
    demand_for,
    exit_code,
    print_reasons,
    require_reason,
)
from runner.cli.options import ChangeOptions, open_database
from runner.cli.output import NO_MATCH, print_json, print_line, print_table
from runner.cli.shard_totals import TOTAL, UNKNOWN
from runner.db.database import Database
from runner.errors import CountChanged, RunnerError
from runner.model.shard import CURRENT_SHARD
from runner.operations.results import Result
from runner.queries.counting import Count, total_of
from runner.settings import Settings
from runner.settings.shards import shard_settings
from runner.text.columns import Column

P = TypeVar("P")
T = TypeVar("T")


NUMBERS: tuple[Column[tuple[str, str, str]], ...] = (
    Column("SHARD", itemgetter(0), fixed=True),
    Column("MATCH", itemgetter(1), right=True, fixed=True),
    Column("WOULD CHANGE", itemgetter(2), right=True, fixed=True),
)


class ShardOutcome(NamedTuple):
    """The change in one shard.

    Args:
        failure: why no other shard may be changed; empty if they may.
    """

    result: Result
    failure: str = ""


class ShardMatches(NamedTuple):
    """The numbers of a preview.

    Args:
        total: the tasks, or changes, that match.
        eligible: the number of them that would change; --yes repeats the total.
    """

    total: Count
    eligible: Count


class ShardChanges(NamedTuple):
    """The numbers of a result.

    Args:
        stuck: the tasks whose rows could not be changed.
    """

    changed: int
    conflicts: int
    skipped: int
    stuck: int


class ShardChange(NamedTuple, Generic[P]):
    """A change that runs in each shard.

    Args:
        label: its verb.
        change_group: the id that its changes have in all shards.
        final: True if no undo exists.
        preview: previews it in a database.
        matching: the number of tasks, or changes, that a preview found.
        eligible: the number of them that would change.
        show: prints the rest of the previews.
        document: a preview for programs.
        apply: changes a database as previewed, at most a number of tasks; None for no limit.
        on_empty: prints hints about a filter that matches nothing.
    """

    label: str
    change_group: str
    final: bool
    preview: Callable[[Database], Awaitable[P]]
    matching: Callable[[P], Count]
    eligible: Callable[[P], Count]
    show: Callable[[Mapping[str, P]], None]
    document: Callable[[P], Any]
    apply: Callable[..., Awaitable[ShardOutcome]]
    on_empty: Callable[[Database], Awaitable[None]]


@dataclass(slots=True)
class ShardPreviews(Generic[P]):
    """The preview of each shard that answered, and the error of each other one.

    Args:
        broken_off: those of the latter that answered at first, and whose change has begun.
    """

    known: dict[str, P] = field(default_factory=dict)
    errors: dict[str, RunnerError] = field(default_factory=dict)
    broken_off: set[str] = field(default_factory=set)

    @property
    def shards(self) -> list[str]:
        """The names of all shards."""
        return [*self.known, *self.errors]


async def change_in_shards(change: ShardChange[Any], settings: Settings, how: ChangeOptions) -> int:
    """Preview, confirm and apply a change in each shard.

    A shard without an answer keeps no other one from the change. Its part is reported as not done.

    Args:
        settings: those of the profile that names the shards.

    Returns:
        The exit code: full, partial or no success.
    """
    shards = shard_settings(settings)
    previews = await _previews(change, shards)
    if how.dry_run:
        _print_previews(change, previews, how.limit, json=how.json)
        return _code_of(previews.errors)
    count = confirmed_text(total_of(_eligible(change, previews, how.limit).values()))
    if not previews.known or (count == "0" and (how.yes is None or not _matching(change, previews))):
        return await _print_unchanged(change, previews, shards, json=how.json)
    yes = how.yes
    if yes is None:
        _print_previews(change, previews, how.limit, json=False)
    require_reason(demand_for(count, settings), how.reason)
    if yes is None:
        yes = ask(count, demand_for(count, settings))
        previews = await _previews(change, shards)  # tasks may have changed since
        count = confirmed_text(total_of(_eligible(change, previews, how.limit).values()))
    try:
        check_count(count, yes)
    except CountChanged:
        _name_errors(previews.errors, "no answer, so its tasks do not count")
        raise
    return await _apply(change, previews, shards, how)


async def _previews(change: ShardChange[P], shards: Mapping[str, Settings]) -> ShardPreviews[P]:
    """Preview a change in all shards at the same time."""

    async def of_shard(name: str) -> P | RunnerError:
        try:
            return await _in_shard(name, shards[name], change.preview)
        except RunnerError as error:
            return error

    found = await asyncio.gather(*map(of_shard, shards))
    previews = ShardPreviews[P]()
    for name, each in zip(shards, found, strict=True):
        if isinstance(each, RunnerError):
            previews.errors[name] = each
        else:
            previews.known[name] = each
    return previews


async def _in_shard(name: str, settings: Settings, work: Callable[[Database], Awaitable[T]]) -> T:
    token = CURRENT_SHARD.set(name)
    try:
        async with open_database(settings) as database:
            return await work(database)
    finally:
        CURRENT_SHARD.reset(token)


def _matching(change: ShardChange[P], previews: ShardPreviews[P]) -> int:
    return sum(change.matching(each).number for each in previews.known.values())


def _eligible(change: ShardChange[P], previews: ShardPreviews[P], limit: int | None) -> dict[str, Count]:
    """The number of tasks that would change in each shard: a limit counts over one after another."""
    counts, rest = dict[str, Count](), limit
    for name, each in previews.known.items():
        counts[name] = change.eligible(each).at_most(rest)
        rest = None if rest is None else rest - counts[name].number
    return counts


def _code_of(errors: Mapping[str, RunnerError], otherwise: int = Exit.OK) -> int:
    return next((int(error.exit_code) for error in errors.values()), int(otherwise))


def _print_previews(change: ShardChange[P], previews: ShardPreviews[P], limit: int | None, *, json: bool) -> None:
    known, eligible = previews.known, _eligible(change, previews, limit)
    if json:
        figures = {name: ShardMatches(change.matching(each), eligible[name]) for name, each in known.items()}
        documents = {
            name: change.document(each)._replace(eligible=eligible[name].number) for name, each in known.items()
        }
        total = ShardMatches(*(total_of(each) for each in zip(*figures.values(), strict=True))) if known else None
        _print_document(documents, figures, total, previews)
        _name_errors(previews.errors, "nothing would be changed")
        return
    if not previews.errors and not _matching(change, previews):
        print_line(NO_MATCH)
        return
    print_line(f"{change.label}:", style="bold")
    rows = [(name, str(change.matching(each)), str(eligible[name])) for name, each in known.items()]
    rows += [(name, UNKNOWN, "?") for name in previews.errors]
    matching, would_change = total_of(map(change.matching, known.values())), total_of(eligible.values())
    print_table(NUMBERS, [*rows, (TOTAL, str(matching), str(would_change))])
    if previews.errors:
        print_line(f"The total is partial, without {', '.join(previews.errors)}.", style="bold")
    change.show(known)
    _name_errors(previews.errors, "nothing would be changed")


def _print_document(
    documents: Mapping[str, Any], figures: Mapping[str, Any], total: Any, previews: ShardPreviews[Any]
) -> None:
    """Print the document of each shard, and the totals as `runner stats` has them."""
    rows = [
        {
            "shard": name,
            "figures": figures.get(name),
            "error": str(previews.errors[name]) if name in previews.errors else None,
        }
        for name in previews.shards
    ]
    partial = bool(previews.errors)
    print_json(
        {
            "shards": {name: documents.get(name) for name in previews.shards},
            "totals": {"rows": rows, "total": total, "partial": partial},
        }
    )


def _name_errors(errors: Mapping[str, RunnerError], fate: str) -> None:
    for name, error in errors.items():
        print_stderr(f"runner: {name}: {fate}: {error}")


async def _print_unchanged(
    change: ShardChange[P], previews: ShardPreviews[P], shards: Mapping[str, Settings], *, json: bool
) -> int:
    """Report that no shard was changed: no task matches, no matching task allows it, or no shard answers."""
    matching = _matching(change, previews)
    if json:
        outcomes = {name: ShardOutcome(Result()) for name in previews.known}
        _print_results(change, outcomes, previews, json=True)
    elif previews.known:
        _print_previews(change, previews, None, json=False)
    if not json and not previews.known:
        _name_errors(previews.errors, "nothing was changed")
    if previews.known and not matching:
        first = next(iter(previews.known))
        await _in_shard(first, shards[first], change.on_empty)
    return _code_of(previews.errors, Exit.CONFLICT if matching else Exit.OK)


async def _apply(
    change: ShardChange[P], previews: ShardPreviews[P], shards: Mapping[str, Settings], how: ChangeOptions
) -> int:
    """Change each shard that was previewed, one after another, and report each of them, also after an interrupt."""
    outcomes: dict[str, ShardOutcome] = {}
    left = ShardPreviews(dict(previews.known), dict(previews.errors))
    limit, failed = how.limit, ""
    try:
        for name, preview in previews.known.items():
            if failed or limit == 0:
                outcomes[name] = ShardOutcome(Result())
                continue
            try:
                work = partial(change.apply, preview=preview, limit=limit)
                outcomes[name] = await _in_shard(name, shards[name], work)
            except RunnerError as error:
                del left.known[name]
                left.errors[name] = error
                left.broken_off.add(name)
                continue
            if limit is not None:
                limit -= len(outcomes[name].result.changed)
            failed = name if outcomes[name].failure else ""
    finally:
        code = _print_results(change, outcomes, left, json=how.json)
    if not failed:
        return code
    untouched = [name for name, outcome in outcomes.items() if not outcome.result.changed]
    end = f"; nothing was changed in {', '.join(untouched)}" if untouched else ""
    print_stderr(f"{failed}: {outcomes[failed].failure}{end}")
    return int(Exit.PARTIAL)


def _print_results(
    change: ShardChange[P], outcomes: Mapping[str, ShardOutcome], left: ShardPreviews[P], *, json: bool
) -> int:
    """Print the result of each shard and their total; return the exit code."""
    total = Result()
    for name, outcome in outcomes.items():
        total.add(outcome.result.in_shard(name))
    if json:
        documents = {
            name: ResultDocument(change.label, outcome.result, change.change_group if outcome.result.changed else None)
            for name, outcome in outcomes.items()
        }
        figures = {name: _figures(outcome.result) for name, outcome in outcomes.items()}
        _print_document(documents, figures, _figures(total) if outcomes else None, left)
    else:
        for name in left.known:
            print_line(f"{name}: {outcomes[name].result if name in outcomes else 'not begun'}")
        for name in left.errors:
            print_line(f"{name}: {'broken off' if name in left.broken_off else 'nothing changed'}")
        undo = f"; undo with: runner undo --group {change.change_group}" if total.changed and not change.final else ""
        partial_total = f", without {', '.join(left.errors)}" if left.errors else ""
        print_line(f"{change.label}: {total}{partial_total}{undo}")
    for name, error in left.errors.items():
        listing = f"some of it may be changed; see runner audit --group {change.change_group} --profile {name}"
        print_stderr(f"runner: {name}: {listing if name in left.broken_off else 'nothing was changed'}: {error}")
    print_reasons(total)
    if left.errors:
        return int(Exit.PARTIAL) if total.changed else _code_of(left.errors)
    return exit_code(total)


def _figures(result: Result) -> ShardChanges:
    return ShardChanges(*(len(getattr(result, name)) for name in ShardChanges._fields))
