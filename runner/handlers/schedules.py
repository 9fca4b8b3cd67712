"""Declared schedules: the rules that the code of an application gives to its handlers."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from runner.errors import DuplicateSchedule, InvalidSchedule, InvalidTask
from runner.handlers.dependencies import DECLARED, read_declared, stored_declared
from runner.handlers.option_values import Clock
from runner.handlers.options import SCHEDULE_OPTIONS, SETTABLE
from runner.handlers.registry import Handler
from runner.model.schedule import ScheduleSpec
from runner.model.text_limits import require_name

_ANY_TIME = Clock(datetime(1970, 1, 1, tzinfo=UTC), UTC)


class DeclaredSchedule(NamedTuple):
    """A schedule in the code of an application.

    Args:
        module: module of its handler's function.
        location: module and qualified name of the function, for messages.
    """

    id: str
    spec: ScheduleSpec
    module: str
    location: str

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the definition: equal for equal code."""
        return fingerprint_of(self.declaration)

    @property
    def declaration(self) -> str:
        """The definition as JSON."""
        return json.dumps(self.spec.values(), sort_keys=True)


def fingerprint_of(declaration: str) -> str:
    """Return the fingerprint of a definition."""
    return hashlib.blake2b(declaration.encode(), digest_size=8).hexdigest()


class Schedules(Mapping[str, DeclaredSchedule]):
    """The schedules of the loaded code by id."""

    def __init__(self) -> None:
        self._schedules: dict[str, DeclaredSchedule] = {}

    def add(self, schedule: DeclaredSchedule) -> None:
        """Register a schedule. The same one again, from a reloaded module, replaces itself.

        Raises:
            DuplicateSchedule: another function, or the same one with another definition, has this id.
        """
        existing = self._schedules.get(schedule.id)
        if existing is not None and (existing.location, existing.spec) != (schedule.location, schedule.spec):
            first, second = (f"{each.spec.rule!r} of {each.location}" for each in (existing, schedule))
            raise DuplicateSchedule(id=schedule.id, first=first, second=second)
        self._schedules[schedule.id] = schedule

    def __getitem__(self, id: str) -> DeclaredSchedule:
        return self._schedules[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._schedules)

    def __len__(self) -> int:
        return len(self._schedules)


SCHEDULES = Schedules()
"""The schedules that @schedule adds to."""


def check_id(id: str) -> str:
    """Reject an id that a schedule cannot have.

    Raises:
        InvalidSchedule: it is not a printable text of 1 to 200 characters.
    """
    try:
        require_name("id", id)
    except (InvalidTask, TypeError) as error:
        why = error.fields["why"] if isinstance(error, InvalidTask) else "expected text"
        raise InvalidSchedule(field="id", value=str(id)[:80], why=why) from None
    return id


@lru_cache(maxsize=4_096)
def read_options(text: str) -> Mapping[str, Any]:
    """Read the options column of a schedule into fields of NewTask.

    Args:
        text: a JSON object with names of SCHEDULE_OPTIONS; values as in the JSON lines of `runner submit`.

    Raises:
        InvalidSchedule: it is not such an object, or a value has the wrong type.
    """
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSchedule(field="options", value=text[:80], why=f"it is not valid JSON: {error}") from None
    if not isinstance(options, dict):
        raise InvalidSchedule(field="options", value=text[:80], why="it is not a JSON object")
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if name == DECLARED:
            fields[name] = read_declared(options) or None
            continue
        if name not in SCHEDULE_OPTIONS:
            why = f"a schedule sets {', '.join(SCHEDULE_OPTIONS)}"
            raise InvalidSchedule(field="options", value=str(name)[:80], why=why)
        option = SETTABLE[name]
        if value is not None and option.parse is not None:
            try:
                fields[option.field or name] = option.parse(name, value, _ANY_TIME)
            except InvalidTask as error:
                raise InvalidSchedule(**error.fields) from None
    return fields


def write_options(options: Mapping[str, Any], handler: Handler | None = None, *, broadcast: bool = False) -> str:
    """Write options as JSON, with the handler's defaults for options that a submit writes into the row.

    Args:
        options: values by name; None for an omitted one.
        handler: the handler of the tasks, if it is loaded.
        broadcast: omit the default queue, because a broadcast has queues of its own.
    """
    values = dict(handler.submit_defaults) if handler is not None else {}
    if handler is not None and handler.defaults.call_options.after:
        values[DECLARED] = stored_declared(handler.defaults.call_options.after)
    if broadcast:
        values.pop("queue", None)
    values |= {name: value for name, value in options.items() if value is not None}
    return json.dumps({name: value for name, value in sorted(values.items()) if value is not None}, ensure_ascii=False)
