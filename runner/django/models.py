"""Models of the task tables for queries and the admin. Django neither creates nor changes these tables."""

import json
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from runner.model.task import FINAL, LIVE, Shown, State

PREFIX = getattr(settings, "TASKTUI", {}).get("TABLE_PREFIX", "")
SCHEMA = getattr(settings, "TASKTUI", {}).get("TABLE_SCHEMA")


def table_name(name: str) -> str:
    """Return the name of a table for `db_table`, which Django puts between quotation marks."""
    return f'"{SCHEMA}"."{PREFIX}{name}"' if SCHEMA else f"{PREFIX}{name}"


class JsonTextField(models.TextField):
    """JSON as Python objects. Django's JSONField expects jsonb."""

    def from_db_value(self, value: Any, _: Any, connection: Any) -> Any:
        """Read the text of SQLite; PostgreSQL's drivers have read the type json already."""
        return json.loads(value) if connection.vendor == "sqlite" and value is not None else value


class TaskColumns(models.Model):
    """The columns that live and finished tasks share."""

    id = models.BigAutoField(primary_key=True)
    queue = models.TextField()
    handler = models.TextField()
    key = models.TextField(null=True)
    payload = JsonTextField()
    priority = models.SmallIntegerField()
    run_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    max_attempts = models.IntegerField(null=True)
    retry = models.TextField(null=True)
    timeout = models.FloatField(null=True)
    bucket = models.SmallIntegerField()
    tenant = models.TextField(null=True)
    hosts = models.TextField()
    hosts_until = models.DateTimeField(null=True)
    unique_key = models.TextField(null=True)
    order_key = models.TextField(null=True)
    order_on_failure = models.TextField(null=True)
    tags = JsonTextField(null=True)
    headers = JsonTextField(null=True)
    submitted_at = models.DateTimeField()
    submitted_by = models.TextField(null=True)
    workflow = models.BigIntegerField(null=True)
    attempt = models.IntegerField()
    runner_id = models.BigIntegerField(null=True)
    host = models.TextField(null=True)
    claimed_at = models.DateTimeField(null=True)
    error = models.TextField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"task {self.pk} ({self.handler})"


class LiveTask(TaskColumns):
    """A task that waits, is blocked or runs."""

    state = models.TextField(choices=[(state.value, state.value) for state in LIVE])
    blocked_by = models.IntegerField()
    started_at = models.DateTimeField(null=True)
    cancel_requested = models.BooleanField()

    class Meta:
        managed = False
        db_table = table_name("task")
        verbose_name = "task"

    def shown(self, now: datetime | None = None) -> Shown:
        """Return the displayed state, which divides waiting tasks by their time; a lost task counts as running here."""
        if self.state != State.WAITING:
            return Shown(self.state)
        if self.run_at <= (now or timezone.now()):
            return Shown.READY
        return Shown.RETRYING if self.attempt else Shown.SCHEDULED


class TaskHistory(TaskColumns):
    """A task that succeeded, is dead or was cancelled."""

    state = models.TextField(choices=[(state.value, state.value) for state in FINAL])
    finished_at = models.DateTimeField()
    duration = models.FloatField(null=True)
    result = JsonTextField(null=True)

    class Meta:
        managed = False
        db_table = table_name("task_history")
        verbose_name = "finished task"


class TaskAttempt(models.Model):
    """A failed or rescued attempt of a task."""

    pk = models.CompositePrimaryKey("task_id", "fence")
    task_id = models.BigIntegerField()
    fence = models.BigIntegerField()
    attempt = models.IntegerField()
    queue = models.TextField()
    handler = models.TextField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    runner_id = models.BigIntegerField(null=True)
    host = models.TextField(null=True)
    verb = models.TextField()
    error_type = models.TextField()
    message = models.TextField()
    traceback = models.TextField(null=True)
    fingerprint = models.TextField()

    class Meta:
        managed = False
        db_table = table_name("task_attempt")
        verbose_name = "failed attempt"
        ordering = ("fence",)

    def __str__(self) -> str:
        return f"attempt {self.attempt} of task {self.task_id}: {self.error_type}"
