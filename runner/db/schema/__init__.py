"""The tables and their checks, as data. `storage` adds the indexes, `runner.db.migrations` creates them."""

from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from runner.db.schema import records
from runner.db.schema import task as tasks
from runner.db.schema.records import GONE, MINUTE_COUNTS, MINUTE_TIMES, NO_BIN
from runner.db.schema.task import is_open, is_state, runs_with_order_key, state_literal, waits_with_tenant

NAMING = {
    "ix": "%(table_name)s_%(column_0_N_name)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ck": "%(table_name)s_%(constraint_name)s",
    "pk": "%(table_name)s_pkey",
}


class Tables:
    """The tables of one installation, as statements use them.

    Args:
        prefix: prefix of every table name.
        schema: PostgreSQL schema of the tables; None for the search path.
    """

    def __init__(self, prefix: str = "", schema: str | None = None) -> None:
        self.prefix = prefix
        self.metadata = sa.MetaData(schema=schema, naming_convention=NAMING)
        self.task = self._table("task", *tasks.identity(), *tasks.live())
        self.history = self._table("task_history", *tasks.finished_identity(), *tasks.finished())
        self.attempt = self._table("task_attempt", *records.attempt())
        self.unique = self._table("task_unique", *records.unique())
        self.dependency = self._table("task_dependency", *records.dependency())
        self.workflow = self._table("task_workflow", *records.workflow())
        self.checkpoint = self._table("task_checkpoint", *records.checkpoint())
        self.step = self._table("task_step", *records.step())
        self.signal = self._table("task_signal", *records.signal())
        self.progress = self._table("task_progress", *records.progress())
        self.log = self._table("task_log", *records.log())
        self.queue = self._table("task_queue", *records.queue())
        self.handler = self._table("task_handler", *records.handler())
        self.runner = self._table("task_runner", *records.runner())
        self.ended_runner = self._table("task_ended_runner", *records.ended_runner())
        self.minute = self._table("task_minute", *records.minute())
        self.schedule = self._table("task_schedule", *records.schedule())
        self.tick = self._table("task_tick", *records.tick())
        self.alert = self._table("task_alert", *records.alert())
        self.audit = self._table("task_audit", *records.audit())

    @property
    def of_tasks(self) -> tuple[sa.Table, ...]:
        """The tables whose rows belong to a task by `task_id` and are deleted with it."""
        return (
            *(self.attempt, self.audit, self.dependency, self.checkpoint, self.step, self.signal),
            *(self.progress, self.log),
        )

    def _table(self, name: str, *items: Any) -> sa.Table:
        return sa.Table(f"{self.prefix}{name}", self.metadata, *items)


@lru_cache
def tables(prefix: str = "", schema: str | None = None) -> Tables:
    """Return the tables for a prefix and a schema: one object per installation, so that statements can be cached."""
    return Tables(prefix, schema)


__all__ = [
    "GONE",
    "MINUTE_COUNTS",
    "MINUTE_TIMES",
    "NO_BIN",
    "Tables",
    "is_open",
    "is_state",
    "runs_with_order_key",
    "state_literal",
    "tables",
    "waits_with_tenant",
]
