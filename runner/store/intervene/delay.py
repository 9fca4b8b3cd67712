"""delay: let tasks wait longer."""

import math
from collections.abc import Iterable
from datetime import timedelta

from runner.columns import LATEST
from runner.errors import InvalidEdit
from runner.store.acceptance import LONGEST_SECONDS
from runner.store.intervene.answers import By, Refused, Result, Target
from runner.store.intervene.locking import Held, hold, reschedule
from runner.store.intervene.record import Entry, record
from runner.store.observe.legible import clock
from runner.store.transaction import Transaction

TOO_LATE = f"it would run beyond the year {LATEST.year - 1}"


async def delay(tx: Transaction, targets: Iterable[Target], seconds: float, by: By) -> Result:
    """Put waiting tasks off by so many seconds, counted from when they would run, or from now if that has passed.

    Args:
        tx: a writing transaction.
        targets: the tasks, as the operator saw them.
        seconds: how much longer; more than zero.
        by: who does it.

    Raises:
        InvalidEdit: the number is not one of seconds.
    """
    if not (math.isfinite(seconds) and 0 < seconds < LONGEST_SECONDS):
        raise InvalidEdit(field="the delay", value=seconds, why="it must be a number of seconds, more than zero")
    held, answer = await hold(tx, "delay", targets)
    now, longer = await clock(tx), timedelta(seconds=seconds)
    times = {task.id: max(task.run_at or now, now) for task in held}
    late = [id for id, run_at in times.items() if LATEST - run_at <= longer]
    answer.refused += [Refused(id, TOO_LATE) for id in late]
    stored = await reschedule(tx, {id: run_at + longer for id, run_at in times.items() if id not in late})
    changed: list[Held] = [task for task in held if task.id in stored]
    await record(
        tx, by, [Entry("delay", {"run_at": task.run_at}, {"run_at": stored[task.id]}, task.id) for task in changed]
    )
    answer.changed = [task.id for task in changed]
    return answer
