"""Drafts: new tasks as people write them, on the command line or as lines of JSON, made into what the store takes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from runner.cli.parents import parents
from runner.errors import InvalidInput, InvalidPayload, InvalidTask, PayloadTooLarge
from runner.handlers import Handler
from runner.people.fields import suggestion
from runner.people.times import parse_duration, parse_moment
from runner.policy.retry import parse_plan
from runner.rules.rules import Rules
from runner.store.acceptance import check
from runner.task import NewTask

RULES = ("unique_key", "unique", "on_duplicate", "bucket")
"""What is said of a task and may follow from its handler's rules."""

OPTIONS = ("queue", "key", "priority", "run_at", "delay", "max_attempts", "retry", "timeout", "tags", "after", *RULES)
"""What may be said of a task besides its handler and its payload, by the names of the columns."""


@dataclass(frozen=True)
class Drafts:
    """What all tasks of one command have in common.

    Args:
        handlers: those known here, whose signatures payloads must fit.
        payload_limit: bytes of a payload.
        submitted_by: who submits.
        now: the present, aware.
        zone: where a time without an offset is meant.
        options: for tasks that do not say otherwise, by names of OPTIONS.
    """

    handlers: Mapping[str, Handler]
    payload_limit: int
    submitted_by: str
    now: datetime
    zone: tzinfo
    options: Mapping[str, Any] = field(default_factory=dict)

    def task(self, handler: str, payload: str, options: Mapping[str, Any] | None = None) -> NewTask:
        """Check a task and put it into the store's form.

        Args:
            handler: the name of its handler.
            payload: its arguments, a JSON object as text.
            options: what is said of this one alone, by names of OPTIONS.

        Raises:
            InvalidInput: a value is of the wrong kind or out of bounds, or the payload does not fit the handler.
        """
        known = self.handlers.get(handler)
        given = {name: self._read(name, value) for name, value in {**self.options, **(options or {})}.items()}
        rules = Rules.read(**{name: given.pop(name, None) for name in RULES})
        if known is not None:
            rules = rules.over(known.defaults.rules)
            given = {"queue": known.defaults.queue, "priority": known.defaults.priority} | given
        text = _payload(handler, payload, known)
        if (size := len(text.encode())) > self.payload_limit:
            raise PayloadTooLarge(handler=handler, size=size, limit=self.payload_limit)
        if rules.once is not None:
            rules.once.require_key()
        task = NewTask(handler=handler, payload=text, submitted_by=self.submitted_by, **given)
        task = rules.applied(task, lambda: known.signature.arguments(text) if known else {})
        check(task)
        return task

    def line(self, text: str, handler: str | None) -> NewTask:
        """Read a task from a line of JSON.

        Args:
            text: the payload alone when `handler` is given, else an object with handler, payload and names of OPTIONS.
            handler: of all lines; None when each line says it.

        Raises:
            InvalidInput: see `task`; or the line is not such an object.
        """
        if handler is not None:
            return self.task(handler, text)
        try:
            said = _object(text)
        except _Unreadable as error:
            raise InvalidInput(why=str(error)) from None
        name, payload = said.pop("handler", None), said.pop("payload", {})
        if not isinstance(name, str):
            raise InvalidInput(why='the line names no handler; write {"handler": "name", "payload": {...}}')
        try:
            return self.task(name, json.dumps(payload, ensure_ascii=False, allow_nan=False), said)
        except ValueError:
            raise InvalidPayload(handler=name, why="it holds a number that is too large") from None

    def _read(self, name: str, value: Any) -> Any:
        if name not in _READERS:
            hint = suggestion(name, (*OPTIONS, "handler", "payload"))
            raise InvalidInput(why=f"a task has no {name!r}{hint}; it has handler, payload, {', '.join(OPTIONS)}")
        if value is None:
            return None
        if name == "run_at":
            return parse_moment(_text_of(name, value), self.now, self.zone)
        return _READERS[name](name, value)


class _Unreadable(Exception):
    """Why a text is no JSON object."""


def _payload(handler: str, text: str, known: Handler | None) -> str:
    """Check a payload: by the handler's signature where that is known, else only that it is an object."""
    try:
        _object(text)
    except _Unreadable as error:
        raise InvalidPayload(handler=handler, why=str(error)) from None
    return known.signature.check(text) if known else text.strip()


def _object(text: str) -> dict[str, Any]:
    try:
        text.encode()
        value = json.loads(text, parse_constant=_no_number)
    except UnicodeEncodeError:
        raise _Unreadable("it is not UTF-8 text") from None
    except ValueError as error:
        raise _Unreadable(f"it is not JSON: {error}") from None
    except RecursionError:
        raise _Unreadable("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise _Unreadable('it must be a JSON object, such as {"user_id": 7}')
    return value


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _text_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidTask(field=name, value=value, why="it must be text")
    return value


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidTask(field=name, value=value, why="it must be a whole number")
    return value


def _length(_name: str, value: Any) -> float:
    return parse_duration(value).total_seconds()


def _plan(name: str, value: Any) -> str:
    return str(parse_plan(_text_of(name, value)))


def _tags(name: str, value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not all(isinstance(tag, str) for tag in value):
        raise InvalidTask(field=name, value=value, why="it must be a list of texts")
    return json.dumps(list(value))


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "queue": _text_of,
    "key": _text_of,
    "priority": _whole,
    "run_at": _text_of,
    "delay": _length,
    "max_attempts": _whole,
    "retry": _plan,
    "timeout": _length,
    "tags": _tags,
    "unique_key": _text_of,
    "unique": _text_of,
    "on_duplicate": _text_of,
    "bucket": _whole,
    "after": lambda _name, value: parents(value),
}
