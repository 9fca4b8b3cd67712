"""The fields that an edit can set, and their validation."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, tzinfo
from enum import Enum, auto
from typing import Any, Final, Literal

from runner.errors import InvalidEdit, InvalidTask, PayloadTooLarge
from runner.model.duration import parse_duration
from runner.model.task import NewTask, State
from runner.model.text_limits import require_json
from runner.policy.claim_conditions import used_up
from runner.policy.retry import parse_plan
from runner.store.validation import check
from runner.text.hosts import host_list
from runner.text.times import parse_moment

PAYLOAD_LIMIT = 256 * 1024
"""The default limit of a payload, in bytes."""


MOST_DIGITS = 20
"""Digits of a number that are read; Python refuses to read thousands of them."""


class Keep(Enum):
    """The marker of an unchanged field, where None is a value."""

    KEEP = auto()


KEEP: Final = Keep.KEEP
Unset = Literal[Keep.KEEP]


@dataclass(frozen=True, slots=True)
class Changes:
    """New values for a task; unset fields stay unchanged.

    Args:
        run_at: the due time, aware.
        max_attempts: the attempts allowed; None for the handler's limit.
        priority: 1 to 9.
        retry: the retry plan as text; None for the handler's plan.
        timeout: seconds that an attempt may take; None for the handler's timeout.
        payload: the arguments, a JSON object as text.
        key: the business key; None for none.
        expires_at: the time after which no attempt starts, aware; None for none.
        hosts: the hosts that may take it, as tasks store them; empty for all.
    """

    run_at: datetime | Unset = KEEP
    max_attempts: int | Unset | None = KEEP
    priority: int | Unset = KEEP
    retry: str | Unset | None = KEEP
    timeout: float | Unset | None = KEEP
    payload: str | Unset = KEEP
    key: str | Unset | None = KEEP
    expires_at: datetime | Unset | None = KEEP
    hosts: str | Unset = KEEP

    def edited(self) -> dict[str, Any]:
        """The values that are set, by column."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not KEEP}


FIELDS = frozenset(field.name for field in fields(Changes))
"""The columns that an edit can set."""


NONE = "none"
"""The text of the handler's value, and of no key and no expiry."""


def parse_value(name: str, text: str, at: datetime, zone: tzinfo) -> Any:
    """Parse a new value as an operator writes it.

    Args:
        at: the time that durations count from.
        zone: time zone of times without an offset.

    Raises:
        InvalidInput: the text cannot be parsed.
    """
    match name:
        case "max_attempts" | "retry" | "timeout" | "key" | "expires_at" if text == NONE:
            return None
        case "run_at" | "expires_at":
            return parse_moment(text, at, zone)
        case "max_attempts" | "priority":
            if not text.isdecimal() or len(text) > MOST_DIGITS:
                or_none = ", or none" if name == "max_attempts" else ""
                raise InvalidEdit(field=name, value=text[:80], why=f"expected a whole number{or_none}")
            return int(text)
        case "timeout":
            return parse_duration(text).total_seconds()
        case "retry":
            return str(parse_plan(text))
    return host_list(text) if name == "hosts" else text


def check_values(changes: Changes, payload_limit: int = PAYLOAD_LIMIT) -> dict[str, Any]:
    """Validate the values by the rules of submit.

    Args:
        changes: the values to set.
        payload_limit: maximum number of bytes of a payload.

    Returns:
        The values by column.

    Raises:
        InvalidEdit: a value is not allowed; the message names it.
        InvalidRetryPlan: the retry plan is invalid.
        PayloadTooLarge: the payload exceeds the limit.
    """
    values = changes.edited()
    if not values:
        raise InvalidEdit(field="a task", value="nothing", why="name at least one change")
    for name in ("run_at", "priority", "payload", "hosts"):
        if name in values and values[name] is None:
            raise InvalidEdit(field=name, value=None, why="the field cannot be empty")
    if "payload" in values:
        check_payload(values["payload"], payload_limit)
    try:
        check(NewTask("edited", **values))
    except InvalidTask as error:
        raise InvalidEdit(**error.fields) from error
    return values | {name: _to_milliseconds(value) for name, value in values.items() if isinstance(value, datetime)}


def check_against(values: Mapping[str, Any], task: Any) -> None:
    """Validate values against the current state of the task.

    Raises:
        InvalidEdit: the change would have no effect, or the task could never run again.
    """
    if task.state is State.RUNNING:
        if "run_at" in values:
            why = "the task is running; its retry plan determines when it runs again"
            raise InvalidEdit(field="run_at", value=str(values["run_at"]), why=why)
    elif "max_attempts" in values and used_up(task.attempt, values["max_attempts"]):
        why = f"the task has used {task.attempt} attempts and could never run again; allow more, or terminate it"
        raise InvalidEdit(field="max_attempts", value=values["max_attempts"], why=why)


SAME = "it already has these values"


def edit_objection(values: Mapping[str, Any], task: Any) -> str | None:
    """The reason why an edit of many tasks skips one.

    Args:
        task: a row with state, attempt, and the columns of the values as far as they are known.

    Returns:
        The reason as a clause; None if the task would change.
    """
    try:
        check_against(values, task)
    except InvalidEdit as error:
        return str(error.fields["why"])
    return SAME if values and all(getattr(task, name, KEEP) == value for name, value in values.items()) else None


def check_bulk(changes: Changes, spread: float = 0.0) -> dict[str, Any]:
    """Validate the values of an edit of many tasks.

    Args:
        changes: the values to set.
        spread: seconds over which the due times are spread.

    Returns:
        The values by column.

    Raises:
        InvalidEdit: a value is not allowed, or belongs to one task; the message names it.
        InvalidRetryPlan: the retry plan is invalid.
    """
    values = check_values(changes)
    for name in ("payload", "key"):
        if name in values:
            raise InvalidEdit(field=name, value=values[name], why="it belongs to one task; edit the tasks one by one")
    if spread and "run_at" not in values:
        raise InvalidEdit(field="the spread", value=f"{spread:g}s", why="it needs a due time; set run_at")
    return values


def _to_milliseconds(moment: datetime) -> datetime:
    """Round to the precision of SQLite, so that the audit log has the stored value."""
    return moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000)


def check_payload(payload: str, limit: int) -> None:
    """Reject a payload that is not a JSON object, or too large.

    Args:
        limit: maximum number of bytes.

    Raises:
        InvalidEdit: it is not a JSON object that both databases can store.
        PayloadTooLarge: it exceeds the limit.
    """
    size = len(payload.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLarge(handler="the task's", size=size, limit=limit)
    try:
        value = require_json("payload", payload)
    except InvalidTask as error:
        raise InvalidEdit(**error.fields) from error
    if not isinstance(value, dict):
        raise InvalidEdit(field="payload", value=payload[:80], why="it must be a JSON object")
