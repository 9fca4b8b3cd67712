"""contrast: the values that the failures of a group have in common and successes of their handler have not."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from runner.db.schema.task import is_final_state
from runner.db.transaction import Transaction
from runner.model.sealed import sealed_of
from runner.model.task import State
from runner.queries.failures import INTERRUPTED_VERB
from runner.queries.rows import as_int, as_text, text
from runner.queries.runners import runner_value
from runner.text.document import JsonProperty
from runner.text.redact import is_secret, mask

SAMPLE = 500
"""Latest failed tasks of a group, and latest successes of its handler, that are compared at most."""

SCANNED = 20_000
"""Latest finished tasks in which the successes are searched."""

FEWEST = 5
"""Tasks of each kind that a comparison needs."""

COMMON, RARE = 0.9, 0.1
"""The share of the failures that have a value in common, and the share of the successes that may have it too."""

MANY, LESS_RARE = 20, 0.5
"""From MANY failures on, LESS_RARE of the successes may have the value: chance does not explain it then."""

LONGEST_PAYLOAD, MOST_ARGUMENTS, LONGEST_VALUE = 8_192, 40, 60
"""Characters of a payload that is read, arguments of it that are compared, and characters of a value."""

MOST = 3
"""Differences of a contrast."""

ORDER = ("version", "host", "tenant")
"""The fields before the arguments, in the order of equal differences."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that failures have and successes have not.

    Args:
        field: version, host, tenant or the name of an argument.
        value: the value, with masked secrets.
        failures: the compared failed tasks with the value.
        of_failures: the compared failed tasks with any value of the field.
        successes: the compared successes with the value.
        of_successes: the compared successes with any value of the field.
    """

    field: str
    value: str
    failures: int
    of_failures: int
    successes: int
    of_successes: int

    @property
    def words(self) -> str:
        """The value with its counts: `version 4.12.0: 41 of 41 failures, 0 of 500 successes`."""
        failures = f"{self.failures:,} of {self.of_failures:,} failures"
        return f"{self.field} {self.value}: {failures}, {self.successes:,} of {self.of_successes:,} successes"


@dataclass(frozen=True, slots=True)
class Contrast:
    """The comparison of a failure group with successes of its handler.

    Args:
        failures: the failed tasks that were compared.
        successes: the successes that were compared.
        differences: the largest differences first.
    """

    failures: int
    successes: int
    differences: tuple[Difference, ...] = ()

    @property
    def is_possible(self) -> bool:
        """True if there are enough failures and successes to compare."""
        return min(self.failures, self.successes) >= FEWEST

    @JsonProperty
    def sentence(self) -> str:
        """The differences in one sentence; empty for too few failures. It is not sanitized."""
        if self.failures < FEWEST:
            return ""
        if self.successes < FEWEST:
            return "No recent successes to compare with."
        if not self.differences:
            of = f"the last {self.successes:,} successes"
            return f"No version, host, tenant or argument sets the failures apart from {of}."
        first = self.differences[0]
        only = "Only" if first.failures == first.of_failures and not first.successes else "Mostly"
        return f"{only} {'; '.join(difference.words for difference in self.differences)}."


class _Sample(NamedTuple):
    """The place of a run, and the task with its tenant and its payload."""

    version: str | None
    host: str | None
    tenant: str | None
    payload: str | None


async def contrast(tx: Transaction, fingerprint: str, handler: str, since: datetime) -> Contrast:
    """Compare the latest failed tasks of a group with the latest successes of its handler.

    The cost is bounded: the failures are at most SAMPLE entries of an index, and the successes are searched in the
    latest SCANNED finished tasks.

    Args:
        tx: an open transaction; four statements are executed.
        handler: the handler of the group.
        since: include only failures that ended at or after this time, aware.
    """
    await tx.keep_to_indexes()
    failed, succeeded = await tx.gather(_failed(tx, fingerprint, since), _succeeded(tx, handler))
    if len(failed) < FEWEST:
        return Contrast(len(failed), 0)
    differences = differences_of([_values(each) for each in failed], [_values(each) for each in succeeded])
    return Contrast(len(failed), len(succeeded), differences)


async def _failed(tx: Transaction, fingerprint: str, since: datetime) -> list[_Sample]:
    attempt = tx.tables.attempt.c
    columns = (attempt.task_id, attempt.host, attempt.runner_id)
    of_group = (attempt.fingerprint == fingerprint) & (attempt.ended_at >= since) & (attempt.verb != INTERRUPTED_VERB)
    latest = sa.select(*columns).where(of_group).order_by(attempt.ended_at.desc()).limit(SAMPLE).subquery()
    rows = await tx.rows(
        sa.select(latest.c.task_id, latest.c.host, runner_value(tx.tables, latest.c.runner_id, "version"))
    )
    places = {as_int(id): (text(version), text(host)) for id, host, version in rows}
    tables = (tx.tables.task.c, tx.tables.history.c)
    selects = (sa.select(task.id, task.tenant, _short_payload(task)) for task in tables)
    statements = [
        select.where(tx.dialect.one_of(task.id, [*places])) for select, task in zip(selects, tables, strict=True)
    ]
    return [
        _Sample(*places[as_int(id)], text(tenant), text(payload))
        for part in await tx.gather(*map(tx.rows, statements))
        for id, tenant, payload in part
    ]


async def _succeeded(tx: Transaction, handler: str) -> list[_Sample]:
    task = tx.tables.history.c
    ended = sa.select(task.id, task.handler, task.state, task.finished_at)
    recent = ended.order_by(task.finished_at.desc(), task.id.desc()).limit(SCANNED).subquery()
    matches = (recent.c.handler == handler) & is_final_state(recent.c.state, State.SUCCEEDED)
    order = (recent.c.finished_at.desc(), recent.c.id.desc())
    ids = [as_int(id) for (id,) in await tx.rows(sa.select(recent.c.id).where(matches).order_by(*order).limit(SAMPLE))]
    columns = (runner_value(tx.tables, task.runner_id, "version"), task.host, task.tenant, _short_payload(task))
    rows = await tx.rows(sa.select(*columns).where(tx.dialect.one_of(task.id, ids))) if ids else []
    return [_Sample(*(text(value) for value in row)) for row in rows]


def _short_payload(task: Any) -> sa.ColumnElement[str | None]:
    """The payload as text; null if it is long."""
    payload = sa.cast(task.payload, sa.Text)
    return sa.case((sa.func.length(payload) <= LONGEST_PAYLOAD, payload))


def _values(sample: _Sample) -> dict[str, str]:
    """The compared values of a task by field."""
    known = zip(ORDER, sample[: len(ORDER)], strict=True)
    values = {field: as_text(value) for field, value in known if value}
    try:
        arguments = json.loads(sample.payload or "{}")
    except (ValueError, RecursionError):
        return values
    if not isinstance(arguments, Mapping) or sealed_of(arguments) is not None:
        return values
    for name, value in list(arguments.items())[:MOST_ARGUMENTS]:
        if not is_secret(name) and (value is None or isinstance(value, str | int | float | bool)):
            shown = json.dumps(value, ensure_ascii=False)
            if len(shown) <= LONGEST_VALUE and mask(shown) == shown:
                values[f"argument {name}"] = shown
    return values


def differences_of(
    failed: Sequence[Mapping[str, str]], succeeded: Sequence[Mapping[str, str]]
) -> tuple[Difference, ...]:
    """Find the values that almost all failures and few successes have, the largest difference first.

    Args:
        failed: the values of each failed task by field.
        succeeded: the values of each success by field.
    """
    if min(len(failed), len(succeeded)) < FEWEST:
        return ()
    failures, successes = _counts(failed), _counts(succeeded)
    found = []
    for field, counts in failures.items():
        (value, number), total = counts.most_common(1)[0], counts.total()
        others = successes.get(field, Counter())
        if 2 * total < len(failed) or not others.total():
            continue  # Few tasks have this field.
        rare = RARE if total < MANY else LESS_RARE
        if number / total >= COMMON and others[value] / others.total() <= rare:
            found.append(Difference(field, value, number, total, others[value], others.total()))
    places = {field: place for place, field in enumerate(ORDER)}
    found.sort(
        key=lambda each: (
            each.successes / each.of_successes - each.failures / each.of_failures,
            places.get(each.field, len(ORDER)),
            each.field,
        )
    )
    return tuple(found[:MOST])


def _counts(samples: Iterable[Mapping[str, str]]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for sample in samples:
        for field, value in sample.items():
            counts.setdefault(field, Counter())[value] += 1
    return counts
