"""Task options: the one table of the values that producers set."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypedDict

from runner.handlers.call_options import (
    NO_CALL_OPTIONS,
    CallOptions,
    check_order_key,
    check_route,
    check_unique_key,
    parse_on_duplicate,
    parse_order_on_failure,
    parse_scope,
    require_call_text,
)
from runner.handlers.dependencies import check_parents, dependencies, parse_parents
from runner.handlers.option_values import (
    Parse,
    check_headers,
    check_name,
    check_seconds,
    check_tags,
    check_text,
    check_time,
    check_workflow,
    duration_as_seconds,
    headers_as_json,
    parse_headers,
    parse_integer,
    parse_seconds,
    parse_tags,
    parse_text,
    parse_time,
    tags_as_json,
)
from runner.model.outcome import Delay
from runner.model.task import BUCKETS, Priority
from runner.model.text_limits import LONGEST_KEY, require_hosts, require_whole
from runner.text.hosts import host_list


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
    parse: Parse | None = parse_text
    convert: Callable[[Any], Any] | None = None
    check: Callable[[str, Any], None] | None = None
    default: Literal["submit", "claim", "call"] | None = None
    flag: str = ""


TASK_OPTIONS: tuple[TaskOption, ...] = (
    TaskOption(
        name="run_at",
        type="time",
        column="run_at",
        flag="at",
        parse=parse_time,
        check=check_time,
        help="Not before this time: +15m, 14:30, tomorrow 9:00, 2026-11-20T14:30+01:00.",
    ),
    TaskOption(
        name="delay",
        type="float",
        parse=parse_seconds,
        convert=duration_as_seconds,
        check=partial(check_seconds, zero=True),
        help="Not before this much later: 30s, 10m, 2d.",
    ),
    TaskOption(
        name="expires",
        type="float",
        parse=parse_seconds,
        convert=duration_as_seconds,
        check=check_seconds,
        default="submit",
        help="Not started later than this much after it is due: 10m, 1h.",
    ),
    TaskOption(
        name="expires_at",
        type="time",
        column="expires_at",
        parse=parse_time,
        check=check_time,
        help="Not started after this time: +15m, 14:30, tomorrow 9:00; replaces --expires.",
    ),
    TaskOption(
        name="priority",
        type="smallint",
        column="priority",
        parse=parse_integer,
        check=partial(require_whole, range(Priority.LOWEST, Priority.HIGHEST + 1), "priorities range from 1 to 9"),
        default="submit",
        help="1 to 9; 9 runs first.",
    ),
    TaskOption(
        name="key",
        column="key",
        check=partial(check_text, limit=LONGEST_KEY),
        help="A business key to search by.",
    ),
    TaskOption(
        name="queue",
        column="queue",
        check=check_name,
        default="submit",
        help="The queue, for pauses and limits.",
    ),
    TaskOption(
        name="max_attempts",
        type="integer",
        column="max_attempts",
        parse=parse_integer,
        check=partial(require_whole, range(1, 2**31), "it must be a whole number from 1 to 2,147,483,647"),
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
        parse=parse_seconds,
        convert=duration_as_seconds,
        check=check_seconds,
        default="claim",
        help="Time limit of an attempt: 30s, 5m.",
    ),
    TaskOption(
        name="tags",
        type="json",
        column="tags",
        flag="tag",
        parse=parse_tags,
        convert=tags_as_json,
        check=check_tags,
        help="A word to search by; may be repeated.",
    ),
    TaskOption(
        name="headers",
        type="json",
        column="headers",
        flag="header",
        parse=parse_headers,
        convert=headers_as_json,
        check=check_headers,
        help="A text that travels with the task: request-id=a1; may be repeated.",
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
        parse=parse_integer,
        check=partial(require_whole, range(BUCKETS), f"buckets range from 0 to {BUCKETS - 1}"),
        default="call",
        help="A number from 0 to 999 to spread tasks by; random by default.",
    ),
    TaskOption(
        name="tenant",
        column="tenant",
        check=check_name,
        default="call",
        help="The customer, account or host that the task belongs to, for limits per tenant.",
    ),
    TaskOption(
        name="hosts",
        column="hosts",
        parse=lambda name, value, _: host_list(
            value if isinstance(value, str) else json.loads(parse_tags(name, value, _))
        ),
        convert=host_list,
        check=require_hosts,
        default="submit",
        help="The hosts that may take it: web-3 or web-1,web-2; same for this host; failed for the host of a failed "
        "attempt; any for all, the default.",
    ),
    TaskOption(
        name="hosts_for",
        type="float",
        parse=parse_seconds,
        convert=duration_as_seconds,
        check=check_seconds,
        default="submit",
        help="After it has been due for this long, any host may take it: 10m, 1h; with --hosts.",
    ),
    TaskOption(
        name="route",
        type=None,
        convert=partial(require_call_text, "route"),
        check=check_route,
        default="call",
        help="The text that chooses the shard of the task, such as a customer; without shards it has no effect.",
    ),
    TaskOption(
        name="unique_key",
        type=None,
        column="unique_key",
        convert=partial(require_call_text, "unique_key"),
        check=check_unique_key,
        default="call",
        help="Allow only one task of the handler with this key.",
    ),
    TaskOption(
        name="unique",
        type=None,
        field="unique_key",
        convert=parse_scope,
        default="call",
        help='Scope of the unique key: "until finished", "until started", forever, "for 1h" or "debounce 5s".',
    ),
    TaskOption(
        name="on_duplicate",
        type=None,
        field="unique_key",
        convert=parse_on_duplicate,
        default="call",
        help="If the key is taken: skip submits nothing, replace updates the waiting task, error fails.",
    ),
    TaskOption(
        name="order_key",
        type=None,
        column="order_key",
        convert=partial(require_call_text, "order_key"),
        check=check_order_key,
        default="call",
        help="Run the tasks with this key one at a time, in the order of submit.",
    ),
    TaskOption(
        name="order_on_failure",
        type=None,
        column="order_on_failure",
        field="order_key",
        convert=parse_order_on_failure,
        default="call",
        help="If the task before it with this order key fails: wait for it, cancel this task, or run it.",
    ),
    TaskOption(name="submitted_by", column="submitted_by", parse=None, check=check_text),
    TaskOption(name="workflow", type=None, column="workflow", parse=None, check=check_workflow),
)
"""All task options, in the order of `handler.options` and of the command line."""

SETTABLE = {option.name: option for option in TASK_OPTIONS if option.parse is not None}
"""The options that `handler.options`, `runner submit` and JSON lines take, by name."""

SCHEDULE_OPTIONS = tuple(
    name
    for name, option in SETTABLE.items()
    if option.type is not None and name not in ("run_at", "delay", "expires_at")
)
"""The task options that a schedule sets for its tasks; they do not depend on the time or on other tasks."""


class ScheduledTaskOptions(TypedDict, total=False):
    """SCHEDULE_OPTIONS for type checkers; a test compares them. Values are as in `handler.options`."""

    queue: str
    priority: int
    key: str
    max_attempts: int
    retry: str
    timeout: Delay
    expires: Delay
    tags: Iterable[str]
    headers: Mapping[str, str]
    bucket: int
    tenant: str
    hosts: str | Iterable[str]
    hosts_for: Delay


CHECKS = tuple((option.name, option.field or option.name, option.check) for option in TASK_OPTIONS if option.check)
"""Name, field of NewTask, and check of each option that has one."""


CALL_OPTIONS = tuple(name for name, option in SETTABLE.items() if option.default == "call")
"""The names of the call options."""


def read_options(
    options: Mapping[str, Any], general: CallOptions = NO_CALL_OPTIONS
) -> tuple[dict[str, Any], CallOptions]:
    """Read options from Python.

    Args:
        options: values by name; None or () for an omitted option. Other names are ignored.
        general: the values of the omitted call options.

    Returns:
        The fields of NewTask, and the call options.

    Raises:
        InvalidTask: a value is not valid.
    """
    fields: dict[str, Any] = {}
    call_options: dict[str, Any] = {}
    for name, option in SETTABLE.items():
        value = options.get(name)
        if value not in (None, ()):
            values = call_options if option.default == "call" else fields
            values[name] = option.convert(value) if option.convert else value
    return fields, general._replace(**call_options)


FROM_SETTINGS = "from_settings"
"""Key of the names of the stored options of attempts that are settings of the runner, not options of the handler."""
