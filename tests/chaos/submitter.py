"""A program that submits tasks and writes the answers to its journal."""

import asyncio
import os
import sys
from pathlib import Path

import sqlalchemy as sa

from runner.db.database import Database
from runner.errors import StoreError
from runner.settings import load
from runner.store.submit import submit
from tests.chaos.check import OK, UNKNOWN
from tests.chaos.drafts import Draft, drafts
from tests.chaos.journal import FOLDER, Journal

ORDERS = sa.table("orders", sa.column("token"))
"""A table of the application, written to in the same transaction."""


class Submitter:
    """Submits drafts one by one, each with an order of its own.

    Args:
        database: to submit to.
        journal: to write to.
    """

    def __init__(self, database: Database, journal: Journal) -> None:
        self._database = database
        self._journal = journal

    async def submit(self, draft: Draft, pause: float = 0.0) -> None:
        """Submit a draft.

        Args:
            draft: what to submit.
            pause: seconds between the submit and the commit.
        """
        known = {"token": draft.token, "given": draft.data, "run_at": draft.run_at}
        self._journal.write("submit", answer=UNKNOWN, task=None, **known)
        try:
            async with self._database.writing() as tx:
                await tx.execute(sa.insert(ORDERS).values(token=draft.token))
                task_id = await submit(tx, draft.task)
                if pause:
                    self._journal.write("pause", token=draft.token)
                    await asyncio.sleep(pause)
        except StoreError:
            return  # whether it committed cannot be known
        self._journal.write("submit", answer=OK, task=task_id, **known)


async def main(mix: str, count: int, seed: int, pause: float, rest: float) -> None:
    database = Database.of(load())
    submitter = Submitter(database, Journal(Path(os.environ[FOLDER]), "submitter"))
    try:
        for draft in drafts(mix, count, seed):
            await submitter.submit(draft, pause)
            await asyncio.sleep(rest)
    finally:
        await database.dispose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *map(float, sys.argv[4:6])))
