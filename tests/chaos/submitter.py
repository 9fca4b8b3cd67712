"""A program that submits chunks of tasks and records the answers in its journal.

Arguments: the mix, the seed, the tasks of a chunk, the pause before each commit and the interval of chunks in seconds.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import StoreError
from runner.model.task import BatchMember
from runner.settings import load
from runner.store.submit import submit_with_result
from tests.chaos.evidence import DUPLICATE, OK, UNKNOWN
from tests.chaos.journal import FOLDER, Journal
from tests.chaos.workload import PlannedTask, planned_chunks

ORDERS = sa.table("orders", sa.column("token"))
"""A table of the application, written in the transaction of the submit."""

HOLD = "hold"
"""While a file with this name is in the working directory, submitters wait: runners have a backlog."""

HOLD_CHECK = 0.05
"""Seconds between two looks for that file."""


class Submitter:
    """Submits chunks, each with an order per task.

    Args:
        database: the database.
        journal: its journal.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal

    async def submit(self, chunk: list[PlannedTask], pause: float = 0.0) -> None:
        """Submit a chunk in one transaction.

        Args:
            chunk: the tasks.
            pause: seconds between the submit and the commit.
        """
        described = [planned.described() for planned in chunk]
        self._journal.write_all("submit", [{"answer": UNKNOWN, "task": None, **data} for data in described])
        try:
            async with self._database.writing() as tx:
                await tx.execute(sa.insert(ORDERS), [{"token": planned.token} for planned in chunk])
                result = await submit_with_result(tx, [planned.task for planned in chunk])
                if pause:
                    self._journal.write("pause", token=chunk[0].token)
                    await asyncio.sleep(pause)
        except StoreError:
            return  # the commit may have succeeded
        answers = [
            {"answer": DUPLICATE if index in result.duplicates else OK, "task": task_id, **data}
            | _parents(planned, result.ids)
            for index, (planned, task_id, data) in enumerate(zip(chunk, result.ids, described, strict=True))
        ]
        self._journal.write_all("submit", answers)


def _parents(planned: PlannedTask, ids: Sequence[int]) -> dict[str, list[int]]:
    parents = [
        ids[after.parent.position] for after in planned.task.after or () if isinstance(after.parent, BatchMember)
    ]
    return {"parents": parents} if parents else {}


async def main(mix: str, seed: int, size: int, pause: float, interval: float) -> None:
    database = Database.of(load())
    submitter = Submitter(database, Journal(Path(os.environ[FOLDER]), "submitter"))
    due = time.monotonic()
    try:
        for chunk in planned_chunks(mix, seed, size):
            await submitter.submit(chunk, pause)
            due = max(due + interval, time.monotonic() - interval)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            while Path(HOLD).exists():
                await asyncio.sleep(HOLD_CHECK)
    finally:
        await database.dispose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5])))
