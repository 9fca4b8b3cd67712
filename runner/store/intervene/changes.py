"""What an edit may change, and the values that it may set."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Final, Literal

from runner.errors import InvalidEdit, InvalidTask, PayloadTooLarge
from runner.store.acceptance import check
from runner.store.intervene.eligibility import used_up
from runner.store.intervene.locking import Held
from runner.task import NewTask, State

PAYLOAD_LIMIT = 256 * 1024
"""Bytes of a payload, unless the settings say otherwise."""


class Keep(Enum):
    """What stands for "leave it as it is" where None is a value of its own."""

    KEEP = auto()


KEEP: Final = Keep.KEEP
Kept = Literal[Keep.KEEP]


@dataclass(frozen=True, slots=True)
class Changes:
    """New values for a task; what is not named stays.

    Args:
        run_at: not before this time, aware.
        max_attempts: attempts allowed; None for the handler's.
        priority: 1 to 9.
        retry: the retry plan as text; None for the handler's.
        timeout: seconds that an attempt may take; None for the handler's.
        payload: its arguments, a JSON object as text.
        key: its business key; None for none.
    """

    run_at: datetime | Kept = KEEP
    max_attempts: int | Kept | None = KEEP
    priority: int | Kept = KEEP
    retry: str | Kept | None = KEEP
    timeout: float | Kept | None = KEEP
    payload: str | Kept = KEEP
    key: str | Kept | None = KEEP

    def given(self) -> dict[str, Any]:
        """The values that were named, by column."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not KEEP}


FIELDS = frozenset(field.name for field in fields(Changes))
"""The columns that an edit may set."""


def check_values(changes: Changes, payload_limit: int = PAYLOAD_LIMIT) -> dict[str, Any]:
    """Refuse values that no task may have: the rules are those of submitting.

    Args:
        changes: what is to be set.
        payload_limit: the most bytes of a payload.

    Returns:
        The values by column.

    Raises:
        InvalidEdit: naming the value and what would do.
        InvalidRetryPlan: the retry plan is not one.
        PayloadTooLarge: the payload has more bytes than allowed.
    """
    given = changes.given()
    if not given:
        raise InvalidEdit(field="a task", value="nothing", why="no change was named")
    for name in ("run_at", "priority", "payload"):
        if name in given and given[name] is None:
            raise InvalidEdit(field=name, value=None, why="a task always has one")
    if "payload" in given:
        _check_payload(given["payload"], payload_limit)
    try:
        check(NewTask("edited", **given))
    except InvalidTask as error:
        raise InvalidEdit(**error.fields) from error
    if "run_at" in given:
        given["run_at"] = _to_milliseconds(given["run_at"])
    return given


def check_against(given: Mapping[str, Any], task: Held) -> None:
    """Refuse values that this task may not have as it is now.

    Raises:
        InvalidEdit: the change would be lost, or would leave a task that can never run.
    """
    if task.state is State.RUNNING:
        if "run_at" in given:
            why = "the task is running; when it runs again follows from its retry plan"
            raise InvalidEdit(field="run_at", value=str(given["run_at"]), why=why)
    elif "max_attempts" in given and used_up(task.attempt, given["max_attempts"]):
        why = f"{task.attempt} attempts are used and it could never run again; allow more, or terminate it"
        raise InvalidEdit(field="max_attempts", value=given["max_attempts"], why=why)


def _to_milliseconds(moment: datetime) -> datetime:
    """SQLite keeps no more: what is written down must be what is stored."""
    return moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000)


def _check_payload(payload: str, limit: int) -> None:
    size = len(payload.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise PayloadTooLarge(handler="the task's", size=size, limit=limit)
    try:
        value = json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidEdit(field="payload", value=payload[:80], why=f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidEdit(field="payload", value=payload[:80], why="it must be a JSON object")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number in JSON")
