"""ping: how fast the database answers, and how far its clock is from ours."""

import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.people.person import now


class Ping(NamedTuple):
    """The quickest of some answers.

    Args:
        took: seconds.
        skew: how far the database's clock is ahead of this host's, give or take half of that.
    """

    took: float
    skew: timedelta


async def ping(ask: Callable[[], Awaitable[datetime]], times: int = 1) -> Ping:
    """Measure.

    Args:
        ask: asks the database for its time.
        times: how often; the quickest answer is the most exact one.
    """
    answers = []
    for _ in range(times):
        begin, here = time.perf_counter(), now()
        there = await ask()
        took = time.perf_counter() - begin
        answers.append(Ping(took, there - here - timedelta(seconds=took / 2)))
    return min(answers)
