"""Settings: every value that can be chosen, with its default, its bounds and the place it came from."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from annotated_types import Ge, Gt
from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    StringConstraints,
    ValidationInfo,
    field_validator,
)

from runner.errors import InvalidDuration
from runner.people.times import format_duration, parse_duration
from runner.urls import DatabaseUrl, parse_url

DEFAULT_URL = "sqlite:///tasktui.db"

LONGEST_PREFIX = 20
"""Characters of a table prefix; with it the longest name of an index still fits into PostgreSQL's 63 bytes."""


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except InvalidDuration:
        raise ValueError("it must be a duration such as 250ms, 30s, 5m, 1h30m or 2d") from None


def _or_none(value: Any) -> Any:
    return None if isinstance(value, str) and value.strip().lower() in {"none", "never", "forever"} else value


def _items(value: Any) -> Any:
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


_ZERO = timedelta(0)
Delay: TypeAlias = Annotated[timedelta, Ge(_ZERO), BeforeValidator(_duration)]
Period: TypeAlias = Annotated[timedelta, Gt(_ZERO), BeforeValidator(_duration)]
Kept: TypeAlias = Annotated[Period | None, BeforeValidator(_or_none)]
Count: TypeAlias = Annotated[int, Ge(1)]
Size: TypeAlias = Annotated[ByteSize, Ge(1)]
Identifier: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]*$", max_length=63)]
Prefix: TypeAlias = Annotated[str, StringConstraints(pattern=r"^([a-z_][a-z0-9_]*)?$", max_length=LONGEST_PREFIX)]
Module: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*$")]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Url: TypeAlias = Annotated[DatabaseUrl, PlainValidator(parse_url), PlainSerializer(str)]


class Row(NamedTuple):
    """One line of `Settings.describe`: a setting, its value as text without secrets, and where it came from."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """All that can be set. Constructed directly it is its arguments and defaults; only `load` looks around.

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
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    profile: str | None = None
    config: Path | None = None
    production: bool = False
    read_only: bool = Field(default_factory=lambda data: data["production"])
    url: Url = Field(default_factory=lambda: parse_url(DEFAULT_URL))
    table_prefix: Prefix = ""
    table_schema: Identifier | None = None
    handlers: Annotated[tuple[Module, ...], BeforeValidator(_items)] = ()
    queues: Annotated[tuple[Name, ...], BeforeValidator(_items)] = ()

    mode: Literal["fixed-rate", "fixed-delay"] = "fixed-rate"
    every: Period = timedelta(seconds=1)
    initial_delay: Delay = _ZERO
    batch: Count = 500
    slots: Count = 100
    threads: Count = 10
    ahead: Annotated[int, Ge(0)] = 2_000
    lease: Period = timedelta(seconds=15)
    beat: Period = Field(default_factory=lambda data: data["lease"] / 5)
    drain_timeout: Delay = timedelta(seconds=30)
    flush_size: Count = 500
    flush_every: Delay = timedelta(milliseconds=5)
    notify: bool = True
    coalesce: bool = False
    watch_every: Period = timedelta(milliseconds=50)

    keep_succeeded: Kept = timedelta(days=7)
    keep_dead: Kept = timedelta(days=180)
    keep_cancelled: Kept = timedelta(days=180)

    payload_limit: Size = ByteSize(256 * 1024)
    result_limit: Size = ByteSize(64 * 1024)

    max_attempts: Count = 5
    retry: Name = "1m,5m,20m"
    timeout: Annotated[Period | None, BeforeValidator(_or_none)] = None

    synchronous: Annotated[Literal["FULL", "NORMAL"], BeforeValidator(_upper)] = "FULL"
    log_format: Literal["auto", "human", "json"] = "auto"

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _stray: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("table_schema")
    @classmethod
    def _schema_fits(cls, schema: str | None, info: ValidationInfo) -> str | None:
        if schema is not None and schema.startswith("pg_"):
            raise ValueError("PostgreSQL keeps schemas that begin with pg_ to itself")
        if schema is not None and "url" in info.data and info.data["url"].kind == "sqlite":
            raise ValueError("SQLite has no schemas; use table_prefix")
        return schema

    @field_validator("beat")
    @classmethod
    def _beat_fits(cls, beat: timedelta, info: ValidationInfo) -> timedelta:
        lease = info.data.get("lease")
        if lease is not None and beat > lease / 2:
            raise ValueError(
                f"it must be at most half of the lease ({format_duration(lease)}), so that one lost beat costs nothing"
            )
        return beat

    @property
    def called(self) -> str:
        """What the database is called: its profile, or the last part of its URL."""
        return self.profile or self.url.database.rpartition("/")[2] or self.url.kind

    def describe(self) -> list[Row]:
        """List every setting for people; names in the environment that do nothing come last."""
        rows = [
            Row(name, _text(getattr(self, name)), self._origins.get(name, self._source(name)))
            for name in type(self).model_fields
        ]
        tls = self.url.tls
        rows.append(Row("tls", tls.mode or "not needed", "weaker than verify-full" if tls.weak else "derived from url"))
        return rows + [Row(name, "", "ignored: no setting has this name") for name in self._stray]

    def traced(self, origins: Mapping[str, str], stray: Sequence[str]) -> Self:
        """Remember where the values came from, for `describe`.

        Args:
            origins: the place of each value that is no default, by name.
            stray: names in the environment that do nothing.
        """
        self._origins.update(origins)
        self._stray = tuple(stray)
        return self

    def _source(self, name: str) -> str:
        return "argument" if name in self.model_fields_set else "default"


def _text(value: Any) -> str:
    match value:
        case None | ():
            return "none"
        case bool():
            return "on" if value else "off"
        case timedelta():
            return format_duration(value)
        case ByteSize():
            return value.human_readable()
        case tuple():
            return ", ".join(value)
    return str(value)
