"""said: what a producer may say of a task, with the types in which it travels to the database."""

from typing import Any

import sqlalchemy as sa

from runner.columns import Instant

SAID: dict[str, Any] = {
    "payload": sa.Text,
    "queue": sa.Text,
    "key": sa.Text,
    "priority": sa.SmallInteger,
    "run_at": Instant,
    "delay": sa.Float,
    "max_attempts": sa.Integer,
    "retry": sa.Text,
    "timeout": sa.Float,
    "tags": sa.Text,
    "trace": sa.Text,
    "submitted_by": sa.Text,
    "bucket": sa.SmallInteger,
}
"""Of a new task, and of one that takes the place of another."""
