"""Totals of a command over shards: one row per shard, and their sum."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from runner.cli.capture import Capture
from runner.cli.output import print_line, print_table
from runner.text.columns import Column
from runner.text.document import plain

M = TypeVar("M")
R = TypeVar("R")

UNKNOWN, TOTAL = "unknown", "total"


def _same(row: Any) -> Any:
    return row


def _none(_model: Any) -> str:
    return ""


class ShardTotals(NamedTuple, Generic[M, R]):
    """How a command sums up its figures.

    Args:
        kind: the class of its read model.
        add: sums up the read models of one or more shards.
        columns: the columns of a sum.
        document: the sum for programs.
        failure: why a read model is no answer of its database, such as that of a check of one that is away; empty if it
            is one.
    """

    kind: type[M]
    add: Callable[[Sequence[M]], R]
    columns: Sequence[Column[R]]
    document: Callable[[R], Any] = _same
    failure: Callable[[M], str] = _none


def print_totals(totals: ShardTotals[Any, Any], captures: Mapping[str, Capture]) -> None:
    """Print a table with one row per shard; the figures of a shard without an answer are unknown."""
    models = _models(totals, captures)
    if not any(models.values()):
        return
    rows = [(shard, *_cells(totals, model)) for shard, model in models.items()]
    rows.append((TOTAL, *_cells(totals, [each for model in models.values() for each in model])))
    columns: list[Column[tuple[str, ...]]] = [Column("SHARD", itemgetter(0), fixed=True)]
    for index, column in enumerate(totals.columns, 1):
        columns.append(Column(column.title, itemgetter(index), right=column.right, fixed=column.fixed))
    print_table(columns, rows)
    if missing := [shard for shard, model in models.items() if not model]:
        print_line(f"The total is partial, without {', '.join(missing)}.", style="bold")
    print_line("")


def totals_document(totals: ShardTotals[Any, Any], captures: Mapping[str, Capture]) -> dict[str, Any]:
    """The rows and their sum for programs; the figures of a shard without an answer are null."""
    models = _models(totals, captures)
    known = [each for model in models.values() for each in model]

    def figures(models: Sequence[Any]) -> Any:
        return plain(totals.document(totals.add(models))) if models else None

    rows = [
        {
            "shard": shard,
            "figures": figures(model),
            "error": None if model else _error(totals, captures[shard]),
        }
        for shard, model in models.items()
    ]
    return {"rows": rows, "total": figures(known), "partial": len(known) < len(models)}


def _error(totals: ShardTotals[M, Any], capture: Capture) -> str:
    """Why a shard has no answer."""
    failures = [totals.failure(model) for model in capture.models if isinstance(model, totals.kind)]
    return " ".join(dict.fromkeys([*capture.messages, *failures]))


def _models(totals: ShardTotals[M, Any], captures: Mapping[str, Capture]) -> dict[str, list[M]]:
    """The read model of each shard, in a list; empty without an answer."""
    return {
        shard: [m for m in capture.models if isinstance(m, totals.kind) and not totals.failure(m)][-1:]
        for shard, capture in captures.items()
    }


def _cells(totals: ShardTotals[Any, Any], models: Sequence[Any]) -> list[str]:
    if not models:  # ten times the word would be wider than a terminal
        return [UNKNOWN, *["?"] * (len(totals.columns) - 1)]
    row = totals.add(models)
    return [column.cell(row) for column in totals.columns]
