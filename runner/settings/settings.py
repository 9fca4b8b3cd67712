"""Settings: every value that a user can set, with its type, bounds, default, description and origin."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import (
    ByteSize,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from runner.errors import InvalidSettings, InvalidUrl, ShardNotChosen
from runner.model.duration import format_duration
from runner.model.outcome import ON_ERROR, ON_NONE
from runner.model.task import State
from runner.settings.queue_retention import parse_queue_retention
from runner.settings.types import (
    ZERO,
    Address,
    CodecKeys,
    Count,
    Delay,
    Durability,
    ErrorRule,
    Identifier,
    Lease,
    Limit,
    Maximum,
    Modules,
    Name,
    Names,
    NoneRule,
    Number,
    Percentage,
    Period,
    Prefix,
    QueueRetentions,
    Receivers,
    Retention,
    Secret,
    ServeTokens,
    Size,
    WebAddress,
    value_text,
)
from runner.text.sanitize import one_line
from runner.urls import DatabaseUrl, parse_url

DEFAULT_URL = "sqlite:///tasktui.db"

MAX_TRANSACTIONS = 10
"""Default limit of open handler transactions; more connections rarely make a database faster."""

DERIVED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "read_only": lambda earlier: earlier["production"],
    "spare_threads": lambda earlier: earlier["threads"],
    "transaction_connections": lambda earlier: min(earlier["concurrency"] + earlier["threads"], MAX_TRANSACTIONS),
    "heartbeat_interval": lambda earlier: earlier["lease_timeout"] / 5,
}
"""Defaults that depend on settings before them."""

UNDERIVED = "underived"
"""The type of the error of a default that an invalid setting prevents."""

ENV_PREFIX = "TASKTUI_"


class Row(NamedTuple):
    """One line of `Settings.describe`: a setting, its value as text without secrets, and its origin."""

    name: str
    value: str
    origin: str


class Origins(NamedTuple):
    """Origins of the settings.

    Args:
        places: origin by setting, without those at their default.
        stray: TASKTUI_* variables that are not settings.
    """

    places: Mapping[str, str] = {}
    stray: tuple[str, ...] = ()

    def of(self, name: str) -> str:
        """Return the origin of a setting that is not at its default."""
        return self.places.get(name, f"argument {name}")


SOURCES: ContextVar[tuple[PydanticBaseSettingsSource, ...]] = ContextVar("SOURCES", default=())
"""The sources of `load` besides the arguments, the strongest first; none for the constructor alone."""


class Settings(BaseSettings):
    """All settings. The constructor uses only its arguments and defaults; `load` reads all sources.

    Raises:
        InvalidSettings: an argument is not valid. The message names its origin and does not repeat it.
        InvalidUrl: the URL is not valid or not supported.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
    )

    profile: str | None = Field(default=None, description="profile of the configuration file")
    config: Path | None = Field(default=None, description="path of the configuration file, if not the default one")
    production: bool = Field(
        default=False, description="the console displays PRODUCTION, starts read-only and asks for more confirmation"
    )
    read_only: bool = Field(
        default=None,
        validate_default=True,
        description="the console cannot change anything; on by default if production is on",
    )
    shards: Names = Field(
        default=(),
        description="profiles whose databases are the shards of this one, separated by commas; none is one database",
    )
    shard_rule: Name = Field(
        default="hash",
        description="the shard of a route: hash, or a function as package.module:function, which takes the route and "
        "returns the name of a shard",
    )
    url: InstanceOf[DatabaseUrl] = Field(default_factory=lambda: parse_url(DEFAULT_URL), description="the database")
    password: Secret | None = Field(
        default=None, description="PostgreSQL: the password, if url has none; not in arguments of commands"
    )
    password_command: Secret | None = Field(
        default=None,
        description="program that prints the password, such as a password manager; it runs without a shell",
    )
    table_prefix: Prefix = Field(default="", description="prefix of every table name")
    table_schema: Identifier | None = Field(
        default=None,
        description="PostgreSQL schema of the tables; none is the first schema of the search path",
    )
    app_version: Name | None = Field(
        default=None,
        description="version of the application, such as a release or a commit, by which failures are compared; that "
        "of tasktui by default",
    )
    handlers: Modules = Field(default=(), description="modules that define handlers, separated by commas")
    queues: Names = Field(
        default=(), description="queues that the runner claims from, separated by commas; none is all"
    )

    only: Names = Field(
        default=(), description="handlers that the runner takes, such as mail.send,report.*; none is all"
    )
    without: Names = Field(default=(), description="handlers that the runner leaves, such as mail.send,report.*")
    buckets: Name | None = Field(
        default=None, description="buckets that the runner claims from, such as 0-499,700; none is all"
    )
    slice: Name | None = Field(
        default=None,
        description="share of the buckets: 2/8 (those with bucket % 8 = 2; a second runner of a slice is its standby), "
        "live (the live runners with the same handlers and queues divide them), single (one runner claims), or a class "
        "of your own as package.module:Class",
    )

    poll_mode: Name = Field(
        default="fixed-rate",
        description="when scans start: fixed-rate every period, fixed-delay a period after each scan, spread (the "
        "runners divide the scans), tiers or tiers:0=3s,5=30s,15=60s (longer for failed tasks), throttle (one batch "
        "per period), or a class as package.module:Class",
    )
    poll_interval: Delay = Field(
        default=timedelta(seconds=1),
        description="the period of scans, such as 250ms or 1m; a submit causes one sooner; 0 scans once and stops",
    )
    scans: Names = Field(
        default=(), description="handlers with scans of their own and their period, such as report.*=1m,sms.send=10s"
    )
    initial_delay: Delay = Field(default=ZERO, description="the time before the first scan")
    claim_batch_size: Count = Field(
        default=1_000,
        description="maximum number of tasks per claim; a scan claims until no task is due or no slot is free, and "
        "with poll_mode throttle at most this many per period",
    )
    concurrency: Count = Field(default=100, description="maximum number of coroutines running at the same time")
    threads: Count = Field(default=10, description="maximum number of plain functions running at the same time")
    spare_threads: Number = Field(
        default=None,
        validate_default=True,
        description="maximum number of threads that replace those of functions that do not end after their timeout; as "
        "many as threads by default",
    )
    processes: Maximum = Field(
        default=None,
        description='maximum number of handlers with executor="process" at the same time; none is one per processor',
    )
    executors: Names = Field(
        default=(),
        description="external executors for handlers with executor=NAME, such as gpu=dask:tcp://scheduler:8786, "
        "or cpu=package.module:function, which returns a concurrent.futures.Executor",
    )
    serve_tokens: ServeTokens = Field(
        default=(),
        description="tokens of HTTP executors: a name, a secret and the handlers whose tasks it may pull, such as "
        "node=SECRET@mail.send+sms.send",
    )
    server_token: Secret | None = Field(
        default=None, description="secret of a token of serve_tokens, for runner work --server"
    )
    tasks_per_process: Count = Field(
        default=1_000, description="number of tasks after which a worker process ends and a new one takes its place"
    )
    transaction_connections: Count = Field(
        default=None,
        validate_default=True,
        description="PostgreSQL: maximum number of handler transactions open at the same time; at most concurrency + "
        "threads by default",
    )
    prefetch: Number = Field(
        default=2_000,
        description="maximum number of tasks claimed beyond the free slots, while tasks finish quickly; 0 turns it off",
    )
    claim_order: Name = Field(
        default="strict",
        description="order of claims: strict (by priority), fresh (strict, and retried tasks after the fresh ones of "
        "their priority), aged or aged:10s (a waiting task rises by one priority per minute or 10 s), "
        "weighted:mail=3,sms=1 (queues divide the slots), or a class as package.module:Class",
    )
    lease_timeout: Lease = Field(
        default=timedelta(seconds=15),
        description="time without a heartbeat after which a runner is lost and others take over its tasks",
    )
    heartbeat_interval: Period = Field(
        default=None,
        validate_default=True,
        description="the interval of heartbeats; a fifth of the lease by default",
    )
    drain_timeout: Delay = Field(
        # Shorter than the stop timeout of service managers (systemd: 90 s).
        default=timedelta(seconds=30),
        description="how long a stopping runner waits for running tasks",
    )
    settle_batch_size: Count = Field(default=1_000, description="number of outcomes that are written without a wait")
    settle_interval: Delay = Field(
        default=timedelta(milliseconds=20),
        description="maximum wait of outcomes for others; a quarter of it for single ones, and while a task may wait",
    )
    notify: bool = Field(
        default=True, description="submits wake runners, and ends callers; on SQLite, Linux reports changes of the file"
    )
    prepared_statements: bool = Field(
        default=True, description="PostgreSQL: prepare frequent statements; never behind a pooler, which is recognized"
    )
    coalesce: bool = Field(default=False, description="concurrent single submits of a process share commits")
    sqlite_poll_interval: Period = Field(
        default=timedelta(milliseconds=50),
        description="SQLite: how often a runner checks for new tasks; a fifth as often where notify works",
    )

    retention_succeeded: Retention = Field(
        default=timedelta(days=7),
        description="age at which succeeded tasks are pruned; never keeps them, 0s deletes each when it succeeds",
    )
    retention_dead: Limit = Field(default=timedelta(days=180), description="the same for dead tasks")
    retention_cancelled: Limit = Field(default=timedelta(days=180), description="the same for cancelled tasks")
    retention_queues: QueueRetentions = Field(
        default=(),
        description="queues with a retention of their own: audit=365d, or of one state: chat:succeeded=1h; never keeps",
    )
    retention_statistics: Limit = Field(
        default=timedelta(days=30), description="the same for statistics and ended runners"
    )

    payload_limit: Size = Field(
        default=ByteSize(256 * 1024),
        description="maximum size of a payload; a task with a larger one, from a plain INSERT, is dead",
    )
    result_limit: Size = Field(
        default=ByteSize(64 * 1024), description="maximum size of a result; a larger one is not kept"
    )
    checkpoint_limit: Size = Field(default=ByteSize(256 * 1024), description="maximum size of a checkpoint")
    checkpoint_interval: Period = Field(
        default=timedelta(seconds=30), description="how often a runner stores the state that a handler keeps"
    )
    max_attempts: Count = Field(default=5, description="attempts, unless the task or the handler sets it")
    retry: Name = Field(default="1m,5m,20m", description="retry plan, unless the task or the handler sets it")
    timeout: Limit = Field(
        default=timedelta(minutes=15), description="time limit of an attempt, unless the task or the handler sets it"
    )
    on_error: ErrorRule = Field(default=ON_ERROR.choices[0], description=ON_ERROR.help)
    on_none: NoneRule = Field(default=ON_NONE.choices[0], description=ON_NONE.help)
    max_interruptions: Maximum = Field(
        default=20,
        description="how often stops of runners and outages may interrupt a task without a new checkpoint; or none",
    )

    codec: Name = Field(
        default="none",
        description="codec that encrypts the tasks of handlers without their own: fernet, or an own one as "
        "package.module:name",
    )
    codec_keys: CodecKeys = Field(
        default=(),
        description="keys of the codec fernet, separated by commas or lines: the first one encrypts, all decrypt; not "
        "in arguments of commands",
    )
    codec_keys_command: Secret | None = Field(
        default=None, description="program that prints the codec_keys; it runs without a shell, when a key is needed"
    )
    codec_plain: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="payloads that are not encrypted, of handlers with a codec: refuse (the task is dead), or accept "
        "while producers change over",
    )

    sqlite_synchronous: Durability = Field(
        default="FULL", description="SQLite: FULL survives power loss, NORMAL may lose the last commits"
    )
    listen: Address | None = Field(
        default=None,
        description="address on which runner work serves /livez, /readyz and /metrics, such as 127.0.0.1:9464",
    )
    health_file: Path | None = Field(
        default=None, description="file that runner work touches every second while the runner is live"
    )
    otel: bool = Field(
        default=False,
        description="send metrics over OpenTelemetry to the collector of the variable OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    alert_interval: Period = Field(
        default=timedelta(minutes=1),
        description="alerts: how often one runner evaluates the rules, if there is a receiver or an alert_ping",
    )
    alert_max_dead: Number = Field(
        default=0, description="alerts: number of tasks that may have died in the last hour and are still dead"
    )
    alert_max_failing: Percentage = Field(
        default=50,
        description="alerts: percentage of attempts of ten minutes that may fail in a queue or a handler",
    )
    alert_max_failures: Count = Field(default=3, description="alerts: number of times that a live task may fail")
    alert_max_late: Delay = Field(
        default=timedelta(minutes=5),
        description="alerts: time for which the first ready task of a queue, or the run of a schedule, may be due",
    )
    alert_receivers: Receivers = Field(
        default=(),
        description="where notices of alerts go, by name: ops=smtp://USER:PASSWORD@HOST?from=ADDRESS&to=ADDRESS, "
        "hook=https://HOST/PATH#KEY, or chat=slack://TOKENS and other addresses of Apprise; none sends no notices",
    )
    alert_ping: WebAddress | None = Field(
        default=None,
        description="address that a runner calls after each evaluation of the alerts, as a dead man's switch",
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto", description="format of log lines: human or json; auto is human on a terminal"
    )
    log_level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None, description="lowest level of log lines; info, or the levels that the application has configured"
    )

    origins: InstanceOf[Origins] = Field(default=Origins(), repr=False, exclude=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature of pydantic-settings
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the arguments, and the sources of `load`."""
        return init_settings, *SOURCES.get()

    @model_validator(mode="wrap")
    @classmethod
    def _name_origins(cls, values: dict[str, Any], validate: ModelWrapValidatorHandler[Self]) -> Self:
        origins = values.get("origins", Origins())
        if "url" in values:
            values = values | {"url": locate(values["url"], origins.of("url"))}
        try:
            return validate(values)
        except ValidationError as error:
            raise _invalid_settings(error, origins) from None

    @field_validator(*DERIVED, mode="before")
    @classmethod
    def _derive(cls, value: object, info: ValidationInfo) -> object:
        if value is not None or info.field_name is None:
            return value
        try:
            return DERIVED[info.field_name](info.data)
        except KeyError:
            raise PydanticCustomError(UNDERIVED, "another setting is not valid") from None

    @field_validator("table_schema")
    @classmethod
    def _schema_fits(cls, schema: str | None, info: ValidationInfo) -> str | None:
        if schema is not None and schema.startswith("pg_"):
            raise ValueError("PostgreSQL reserves schemas that begin with pg_")
        if schema is not None and "url" in info.data and info.data["url"].file is not None:
            raise ValueError("SQLite has no schemas; use table_prefix")
        return schema

    @field_validator("slice")
    @classmethod
    def _slice_alone(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("buckets") is not None:
            raise ValueError("a runner has buckets or a slice; choose one")
        return value

    @field_validator("heartbeat_interval")
    @classmethod
    def _heartbeat_fits(cls, heartbeat: timedelta, info: ValidationInfo) -> timedelta:
        lease = info.data.get("lease_timeout")
        if lease is not None and heartbeat > lease / 2:
            raise ValueError(f"it must be at most half of the lease ({format_duration(lease)}), so that one may fail")
        return heartbeat

    @field_validator("retention_queues")
    @classmethod
    def _rows_remain(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if info.data.get("retention_succeeded") == timedelta():
            for each in map(parse_queue_retention, texts):
                if State.SUCCEEDED in each.states and each.age != timedelta():
                    why = "but retention_succeeded is 0s, which keeps no row of any queue: set it to 1m or more"
                    raise ValueError(f"queue {one_line(each.queue)} keeps its succeeded tasks, {why}")
        return texts

    def __eq__(self, other: object) -> bool:
        """Compare the values; their origins do not matter."""
        return isinstance(other, Settings) and all(getattr(self, name) == getattr(other, name) for name in NAMES)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in NAMES))

    @property
    def shard(self) -> str | None:
        """The shard whose database these settings name; None for all shards, and without any."""
        return self.profile if self.profile in self.shards else None

    def require_one_database(self) -> None:
        """Refuse settings of several shards.

        Raises:
            ShardNotChosen: the profile has shards, and these settings name none of them.
        """
        if self.shards and self.shard is None:
            raise ShardNotChosen(profile=self.called, shards=", ".join(self.shards))

    @property
    def exports_metrics(self) -> bool:
        """True if an exporter reads the counts of a runner."""
        return self.listen is not None or self.otel

    @property
    def sends_alerts(self) -> bool:
        """True if a runner evaluates the alerts."""
        return bool(self.alert_receivers) or self.alert_ping is not None

    @property
    def called(self) -> str:
        """Short name of the database: its profile, or the last part of its URL."""
        return self.profile or self.url.database.rpartition("/")[2] or self.url.kind

    def describe(self) -> list[Row]:
        """List every setting; TASKTUI_* variables that are not settings come last."""
        rows = []
        for name in NAMES:
            origin = self.origins.places.get(name, "argument" if name in self.model_fields_set else "default")
            rows.append(Row(name, value_text(getattr(self, name)), origin))
        tls = self.url.tls
        rows.append(Row("tls", tls.mode or "not needed", "weaker than verify-full" if tls.weak else "derived from url"))
        return rows + [Row(name, "", "ignored: not a setting") for name in self.origins.stray]


DESCRIPTIONS = {name: field.description or "" for name, field in Settings.model_fields.items() if name != "origins"}
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
    if not isinstance(text, str | DatabaseUrl):
        raise InvalidUrl(url="***", why=f"it is not text ({origin})")
    try:
        return parse_url(text)
    except InvalidUrl as error:
        raise InvalidUrl(url=error.fields["url"], why=f"{error.fields['why']} ({origin})") from None


def unknown_setting(name: str) -> str:
    """Explain that a name is not a setting."""
    similar = similar_setting(name)
    return f"unknown setting {name!r}" + (f"; did you mean {similar!r}?" if similar else "")


def similar_setting(name: str) -> str | None:
    """Return the setting most similar to a name; None if none is similar."""
    return next(iter(get_close_matches(name.lower(), NAMES, n=1, cutoff=0.75)), None)


def _invalid_settings(error: ValidationError, origins: Origins) -> InvalidSettings:
    """Convert pydantic's errors to ours, with the origin of each value and without the value."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    # A default that another setting's error prevents is not reported.
    reasons = [_reason(item, origins) for item in errors if item["type"] != UNDERIVED]
    (where, why), *more = reasons
    return InvalidSettings(where=where, why="; ".join([why, *(f"{origin}: {reason}" for origin, reason in more)]))


def _reason(error: ErrorDetails, origins: Origins) -> tuple[str, str]:
    """Return the origin of a value and the reason why it is not valid."""
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return origins.of(name), unknown_setting(name)
    return origins.of(name), error["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
