"""Task options: the one table of the values that producers set."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from runner.errors import InvalidTask
from runner.handlers.dependencies import check_parents, dependencies, parse_parents
from runner.handlers.keys import check_order, check_unique
from runner.model.duration import LONGEST_SECONDS, parse_duration
from runner.model.task import BUCKETS, Priority
from runner.model.text_limits import (
    LONGEST_KEY,
    require_hosts,
    require_json,
    require_name,
    require_storable,
    require_text,
    require_whole,
)
from runner.text.operator import host_list
from runner.text.times import EARLIEST, LATEST, parse_moment


class Clock(NamedTuple):
    """The time that relative times refer to.

    Args:
        now: the current time, aware.
        zone: time zone of times without an offset.
    """

    now: datetime
    zone: tzinfo


Parse: TypeAlias = Callable[[str, Any, Clock], Any]
"""Takes an option's name, its value from JSON or the command line, and the clock; returns the value for NewTask."""


def _text(name: str, value: Any, _clock: Clock) -> str:
    if not isinstance(value, str):
        raise InvalidTask(field=name, value=value, why="expected text")
    return value


def _integer(name: str, value: Any, _clock: Clock) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidTask(field=name, value=value, why="expected a whole number")
    return value


def _moment(name: str, value: Any, clock: Clock) -> datetime:
    return parse_moment(_text(name, value, clock), *clock)


def _seconds(_name: str, value: Any, _clock: Clock) -> float:
    return parse_duration(value).total_seconds()


def _tags(name: str, value: Any, _clock: Clock) -> str:
    if not isinstance(value, (list, tuple)) or not all(isinstance(tag, str) for tag in value):
        raise InvalidTask(field=name, value=value, why="expected a list of texts")
    return json.dumps(list(value))


def _json_list(tags: Iterable[str]) -> str | None:
    """Write tags as JSON. A string is rejected: as an iterable it would become one tag per letter."""
    if isinstance(tags, str):
        raise InvalidTask(field="tags", value=tags, why=f"expected a list of strings, such as [{tags!r}]")
    words = list(tags)
    for word in words:
        require_text("tags", word)
    return json.dumps(words) if words else None


def _check_text(name: str, value: Any, limit: int = 10_000) -> None:
    require_storable(name, value, limit)


def _check_queue(name: str, value: Any) -> None:
    require_text(name, value)
    require_name(name, value)


def _check_seconds(name: str, value: Any, zero: bool = False) -> None:
    if not (math.isfinite(value) and 0 <= value < LONGEST_SECONDS and (value or zero)):
        raise InvalidTask(field=name, value=value, why=f"it must be a number of seconds up to {LONGEST_SECONDS:.0e}")


def _check_moment(name: str, value: Any) -> None:
    if not isinstance(value, datetime):
        raise InvalidTask(field=name, value=value, why="it must be a datetime with a time zone")
    if value.tzinfo is None:
        why = "it has no time zone: use datetime.now(UTC), or astimezone() for local time"
        raise InvalidTask(field=name, value=value.isoformat(), why=why)
    if not EARLIEST <= value < LATEST:
        raise InvalidTask(field=name, value=value.isoformat(), why=f"times range from {EARLIEST:%Y} to {LATEST:%Y}")


def _check_tags(name: str, value: Any) -> None:
    require_storable(name, value)
    if not isinstance(require_json(name, value), list):
        raise InvalidTask(field=name, value=value[:80], why="it is not a JSON array")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOption:
    """A task option: a value that producers set.

    `runner submit`, JSON lines, the checks of a submit, the columns of its statement, the rights of the producer role
    and the documentation follow this description. A new option also needs its typed argument in `handler.options`
    (runner.client.handler), its field in NewTask (runner.model.task), and its column in runner.db.schema.task and in a
    migration; tests compare the first two with this table.

    Args:
        name: name in `handler.options`, in JSON lines and in the documentation.
        type: type of the value in a submit's statement; None for values that the statement does not carry as they are.
        help: help text of `runner submit`.
        column: the column of a task; None if it has no column of this name.
        field: the field of NewTask; the name by default.
        parse: reads a value from JSON or the command line; None if producers set the option only with SQL or a NewTask.
        convert: reads a value from Python; None if it needs no conversion.
        check: takes the name and the value in NewTask, and raises InvalidTask if a row cannot hold it or no runner
            could execute the task.
        default: when a handler's default for it applies: at the submit, at the claim, or derived at each call; None if
            handlers have no default for it.
        flag: name on the command line, without dashes; the name by default.
    """

    name: str
    type: Literal["text", "json", "integer", "smallint", "float", "time"] | None = "text"
    help: str = ""
    column: str | None = None
    field: str = ""
    parse: Parse | None = _text
    convert: Callable[[Any], Any] | None = None
    check: Callable[[str, Any], None] | None = None
    default: Literal["submit", "claim", "call"] | None = None
    flag: str = ""


def _length(value: Any) -> float:
    return parse_duration(value).total_seconds()


TASK_OPTIONS: tuple[TaskOption, ...] = (
    TaskOption(
        name="run_at",
        type="time",
        column="run_at",
        flag="at",
        parse=_moment,
        check=_check_moment,
        help="Not before this time: +15m, 14:30, tomorrow 9:00, 2026-11-20T14:30+01:00.",
    ),
    TaskOption(
        name="delay",
        type="float",
        parse=_seconds,
        convert=_length,
        check=partial(_check_seconds, zero=True),
        help="Not before this much later: 30s, 10m, 2d.",
    ),
    TaskOption(
        name="expires",
        type="float",
        parse=_seconds,
        convert=_length,
        check=_check_seconds,
        default="submit",
        help="Not started later than this much after it is due: 10m, 1h.",
    ),
    TaskOption(
        name="expires_at",
        type="time",
        column="expires_at",
        parse=_moment,
        check=_check_moment,
        help="Not started after this time: +15m, 14:30, tomorrow 9:00; replaces --expires.",
    ),
    TaskOption(
        name="priority",
        type="smallint",
        column="priority",
        parse=_integer,
        check=partial(require_whole, range(Priority.LOWEST, Priority.HIGHEST + 1), "priorities range from 1 to 9"),
        default="submit",
        help="1 to 9; 9 runs first.",
    ),
    TaskOption(
        name="key",
        column="key",
        check=partial(_check_text, limit=LONGEST_KEY),
        help="A business key to search by.",
    ),
    TaskOption(
        name="queue",
        column="queue",
        check=_check_queue,
        default="submit",
        help="The queue, for pauses and limits.",
    ),
    TaskOption(
        name="max_attempts",
        type="integer",
        column="max_attempts",
        parse=_integer,
        check=partial(require_whole, range(1, 2**31), "it must be a positive integer"),
        default="claim",
        help="Maximum number of attempts.",
    ),
    TaskOption(  # A retry plan is parsed and checked by runner.policy, which is above this package.
        name="retry",
        column="retry",
        default="claim",
        help="The retry plan: 1m,5m,20m or exp:10s*2<1h or sidekiq or never.",
    ),
    TaskOption(
        name="timeout",
        type="float",
        column="timeout",
        parse=_seconds,
        convert=_length,
        check=_check_seconds,
        default="claim",
        help="Time limit of an attempt: 30s, 5m.",
    ),
    TaskOption(
        name="tags",
        type="json",
        column="tags",
        flag="tag",
        parse=_tags,
        convert=_json_list,
        check=_check_tags,
        help="A word to search by; may be repeated.",
    ),
    TaskOption(
        name="after",
        type=None,
        parse=lambda _name, value, _clock: parse_parents(value),
        convert=lambda after: dependencies(after) or None,
        check=lambda _name, parents: check_parents(parents),
        help="A parent that must finish first, by id or as handler=key; may be repeated.",
    ),
    TaskOption(
        name="bucket",
        type="smallint",
        column="bucket",
        parse=_integer,
        check=partial(require_whole, range(BUCKETS), f"buckets range from 0 to {BUCKETS - 1}"),
        default="call",
        help="A number from 0 to 999 to spread tasks by; random by default.",
    ),
    TaskOption(
        name="tenant",
        column="tenant",
        check=_check_queue,
        default="call",
        help="The customer, account or host that the task belongs to, for limits per tenant.",
    ),
    TaskOption(
        name="hosts",
        column="hosts",
        parse=lambda name, value, _: host_list(value if isinstance(value, str) else json.loads(_tags(name, value, _))),
        convert=host_list,
        check=require_hosts,
        default="submit",
        help="The hosts that may take it: web-3 or web-1,web-2; same for this host; any for all, the default.",
    ),
    TaskOption(
        name="hosts_for",
        type="float",
        parse=_seconds,
        convert=_length,
        check=_check_seconds,
        default="submit",
        help="After it has been due for this long, any host may take it: 10m, 1h; with --hosts.",
    ),
    TaskOption(
        name="unique_key",
        type=None,
        column="unique_key",
        field="unique",
        check=lambda _name, unique: check_unique(unique),
        default="call",
        help="Allow only one task of the handler with this key.",
    ),
    TaskOption(
        name="unique",
        type=None,
        default="call",
        help='Scope of the unique key: "until finished", "until started", forever, "for 1h" or "debounce 5s".',
    ),
    TaskOption(
        name="on_duplicate",
        type=None,
        field="unique",
        default="call",
        help="If the key is taken: skip submits nothing, replace updates the waiting task, error fails.",
    ),
    TaskOption(
        name="order_key",
        type=None,
        column="order_key",
        field="order",
        check=lambda _name, order: check_order(order),
        default="call",
        help="Run the tasks with this key one at a time, in the order of submit.",
    ),
    TaskOption(
        name="order_on_failure",
        type=None,
        field="order",
        default="call",
        help="If the task before it with this order key fails: wait for it, cancel this task, or run it.",
    ),
    TaskOption(name="trace", column="trace", parse=None, check=_check_text),
    TaskOption(name="submitted_by", column="submitted_by", parse=None, check=_check_text),
)
"""All task options, in the order of `handler.options` and of the command line."""

SETTABLE = {option.name: option for option in TASK_OPTIONS if option.parse is not None}
"""The options that `handler.options`, `runner submit` and JSON lines take, by name."""

CHECKS = tuple((option.name, option.field or option.name, option.check) for option in TASK_OPTIONS if option.check)
"""Name, field of NewTask, and check of each option that has one."""


def convert(options: Mapping[str, Any]) -> dict[str, Any]:
    """Read options from Python into fields of NewTask, without the options that Rules reads.

    Args:
        options: values by option name; None for an omitted one.

    Raises:
        InvalidTask: a value is not valid.
    """
    return {
        name: option.convert(value) if option.convert else value
        for name, value in options.items()
        if value is not None and (option := SETTABLE[name]).default != "call"
    }
