"""Settings: every value that can be chosen, with its default and the place it came from.

What a value may be is a name of `runner.settings.kinds`; it is looked up when somebody has chosen one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from runner.people.times import format_duration
from runner.settings.size import Bytes
from runner.urls import parse_url

if TYPE_CHECKING:
    from runner.settings.kinds import (
        Count,
        Delay,
        Durability,
        Identifier,
        Limit,
        Modules,
        Name,
        Names,
        Number,
        Period,
        Prefix,
        Size,
        Url,
    )

DEFAULT_URL = "sqlite:///tasktui.db"

DERIVED: Any = None
"""Stands for a value that follows from others when it is left out."""

PAYLOAD_LIMIT, RESULT_LIMIT = Bytes(256 * 1024), Bytes(64 * 1024)


class Row(NamedTuple):
    """One line of `Settings.describe`: a setting, its value as text without secrets, and where it came from."""

    name: str
    value: str
    origin: str


class Origins(NamedTuple):
    """Where settings come from.

    Args:
        places: of the values that are no defaults, by name.
        stray: names in the environment that do nothing.
    """

    places: Mapping[str, str] = {}
    stray: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that can be set. Constructed directly it is its arguments and defaults; only `load` looks around and checks.

    Args:
        profile: name of the profile in force.
        config: configuration file that was read.
        production: the console shows a banner, starts read-only and asks twice.
        read_only: the console changes nothing; as `production` when left out.
        url: database that holds the tables.
        table_prefix: put in front of every table's name.
        table_schema: PostgreSQL schema of the tables; None is the first of the search path.
        handlers: modules that define handlers.
        queues: queues to work on; none means all.
        mode: fixed-rate starts a scan every period; fixed-delay waits the period after a scan has ended.
        every: period of scans.
        initial_delay: time before the first scan.
        batch: tasks claimed at most by one scan.
        slots: async handlers running at once.
        threads: threads for handlers that are ordinary functions.
        ahead: tasks claimed beyond the free slots at most, while tasks end quickly; 0 takes only what can start.
        lease: time without a sign of life after which a runner's work is given to others.
        beat: period of signs of life; a fifth of the lease when left out.
        drain_timeout: how long a stopping runner waits for what it runs; less than what service managers commonly
            grant before they kill (systemd 90 s), unlike the 120 s of systems that stop by hand.
        flush_size: outcomes written together at most.
        flush_every: how long an outcome waits for company.
        notify: PostgreSQL runners are woken by submits.
        coalesce: submits of single tasks that come at the same time, from threads or coroutines of one process, share
            a transaction.
        watch_every: how often SQLite is asked whether something changed; a fifth as often while nothing does.
        keep_succeeded: age at which succeeded tasks are pruned; None keeps them.
        keep_dead: the same for dead tasks.
        keep_cancelled: the same for cancelled tasks.
        payload_limit: bytes of a payload.
        result_limit: bytes of a result.
        max_attempts: executions before a task is dead, where its handler says nothing.
        retry: retry plan, where its handler says nothing.
        timeout: time an execution may take, where its handler says nothing.
        synchronous: SQLite's durability: FULL survives power loss, NORMAL may lose the last commits.
        log_format: auto is human on a terminal and json elsewhere.
        origins: where the values come from.
    """

    profile: str | None = None
    config: Path | None = None
    production: bool = False
    read_only: bool = DERIVED
    url: "Url" = field(default_factory=lambda: parse_url(DEFAULT_URL))
    table_prefix: "Prefix" = ""
    table_schema: "Identifier | None" = None
    handlers: "Modules" = ()
    queues: "Names" = ()

    mode: Literal["fixed-rate", "fixed-delay"] = "fixed-rate"
    every: "Period" = timedelta(seconds=1)
    initial_delay: "Delay" = timedelta(0)
    batch: "Count" = 500
    slots: "Count" = 100
    threads: "Count" = 10
    ahead: "Number" = 2_000
    lease: "Period" = timedelta(seconds=15)
    beat: "Period" = DERIVED
    drain_timeout: "Delay" = timedelta(seconds=30)
    flush_size: "Count" = 500
    flush_every: "Delay" = timedelta(milliseconds=5)
    notify: bool = True
    coalesce: bool = False
    watch_every: "Period" = timedelta(milliseconds=50)

    keep_succeeded: "Limit" = timedelta(days=7)
    keep_dead: "Limit" = timedelta(days=180)
    keep_cancelled: "Limit" = timedelta(days=180)

    payload_limit: "Size" = PAYLOAD_LIMIT
    result_limit: "Size" = RESULT_LIMIT

    max_attempts: "Count" = 5
    retry: "Name" = "1m,5m,20m"
    timeout: "Limit" = None

    synchronous: "Durability" = "FULL"
    log_format: Literal["auto", "human", "json"] = "auto"

    origins: Origins = field(default=Origins(), compare=False, repr=False)

    def __post_init__(self) -> None:
        derived = {"read_only": self.production, "beat": self.lease / 5}
        for name, value in derived.items():
            if getattr(self, name) is DERIVED:
                object.__setattr__(self, name, value)

    @property
    def called(self) -> str:
        """What the database is called: its profile, or the last part of its URL."""
        return self.profile or self.url.database.rpartition("/")[2] or self.url.kind

    def describe(self) -> list[Row]:
        """List every setting for people; names in the environment that do nothing come last."""
        places, default = self.origins.places, Settings()
        rows = []
        for name in NAMES:
            value = getattr(self, name)
            source = "default" if value == getattr(default, name) else "argument"
            rows.append(Row(name, _text(value), places.get(name, source)))
        tls = self.url.tls
        rows.append(Row("tls", tls.mode or "not needed", "weaker than verify-full" if tls.weak else "derived from url"))
        return rows + [Row(name, "", "ignored: no setting has this name") for name in self.origins.stray]


NAMES = tuple(each.name for each in fields(Settings) if each.name != "origins")
"""Of all settings, in the order in which they are shown."""


def _text(value: Any) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return "on" if value else "off"
        case timedelta():
            return format_duration(value)
        case tuple():
            return ", ".join(value)
    return str(value)
