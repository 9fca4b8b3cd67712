"""Settings: every value that a user can set, with its type, bounds, default, description and origin."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from runner.errors import InvalidUrl
from runner.model.duration import format_duration
from runner.model.outcome import ON_ERROR, ON_NONE
from runner.settings.types import (
    MAX_NAME,
    MAX_PREFIX,
    ZERO,
    Declared,
    Origins,
    Size,
    Values,
    boolean,
    choice,
    count,
    delay,
    limit,
    matching,
    maximum,
    modules,
    names,
    nonempty,
    optional,
    outcome_rule,
    path,
    period,
    setting,
    size,
    value_text,
    whole,
    word,
)
from runner.urls import DatabaseUrl, parse_url

DEFAULT_URL = "sqlite:///tasktui.db"

MAX_TRANSACTIONS = 10
"""Default limit of open handler transactions; more connections rarely make a database faster."""

ENV_PREFIX = "RUNNER_"


class Row(NamedTuple):
    """One line of `Settings.describe`: a setting, its value as text without secrets, and its origin."""

    name: str
    value: str
    origin: str


def _url(value: Any) -> DatabaseUrl:
    if not isinstance(value, str | DatabaseUrl):
        raise InvalidUrl(url="***", why="it is not text")
    return parse_url(value)


def _check_schema(schema: str | None, values: Values) -> None:
    if schema is not None and schema.startswith("pg_"):
        raise ValueError("PostgreSQL reserves schemas that begin with pg_")
    if schema is not None and values["url"].kind == "sqlite":
        raise ValueError("SQLite has no schemas; use table_prefix")


def _check_slice(value: str | None, values: Values) -> None:
    if value is not None and values["buckets"] is not None:
        raise ValueError("a runner has buckets or a slice; choose one")


def _check_heartbeat(heartbeat: timedelta, values: Values) -> None:
    lease = values["lease_timeout"]
    if heartbeat > lease / 2:
        raise ValueError(f"it must be at most half of the lease ({format_duration(lease)}), so that one may fail")


class Settings(Declared):
    """All settings. The constructor uses only its arguments and defaults; `load` reads all sources.

    Raises:
        InvalidSettings: an argument is not valid. The message names its origin and does not repeat it.
        InvalidUrl: the URL is not valid or not supported.
    """

    profile: str | None = setting(optional(word), default=None, description="profile of the configuration file")
    config: Path | None = setting(
        optional(path), default=None, description="path of the configuration file, if not the default one"
    )
    production: bool = setting(
        boolean,
        default=False,
        description="the console displays PRODUCTION, starts read-only and asks for more confirmation",
    )
    read_only: bool = setting(
        boolean,
        factory=lambda data: data["production"],
        description="the console cannot change anything; on by default if production is on",
    )
    url: DatabaseUrl = setting(_url, factory=lambda _: parse_url(DEFAULT_URL), description="the database")
    table_prefix: str = setting(
        matching(r"([a-z_][a-z0-9_]*)?", MAX_PREFIX), default="", description="prefix of every table name"
    )
    table_schema: str | None = setting(
        optional(matching(r"[a-z_][a-z0-9_]*", MAX_NAME)),
        check=_check_schema,
        default=None,
        description="PostgreSQL schema of the tables; none is the first schema of the search path",
    )
    handlers: tuple[str, ...] = setting(
        modules, default=(), description="modules that define handlers, separated by commas"
    )
    queues: tuple[str, ...] = setting(
        names, default=(), description="queues that the runner claims from, separated by commas; none is all"
    )

    only: tuple[str, ...] = setting(
        names, default=(), description="handlers that the runner takes, such as mail.send,report.*; none is all"
    )
    without: tuple[str, ...] = setting(
        names, default=(), description="handlers that the runner leaves, such as mail.send,report.*"
    )
    buckets: str | None = setting(
        optional(nonempty),
        default=None,
        description="buckets that the runner claims from, such as 0-499,700; none is all",
    )
    slice: str | None = setting(
        optional(nonempty),
        check=_check_slice,
        default=None,
        description="share of the buckets: 2/8 (those with bucket % 8 = 2; a second runner of a slice is its standby), "
        "live (the live runners with the same handlers and queues divide them), or single (one runner claims)",
    )

    poll_mode: str = setting(
        nonempty,
        default="fixed-rate",
        description="when scans start: fixed-rate every period, fixed-delay a period after each scan, spread (the "
        "runners divide the scans), tiers or tiers:0=3s,5=30s,15=60s (longer for failed tasks), throttle (one batch "
        "per period), or a class as package.module:Class",
    )
    poll_interval: timedelta = setting(
        delay,
        default=timedelta(seconds=1),
        description="the period of scans, such as 250ms or 1m; a submit causes one sooner; 0 scans once and stops",
    )
    scans: tuple[str, ...] = setting(
        names,
        default=(),
        description="handlers with scans of their own and their period, such as report.*=1m,sms.send=10s",
    )
    initial_delay: timedelta = setting(delay, default=ZERO, description="the time before the first scan")
    claim_batch_size: int = setting(
        count,
        default=500,
        description="maximum number of tasks per claim; a scan claims until no task is due or no slot is free, and "
        "with poll_mode throttle at most this many per period",
    )
    concurrency: int = setting(count, default=100, description="maximum number of coroutines running at the same time")
    threads: int = setting(count, default=10, description="maximum number of plain functions running at the same time")
    spare_threads: int = setting(
        whole,
        factory=lambda data: data["threads"],
        description="maximum number of threads that replace those of functions that do not end after their timeout; as "
        "many as threads by default",
    )
    processes: int | None = setting(
        maximum,
        default=None,
        description='maximum number of handlers with executor="process" at the same time; none is one per processor',
    )
    tasks_per_process: int = setting(
        count,
        default=1_000,
        description="number of tasks after which a worker process ends and a new one takes its place",
    )
    transaction_connections: int = setting(
        count,
        factory=lambda data: min(data["concurrency"] + data["threads"], MAX_TRANSACTIONS),
        description="PostgreSQL: maximum number of handler transactions open at the same time; at most concurrency + "
        "threads by default",
    )
    prefetch: int = setting(
        whole,
        default=2_000,
        description="maximum number of tasks claimed beyond the free slots, while tasks finish quickly; 0 turns it off",
    )
    claim_order: str = setting(
        nonempty,
        default="strict",
        description="order of claims: strict (by priority), aged or aged:10s (a waiting task rises by one priority per "
        "minute or 10 s), weighted:mail=3,sms=1 (queues divide the slots), or a class as package.module:Class",
    )
    lease_timeout: timedelta = setting(
        period,
        default=timedelta(seconds=15),
        description="time without a heartbeat after which a runner is lost and others take over its tasks",
    )
    heartbeat_interval: timedelta = setting(
        period,
        check=_check_heartbeat,
        factory=lambda data: data["lease_timeout"] / 5,
        description="the interval of heartbeats; a fifth of the lease by default",
    )
    drain_timeout: timedelta = setting(
        delay,
        # Shorter than the stop timeout of service managers (systemd: 90 s).
        default=timedelta(seconds=30),
        description="how long a stopping runner waits for running tasks",
    )
    settle_batch_size: int = setting(
        count, default=500, description="maximum number of outcomes written in one statement"
    )
    settle_interval: timedelta = setting(
        delay, default=timedelta(milliseconds=5), description="maximum time that an outcome waits for others"
    )
    notify: bool = setting(
        boolean, default=True, description="a submit wakes runners; on SQLite, Linux reports changes of the file"
    )
    prepared_statements: bool = setting(
        boolean,
        default=True,
        description="PostgreSQL: prepare frequent statements; never behind a pooler, which is recognized",
    )
    coalesce: bool = setting(boolean, default=False, description="concurrent single submits of a process share commits")
    sqlite_poll_interval: timedelta = setting(
        period,
        default=timedelta(milliseconds=50),
        description="SQLite: how often a runner checks for new tasks; a fifth as often where notify works",
    )

    retention_succeeded: timedelta | None = setting(
        limit, default=timedelta(days=7), description="age at which succeeded tasks are pruned; never keeps them"
    )
    retention_dead: timedelta | None = setting(
        limit, default=timedelta(days=180), description="the same for dead tasks"
    )
    retention_cancelled: timedelta | None = setting(
        limit, default=timedelta(days=180), description="the same for cancelled tasks"
    )
    retention_statistics: timedelta | None = setting(
        limit, default=timedelta(days=30), description="the same for report statistics"
    )

    payload_limit: int = setting(
        size,
        default=Size(256 * 1024),
        description="maximum size of a payload; a task with a larger one, from a plain INSERT, is dead",
    )
    result_limit: int = setting(
        size, default=Size(64 * 1024), description="maximum size of a result; a larger one is not kept"
    )
    checkpoint_limit: int = setting(size, default=Size(256 * 1024), description="maximum size of a checkpoint")
    checkpoint_interval: timedelta = setting(
        period, default=timedelta(seconds=30), description="how often a runner stores the state that a handler keeps"
    )
    max_attempts: int = setting(count, default=5, description="attempts, unless the task or the handler sets it")
    retry: str = setting(
        nonempty, default="1m,5m,20m", description="retry plan, unless the task or the handler sets it"
    )
    timeout: timedelta | None = setting(
        limit,
        default=timedelta(minutes=15),
        description="time limit of an attempt, unless the task or the handler sets it",
    )
    on_error: str = setting(outcome_rule(ON_ERROR), default=ON_ERROR.choices[0], description=ON_ERROR.help)
    on_none: str = setting(outcome_rule(ON_NONE), default=ON_NONE.choices[0], description=ON_NONE.help)
    max_interruptions: int | None = setting(
        maximum,
        default=20,
        description="how often stopping runners may interrupt a task without a new checkpoint; or none",
    )

    sqlite_synchronous: Literal["FULL", "NORMAL"] = setting(
        choice("FULL", "NORMAL"),
        default="FULL",
        description="SQLite: FULL survives power loss, NORMAL may lose the last commits",
    )
    log_format: Literal["auto", "human", "json"] = setting(
        choice("auto", "human", "json"),
        default="auto",
        description="format of log lines: human or json; auto is human on a terminal",
    )
    log_level: Literal["debug", "info", "warning", "error"] | None = setting(
        optional(choice("debug", "info", "warning", "error")),
        default=None,
        description="lowest level of log lines; info, or the levels that the application has configured",
    )

    origins: Origins = Origins()

    def __eq__(self, other: object) -> bool:
        """Compare the values; their origins do not matter."""
        return isinstance(other, Settings) and all(getattr(self, name) == getattr(other, name) for name in NAMES)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in NAMES))

    def with_values(self, **values: Any) -> Self:
        """A copy with other values, from which derived defaults follow.

        Raises:
            InvalidSettings: a value is not valid.
        """
        explicit = {name: getattr(self, name) for name in self.explicit}
        return type(self)(**explicit | values, origins=self.origins)

    @property
    def called(self) -> str:
        """Short name of the database: its profile, or the last part of its URL."""
        return self.profile or self.url.database.rpartition("/")[2] or self.url.kind

    def describe(self) -> list[Row]:
        """List every setting; RUNNER_* variables that are not settings come last."""
        rows = []
        for name in NAMES:
            origin = self.origins.places.get(name, "argument") if name in self.explicit else "default"
            rows.append(Row(name, value_text(getattr(self, name)), origin))
        tls = self.url.tls
        rows.append(Row("tls", tls.mode or "not needed", "weaker than verify-full" if tls.weak else "derived from url"))
        return rows + [Row(name, "", "ignored: not a setting") for name in self.origins.stray]


DESCRIPTIONS = {name: declaration.description for name, declaration in Settings.DECLARATIONS.items()}
"""Description of each setting, in the order of display."""

NAMES = tuple(DESCRIPTIONS)
"""Names of all settings, in the order of display."""


def locate(text: object, origin: str) -> DatabaseUrl:
    """Parse a URL; errors name its origin.

    Args:
        text: URL, as text or parsed.
        origin: origin of the URL.

    Raises:
        InvalidUrl: see `parse_url`.
    """
    try:
        return _url(text)
    except InvalidUrl as error:
        raise InvalidUrl(url=error.fields["url"], why=f"{error.fields['why']} ({origin})") from None
