"""The settings as keyword arguments of `connect`, `Runner` and `TaskStore`, for type checkers.

A test compares them with `Settings`, which has their bounds, defaults and descriptions.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypedDict

from runner.model.outcome import Delay
from runner.urls import DatabaseUrl


class UrlKeyword(TypedDict, total=False):
    """The database, which `TaskStore` has as an argument."""

    url: DatabaseUrl | str | None


class HandlersKeyword(TypedDict, total=False):
    """The modules of handlers; the argument of `Runner` with this name has the handlers themselves."""

    handlers: Iterable[str] | None


class OtherKeywords(TypedDict, total=False):
    """All other settings."""

    profile: str | None
    config: Path | str | None
    production: bool | None
    read_only: bool | None
    shards: Iterable[str] | None
    shard_rule: str | None
    password: str | None
    password_command: str | None
    table_prefix: str | None
    table_schema: str | None
    app_version: str | None
    queues: Iterable[str] | None
    only: Iterable[str] | None
    without: Iterable[str] | None
    buckets: str | None
    slice: str | None
    poll_mode: str | None
    poll_interval: Delay | None
    scans: Iterable[str] | None
    initial_delay: Delay | None
    claim_batch_size: int | None
    concurrency: int | None
    threads: int | None
    spare_threads: int | None
    processes: int | str | None
    executors: Iterable[str] | None
    serve_tokens: Iterable[str] | None
    server_token: str | None
    tasks_per_process: int | None
    transaction_connections: int | None
    prefetch: int | None
    claim_order: str | None
    lease_timeout: Delay | None
    heartbeat_interval: Delay | None
    drain_timeout: Delay | None
    settle_batch_size: int | None
    settle_interval: Delay | None
    notify: bool | None
    prepared_statements: bool | None
    coalesce: bool | None
    sqlite_poll_interval: Delay | None
    retention_succeeded: Delay | None
    retention_dead: Delay | None
    retention_cancelled: Delay | None
    retention_queues: Iterable[str] | None
    retention_statistics: Delay | None
    payload_limit: int | str | None
    result_limit: int | str | None
    checkpoint_limit: int | str | None
    checkpoint_interval: Delay | None
    max_attempts: int | None
    retry: str | None
    timeout: Delay | None
    on_error: str | None
    on_none: str | None
    max_interruptions: int | str | None
    codec: str | None
    codec_keys: Iterable[str] | None
    codec_keys_command: str | None
    codec_plain: Literal["refuse", "accept"] | None
    sqlite_synchronous: Literal["FULL", "NORMAL"] | None
    listen: str | None
    health_file: Path | str | None
    otel: bool | None
    alert_interval: Delay | None
    alert_max_dead: int | None
    alert_max_failing: int | None
    alert_max_failures: int | None
    alert_max_late: Delay | None
    alert_receivers: Iterable[str] | None
    alert_ping: str | None
    log_format: Literal["auto", "human", "json"] | None
    log_level: Literal["debug", "info", "warning", "error"] | None


class RunnerKeywords(OtherKeywords, UrlKeyword, total=False):
    """The settings of `Runner`."""


class StoreKeywords(OtherKeywords, HandlersKeyword, total=False):
    """The settings of `TaskStore`."""


class Keywords(RunnerKeywords, StoreKeywords, total=False):
    """All settings."""
