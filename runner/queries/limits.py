"""limits: the use of the limits of queues and handlers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from runner.db.transaction import Transaction, clock
from runner.db.types import epoch_seconds
from runner.policy.claim_policy import LIMITED
from runner.policy.limits import LimitUsage, SharedLimits
from runner.queries.counting import running_by_limit
from runner.queries.registries import MOST, open_breaker, probe_in
from runner.queries.rows import as_text, moment, number, readable, text
from runner.text.formatting import since


async def limit_usages(tx: Transaction, names: Mapping[str, str] | None = None) -> list[LimitUsage]:
    """Read limits and their use.

    Args:
        tx: an open transaction; three to five statements are executed.
        names: the name of one queue and of one handler, by kind; None for every one with a limit.

    Returns:
        One usage for each queue and handler with a limit, queues first, by name.
    """
    kinds = ("queue", "handler")
    found = await tx.gather(*(_limited(tx, kind, names) for kind in kinds))
    rows = [(kind, row) for kind, of_kind in zip(kinds, found, strict=True) for row in of_kind]
    if not rows:
        return []
    at, running = await tx.gather(clock(tx), running_by_limit(tx))
    usages = []
    for kind, row in rows:
        name = as_text(row["name"])
        mine = [(task, count) for task, count in running.items() if task[kind == "handler"] == name]
        by_tenant: Counter[str] = Counter()
        by_runner: Counter[str] = Counter()
        for (_, _, tenant, runner), count in mine:
            by_tenant[tenant] += count
            by_runner[runner] += count
        set_at = moment(row["limited_at"])
        usages.append(
            LimitUsage(
                kind=kind,
                name=name,
                limits=SharedLimits.of_row(row),
                at=float(row["epoch"]),
                spent=number(row["rate_spent"]),
                running=dict(by_tenant),
                holders=dict(by_runner.most_common()),
                since=since(set_at, at) if set_at else "",
                by=text(row["limited_by"]),
                why=text(row["limited_why"]),
                breaker=open_breaker(row, at),
            )
        )
    return usages


async def _limited(tx: Transaction, kind: str, names: Mapping[str, str] | None) -> Sequence[Mapping[Any, Any]]:
    registry = tx.tables.queue if kind == "queue" else tx.tables.handler
    statement = sa.select(*readable(tx, registry.c), epoch_seconds().label("epoch"), probe_in(registry))
    if names is not None:
        statement = statement.where(registry.c.name == names[kind])
    statement = statement.where(LIMITED.is_limited(registry)).order_by(registry.c.name).limit(MOST)
    return (await tx.execute(statement)).mappings().all()
