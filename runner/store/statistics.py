"""statistics: what a runner has done, minute by minute, for reports and plots."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from runner.schema import MINUTE_COUNTS
from runner.store.transaction import Transaction


@dataclass
class Minute:
    """What one runner did for one queue and handler in one minute.

    Args:
        minute: its beginning.
        queue: of the tasks.
        handler: of the tasks.
        counts: by name, see MINUTE_COUNTS.
        durations: how many attempts took how long, see runner.policy.histogram.
    """

    minute: datetime
    queue: str
    handler: str
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MINUTE_COUNTS, 0))
    durations: list[int] = field(default_factory=list)


async def write_minutes(tx: Transaction, runner_id: int, minutes: Iterable[Minute]) -> None:
    """Write what a runner counted so far, in place of what it wrote before of the same minutes.

    The rows are the runner's own and hold totals, so that writing them again changes nothing.

    Args:
        tx: an open transaction.
        runner_id: that counted.
        minutes: to write.
    """
    rows = [_values(runner_id, minute) for minute in minutes]
    if rows:
        insert = tx.dialect.insert(tx.tables.minute)
        new = {name: insert.excluded[name] for name in (*MINUTE_COUNTS, "durations")}
        await tx.execute(insert.on_conflict_do_update(index_elements=tx.tables.minute.primary_key, set_=new), rows)


def _values(runner_id: int, minute: Minute) -> dict[str, Any]:
    place = {"minute": minute.minute, "queue": minute.queue, "handler": minute.handler, "runner_id": runner_id}
    return place | minute.counts | {"durations": json.dumps(minute.durations)}
