"""Answers that are lost or late: the database commits a claim, and its runner does not hear of it."""

import asyncio
import sqlite3
from collections.abc import Callable
from functools import wraps
from typing import Any

import psycopg
import sqlalchemy as sa

from runner.db.database import Database
from runner.store.claim import claim, claim_suspect


class LostReplies:
    """Loses the answers of claims on the driver's own connections, after the database committed them.

    Args:
        database: of the runner.
        suspects: lose the answers of the claims that take suspects, instead of the others.
    """

    def __init__(self, database: Database, suspects: bool = False) -> None:
        self.lost = 0
        self.most = 0
        """The answers to lose."""
        self._suspects = suspects
        sa.event.listen(database.engine.sync_engine, "connect", self._watch)

    def _watch(self, connection: Any, _: Any) -> None:
        driver = connection.driver_connection
        if isinstance(driver, psycopg.AsyncConnection):
            driver.execute = self._committed_by_itself(driver, driver.execute)  # type: ignore[method-assign]
        else:
            self._committed_after(driver)

    def _committed_by_itself(self, driver: Any, execute: Callable[..., Any]) -> Any:
        @wraps(execute)
        async def executed(sql: str, *arguments: Any, **options: Any) -> Any:
            cursor = await execute(sql, *arguments, **options)
            if self._loses(sql) and cursor.rowcount:
                self.lost += 1
                await driver.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")
            return cursor

        return executed

    def _committed_after(self, driver: Any) -> None:
        fetch, commit, claimed = driver.execute_fetchall, driver.commit, False

        async def fetched(sql: str, *arguments: Any) -> Any:
            nonlocal claimed
            rows = list(await fetch(sql, *arguments))
            claimed = self._loses(sql) and rows != []
            return rows

        async def committed() -> None:
            nonlocal claimed
            await commit()
            if claimed:
                claimed = False
                self.lost += 1
                raise sqlite3.OperationalError("disk I/O error")

        driver.execute_fetchall, driver.commit = fetched, committed

    def _loses(self, sql: Any) -> bool:
        mine = isinstance(sql, str) and "UPDATE task SET" in sql and "claimed_at=" in sql
        return mine and self.lost < self.most and ("due.rescues > 0" in sql) is self._suspects


class LateReplies:
    """Keeps the answers of claims back, after the database committed them.

    Args:
        database: of the runner.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.kept = asyncio.Event()
        """Set when an answer that brings tasks is kept back."""
        self.go_on = asyncio.Event()

    async def write_single(self, verb: Any, *arguments: Any) -> Any:
        rows = await self._database.write_single(verb, *arguments)
        if verb in (claim, claim_suspect) and rows:
            self.kept.set()
            await self.go_on.wait()
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
