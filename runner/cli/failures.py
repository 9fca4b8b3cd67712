"""`runner failures`: failed attempts by cause."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

from cyclopts import Parameter

from runner.cli.exit_codes import Exit
from runner.cli.options import DEFAULT_CONNECTION, Connection, open_database, read_filter, warn_of_names
from runner.cli.output import note_model, print_block, print_json, print_line, print_table, print_title
from runner.cli.shard_list import ShardList, Unlisted, errors_of, print_partial
from runner.db.transaction import Transaction, clock
from runner.errors import InvalidInput
from runner.filter.fields import Operator
from runner.filter.parse import Filter, Term
from runner.queries.contrast import Contrast
from runner.queries.contrast import contrast as read_contrast
from runner.queries.counting import Count
from runner.queries.failures import FailureChange, Failures, beginnings, by_rise, changes_of, trends
from runner.queries.failures import failures as read_failures
from runner.queries.shard_failures import counts_by_shard, merged_changes, merged_failures, shards_text
from runner.text import formatting
from runner.text.columns import Column, figure
from runner.text.document import Flat
from runner.text.redact import mask
from runner.text.sanitize import count_noun, one_line

DAY = timedelta(days=1)


MAX_LIMIT = 1_000
"""Groups per call."""


class FailureList(NamedTuple):
    """The failure groups of the attempts that match a filter.

    Args:
        failures: the groups, the one whose rate has risen most above its usual one first.
        changes: the rate of each group against its usual one, by fingerprint.
        contrasts: the values that the failures of a group have and successes of its handler have not, by fingerprint;
            empty without --contrast.
    """

    filter: str
    failures: list[Failures]
    at: datetime
    changes: dict[str, FailureChange]
    contrasts: dict[str, Contrast]


class ListedFailures(NamedTuple):
    """The failure groups, for the list over shards."""

    list: FailureList
    limit: int
    traceback: bool


class ShardFailures(NamedTuple):
    """A failure group of a list over shards.

    Args:
        shards: the number of attempts in each shard.
        group: their sum; the example is the attempt that failed last.
    """

    shards: Mapping[str, Count]
    group: Annotated[Failures, Flat()]


class ShardFailureList(NamedTuple):
    """The failure groups of several shards; one cause in several shards is one group.

    Args:
        at: the latest time of the databases.
        contrasts: by fingerprint, each from the shard with the most of its attempts.
        partial: True if a shard has not answered.
        errors: the error of each shard that has not answered.
    """

    filter: str
    failures: list[ShardFailures]
    at: datetime
    changes: dict[str, FailureChange]
    contrasts: dict[str, Contrast]
    partial: bool
    errors: Mapping[str, str]


DOCUMENTS = (FailureList, ShardFailureList)


async def failures(
    *words: Annotated[str, Parameter(name="FILTER")],
    limit: int = 50,
    traceback: bool = False,
    contrast: bool = False,
    json: bool = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> int:
    """Group failed attempts by cause, the largest rise of the rate first.

    Numbers, ids and quoted values in messages are masked. Without since: the
    filter covers the last day, and at most the last 20,000 attempts (shown as 57+).
    NOW/m is the rate per minute over the last two minutes, WAS/m the usual one.
    BEGAN is the time since the first stored attempt, new in its first hour.
    GROUP works in filters: runner tasks failure:GROUP, runner retry failure:GROUP.

    Fields: id queue handler error failure host runner attempts since until.

    Args:
        words: The filter on attempts; none matches all.
        limit: Maximum number of groups.
        traceback: Show the last traceback of each group.
        contrast: Compare versions, hosts, tenants and arguments of the failures of
            each group with the latest successes of its handler.
        json: Print one JSON document.
        connection: The database.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidInput(why=f"--limit must be between 1 and {MAX_LIMIT}, not {limit}")
    attempts = read_filter(words)
    async with open_database(connection.settings()) as database:
        at = await database.read(clock)
        attempts = _recent(attempts, at)
        groups = await database.read(read_failures, attempts, limit=limit)
        if not groups:
            await warn_of_names(database, attempts)
        since = _since(attempts, groups, at)
        changes = await database.read(_changes, groups, since, at)
        contrasts = {
            group.fingerprint: await database.read(read_contrast, group.fingerprint, group.handler, since)
            for group in (groups if contrast else ())
        }
    groups.sort(key=lambda group: by_rise(group, changes.get(group.fingerprint)))
    failure_list = FailureList(str(attempts), groups, at, changes, contrasts)
    note_model(ListedFailures(failure_list, limit, traceback))
    if json:
        print_json(failure_list)
    else:
        _print_failures(failure_list, traceback=traceback)
    return Exit.OK


def _show_merged(listed: Mapping[str, ListedFailures], missing: Mapping[str, Unlisted], as_json: bool) -> bool:
    """Print the failure groups of all shards; True if there is one."""
    parts, first = {shard: each.list for shard, each in listed.items()}, next(iter(listed.values()))
    groups_of = {shard: part.failures for shard, part in parts.items()}
    counts, changes = counts_by_shard(groups_of), merged_changes(part.changes for part in parts.values())
    groups = merged_failures(groups_of)
    groups.sort(key=lambda group: by_rise(group, changes.get(group.fingerprint)))
    contrasts = {}
    for group in groups[: first.limit]:
        largest = max(counts[group.fingerprint].items(), key=lambda item: item[1].number)[0]
        if (contrast := parts[largest].contrasts.get(group.fingerprint)) is not None:
            contrasts[group.fingerprint] = contrast
    at = max(part.at for part in parts.values())
    whole = FailureList(first.list.filter, groups[: first.limit], at, changes, contrasts)
    if as_json:
        rows = [ShardFailures(counts[group.fingerprint], group) for group in whole.failures]
        print_json(ShardFailureList(whole.filter, rows, at, changes, contrasts, bool(missing), errors_of(missing)))
    else:
        _print_failures(whole, traceback=first.traceback, counts=counts)
        print_partial(missing)
    return bool(groups)


MERGED = ShardList(ListedFailures, _show_merged)


async def _changes(
    tx: Transaction, groups: Sequence[Failures], since: datetime, at: datetime
) -> dict[str, FailureChange]:
    """Compare the rates of groups with their usual ones in a period that ends now."""
    if not groups or since >= at:
        return {}
    began = await beginnings(tx, [group.fingerprint for group in groups])
    return changes_of(groups, await trends(tx, since, at), began, since, at)


def _since(attempts: Filter, groups: Sequence[Failures], at: datetime) -> datetime:
    """The start of the period of a filter; without one, the first attempt of the groups."""
    times = [term.value for term in attempts.terms if term.field == "since" and not term.negated]
    starts = [time for time in times if isinstance(time, datetime)]
    return max(starts) if starts else min((group.first for group in groups if group.first), default=at)


def _recent(attempts: Filter, at: datetime) -> Filter:
    """Limit a filter without a time to the last day."""
    if any(term.field in ("since", "until") for term in attempts.terms):
        return attempts
    return Filter((*attempts.terms, Term("since", Operator.GE, at - DAY)))


def _print_failures(
    failure_list: FailureList, *, traceback: bool, counts: Mapping[str, Mapping[str, Count]] | None = None
) -> None:
    """Print the groups.

    Args:
        counts: the number of attempts in each shard, by fingerprint; None for one database.
    """
    groups = failure_list.failures
    if not groups:
        print_line("No failed attempts match.")
        return
    columns = list(_columns(failure_list.changes, failure_list.at))
    if counts is not None:
        columns.insert(2, Column("SHARDS", lambda group: shards_text(counts[group.fingerprint]), fixed=True))
    print_table(columns, groups)
    print_line(count_noun(len(groups), "failure group"), style="dim")
    for fingerprint, contrast in failure_list.contrasts.items():
        print_line(f"{fingerprint}: {one_line(contrast.sentence) or 'too few failures to compare'}")
    for group in groups if traceback else ():
        print_title(f"{group.fingerprint}: last in task {group.task_id}, {_error(group)}")
        print_block(mask(group.traceback or "no traceback"))


ROUND = 100
"""Attempts per minute from which a rate has no decimals."""


def _columns(changes: Mapping[str, FailureChange], at: datetime) -> tuple[Column[Failures], ...]:
    def began(group: Failures) -> str:
        change = changes.get(group.fingerprint, FailureChange(0.0, group.first))
        return f"{'new ' * change.new}{formatting.since(change.began, at)}"

    def usual(group: Failures) -> float | None:
        return changes.get(group.fingerprint, FailureChange(0.0)).usual

    return (
        Column("GROUP", lambda group: group.fingerprint, fixed=True),
        figure("COUNT", lambda group: group.count),
        figure("NOW/m", lambda group: f"{_rate(group.rate)}{'+' * group.has_rate_bound}"),
        figure("WAS/m", usual, _rate),
        figure("TASKS", lambda group: group.counted(group.tasks)),
        figure("DIED", lambda group: group.counted(group.dead)),
        figure("BEGAN", began),
        figure("LAST", lambda group: formatting.since(group.last, at)),
        Column("HANDLER", lambda group: group.handler),
        Column("ERROR", _error),
    )


def _rate(rate: float) -> str:
    return f"{rate:,.3g}" if rate < ROUND else f"{rate:,.0f}"


def _error(group: Failures) -> str:
    return formatting.reason(f"{group.error_type}: {group.message}")
