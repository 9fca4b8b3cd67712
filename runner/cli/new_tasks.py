"""Drafts: new tasks from the command line or from JSON lines, parsed and checked for the store."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from runner.errors import InvalidInput, InvalidPayload, PayloadTooLarge
from runner.filter.fields import suggestion
from runner.handlers.options import SETTABLE, Clock
from runner.handlers.registry import Handler
from runner.handlers.rules import Rules
from runner.model.task import DependsOn, NewTask, OnFailure
from runner.policy.retry import parse_plan
from runner.store.validation import check

MAX_DIGITS = 20


def parse_option(word: str, on_failure: OnFailure) -> DependsOn:
    """Parse the value of --after: 17, or orders.pay=order-17.

    A handler's name contains no equals sign, so the first one ends it. The key may contain more.
    """
    if word.isdecimal() and len(word) < MAX_DIGITS:
        return DependsOn(int(word), on_failure)
    handler, _, key = word.partition("=")
    if not (handler and key):
        raise InvalidInput(why=f"--after expects a task id or handler=key, not {word[:80]!r}")
    return DependsOn((handler, key), on_failure)


OPTIONS = tuple(SETTABLE)
"""Task options of a JSON line, without handler and payload."""

RULES = tuple(name for name, option in SETTABLE.items() if option.default == "call")
"""Task options that a handler may derive from the payload."""


@dataclass(frozen=True)
class Drafts:
    """The common part of all tasks of one command.

    Args:
        handlers: the loaded handlers, whose signatures payloads must match.
        payload_limit: maximum size of a payload in bytes.
        submitted_by: the submitter.
        now: the current time, aware.
        zone: time zone of times without an offset.
        options: defaults for every task, by names of OPTIONS.
    """

    handlers: Mapping[str, Handler]
    payload_limit: int
    submitted_by: str
    now: datetime
    zone: tzinfo
    options: Mapping[str, Any] = field(default_factory=dict)

    def task(self, handler: str, payload: str, options: Mapping[str, Any] | None = None) -> NewTask:
        """Check a task and convert it for the store.

        Args:
            handler: name of the handler.
            payload: arguments, a JSON object as text.
            options: options of this task alone, by names of OPTIONS.

        Raises:
            InvalidInput: a value has the wrong type or is out of bounds, or the payload does not match the handler.
        """
        spec = self.handlers.get(handler)
        columns = {name: self._read(name, value) for name, value in {**self.options, **(options or {})}.items()}
        rules = Rules.read(**{name: columns.pop(name, None) for name in RULES})
        if spec is not None:
            rules = rules.over(spec.defaults.rules)
            columns = spec.defaults.at_submit() | columns
        if columns.get("retry") is not None:
            columns["retry"] = str(parse_plan(columns["retry"]))
        text = _payload(handler, payload, spec)
        if (size := len(text.encode())) > self.payload_limit:
            raise PayloadTooLarge(handler=handler, size=size, limit=self.payload_limit)
        rules.require_keys()
        task = NewTask(handler=handler, payload=text, submitted_by=self.submitted_by, **columns)
        task = rules.applied(task, lambda: spec.signature.arguments(text) if spec else {})
        check(task)
        return task

    def line(self, text: str, handler: str | None) -> NewTask:
        """Read a task from a line of JSON.

        Args:
            text: the payload alone if `handler` is set, else an object with handler, payload and names of OPTIONS.
            handler: handler of all lines; None if each line names its own.

        Raises:
            InvalidInput: see `task`; or the line does not contain such an object.
        """
        if handler is not None:
            return self.task(handler, text)
        try:
            values = _object(text)
        except _Unreadable as error:
            raise InvalidInput(why=str(error)) from None
        name, payload = values.pop("handler", None), values.pop("payload", {})
        if not isinstance(name, str):
            raise InvalidInput(why='the line has no handler; write {"handler": "name", "payload": {...}}')
        try:
            return self.task(name, json.dumps(payload, ensure_ascii=False, allow_nan=False), values)
        except ValueError:
            raise InvalidPayload(handler=name, why="a number is too large for JSON") from None

    def _read(self, name: str, value: Any) -> Any:
        option = SETTABLE.get(name)
        if option is None or option.parse is None:
            hint = suggestion(name, (*OPTIONS, "handler", "payload"))
            raise InvalidInput(why=f"unknown field {name!r}{hint}; fields: handler, payload, {', '.join(OPTIONS)}")
        return None if value is None else option.parse(name, value, Clock(self.now, self.zone))


class _Unreadable(Exception):
    """The text is not a JSON object; the message explains the problem."""


def _payload(handler: str, text: str, spec: Handler | None) -> str:
    """Check a payload against the handler's signature, or only that it is an object if the handler is not loaded."""
    try:
        _object(text)
    except _Unreadable as error:
        raise InvalidPayload(handler=handler, why=str(error)) from None
    return spec.signature.check(text) if spec else text.strip()


def _object(text: str) -> dict[str, Any]:
    try:
        text.encode()
        value = json.loads(text, parse_constant=_reject_constant)
    except UnicodeEncodeError:
        raise _Unreadable("not UTF-8 text") from None
    except ValueError as error:
        raise _Unreadable(f"not JSON: {error}") from None
    except RecursionError:
        raise _Unreadable("nested too deeply") from None
    if not isinstance(value, dict):
        raise _Unreadable('expected a JSON object, such as {"user_id": 7}')
    return value


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")
