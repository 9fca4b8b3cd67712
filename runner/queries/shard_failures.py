"""merged_failures: the failure groups of several shards, of which each cause is one group."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from runner.queries.counting import Count, total_of
from runner.queries.failures import FailureChange, Failures
from runner.text.times import EARLIEST


def merged_failures(parts: Mapping[str, Sequence[Failures]]) -> list[Failures]:
    """Sum up the groups of each cause; the example is that of the shard where it failed last.

    Args:
        parts: the groups of each shard, by its name.
    """
    by_cause = defaultdict[str, list[Failures]](list)
    for groups in parts.values():
        for group in groups:
            by_cause[group.fingerprint].append(group)
    return [_sum(groups) for groups in by_cause.values()]


def _sum(groups: Sequence[Failures]) -> Failures:
    latest = max(groups, key=lambda group: group.last or EARLIEST)
    return replace(
        latest,
        count=total_of(group.count for group in groups),
        dead=sum(group.dead for group in groups),
        tasks=sum(group.tasks for group in groups),
        recent=sum(group.recent for group in groups),
        first=min((group.first for group in groups if group.first), default=None),
    )


def counts_by_shard(parts: Mapping[str, Sequence[Failures]]) -> dict[str, dict[str, Count]]:
    """The number of attempts of each group in each shard, by the fingerprint and the name of the shard."""
    counts = defaultdict[str, dict[str, Count]](dict)
    for shard, groups in parts.items():
        for group in groups:
            counts[group.fingerprint][shard] = group.count
    return dict(counts)


def merged_changes(parts: Iterable[Mapping[str, FailureChange]]) -> dict[str, FailureChange]:
    """Sum up the usual rates of each group; it is new if it is new in each shard."""
    by_cause = defaultdict[str, list[FailureChange]](list)
    for changes in parts:
        for fingerprint, change in changes.items():
            by_cause[fingerprint].append(change)
    return {
        fingerprint: FailureChange(
            None if any(change.usual is None for change in changes) else sum(change.usual or 0.0 for change in changes),
            min((change.began for change in changes if change.began), default=None),
            min((change.rose_at for change in changes if change.rose_at), default=None),
            all(change.new for change in changes),
        )
        for fingerprint, changes in by_cause.items()
    }


def shards_text(counts: Mapping[str, Count]) -> str:
    """The shards of a group with their numbers, the largest first, such as `eu 98, us 6`."""
    ordered = sorted(counts.items(), key=lambda item: -item[1].number)
    return ", ".join(f"{shard} {count}" for shard, count in ordered)
