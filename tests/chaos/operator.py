"""A program that edits and terminates waiting tasks as an operator does, and records the answers in its journal."""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from runner.db.database import Database
from runner.db.types import db_later, db_now
from runner.errors import StoreError
from runner.model.task import State
from runner.operations.edit import edit
from runner.operations.edit_values import Changes
from runner.operations.results import Actor, Result, Target
from runner.operations.terminate import terminate
from runner.settings import load
from tests.chaos.evidence import OK, REFUSED, UNKNOWN
from tests.chaos.journal import FOLDER, Journal

MARGIN = 0.2
"""Seconds until the earliest task that the operator changes is due."""

BY = Actor("storm", "chaos")


class Operator:
    """Changes each task at most once, under the version that it read.

    Args:
        database: the database.
        journal: its journal.
        seed: decides between edits and terminations.
    """

    def __init__(self, database: Database, journal: Journal, seed: int) -> None:
        self._database = database
        self._journal = journal
        self._draw = random.Random(seed)
        self._latest = 0

    async def change_one(self) -> None:
        """Edit or terminate the newest waiting task that is not due."""
        try:
            target = await self._target()
        except StoreError:
            return
        if target is None:
            return
        self._latest = target.id
        what = self._draw.choice(["edit", "edit", "terminate"])
        request: dict[str, Any] = {"task": target.id, "key": f"edited-{target.id}"}
        self._journal.write(what, answer=UNKNOWN, **request)
        try:
            result = await self._change(what, target)
        except StoreError:
            return  # the commit may have succeeded
        self._journal.write(what, answer=OK if result.changed else REFUSED, **request)

    async def _target(self) -> Target | None:
        task = self._database.tables.task.c
        later = (task.state == State.WAITING) & (task.run_at > db_later(db_now(), MARGIN)) & (task.attempt == 0)
        newest = sa.select(task.id, task.version).where(later, task.id > self._latest).order_by(task.id.desc()).limit(1)
        async with self._database.reading() as tx:
            rows = await tx.rows(newest)
        return Target(rows[0].id, rows[0].version) if rows else None

    async def _change(self, what: str, target: Target) -> Result:
        async with self._database.writing() as tx:
            if what == "edit":
                result: Any = await edit(tx, target.id, target.version, Changes(key=f"edited-{target.id}"), BY)
            else:
                result = await terminate(tx, [target], BY)
        changed: Result = result
        return changed


async def main(seed: int, interval: float) -> None:
    database = Database.of(load())
    operator = Operator(database, Journal(Path(os.environ[FOLDER]), "operator"), seed)
    try:
        while True:
            await operator.change_one()
            await asyncio.sleep(interval)
    finally:
        await database.dispose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
