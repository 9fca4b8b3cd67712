"""Columns of the registries: queues, handlers, runners, schedules."""

from typing import Any

import sqlalchemy as sa

from runner.db.types import BigId, Instant, JsonText, Name, db_now


def queue() -> list[sa.Column[Any]]:
    """Queues that were ever paused or limited."""
    return [sa.Column("name", Name, primary_key=True), *_pause(), sa.Column("max_running", sa.Integer)]


def handler() -> list[sa.Column[Any]]:
    """Known handlers, with their pauses and limits."""
    return [
        sa.Column("name", Name, primary_key=True),
        sa.Column("queue", Name),
        *_pause(),
        sa.Column("max_running", sa.Integer),
        sa.Column("breaker", sa.Text),
        sa.Column("breaker_until", Instant),
        sa.Column("last_seen_at", Instant, nullable=False, server_default=db_now()),
    ]


def runner() -> list[sa.Column[Any]]:
    """Live runner processes."""
    return [
        sa.Column("id", BigId, sa.Identity(), primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("beat_at", Instant, nullable=False, server_default=db_now()),
        sa.Column("lease_until", Instant, nullable=False),
        sa.Column("handlers", JsonText, nullable=False, server_default="[]"),
        sa.Column("queues", JsonText, nullable=False, server_default="[]"),
        sa.Column("threaded", JsonText, nullable=False, server_default="[]"),
        sa.Column("capacity", sa.Integer, nullable=False, server_default="0"),
        sa.Column("threads", sa.Integer, nullable=False, server_default="0"),
        sa.Column("running", sa.Integer, nullable=False, server_default="0"),
        sa.Column("command", sa.Text),
    ]


def schedule() -> list[sa.Column[Any]]:
    """Rules that submit tasks periodically."""
    return [
        sa.Column("name", Name, primary_key=True),
        sa.Column("handler", Name, nullable=False),
        sa.Column("rule", sa.Text, nullable=False),
        sa.Column("payload", JsonText, nullable=False, server_default="{}"),
        sa.Column("next_tick", Instant),
        sa.Column("last_tick", Instant),
        sa.Column("misfire", sa.Text),
        sa.Column("overlap", sa.Text),
        *_pause(),
    ]


def _pause() -> list[sa.Column[Any]]:
    return [
        sa.Column("paused_at", Instant),
        sa.Column("paused_until", Instant),
        sa.Column("paused_by", sa.Text),
        sa.Column("paused_why", sa.Text),
    ]
