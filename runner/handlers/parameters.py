"""Parameters: the arguments of a handler as its runners store them, and their texts in a form.

Every runner stores the JSON schemas of its handlers, so that a program without their code can ask for arguments.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from runner.errors import InvalidHandler, InvalidInput, InvalidPayload, RunnerError
from runner.handlers.dependencies import DECLARED, stored_declared
from runner.handlers.option_values import Clock
from runner.handlers.options import FROM_SETTINGS
from runner.handlers.registry import Handler
from runner.handlers.signature import OPEN
from runner.text.redact import is_secret
from runner.text.times import parse_moment

NO_TIMEOUT = 0.0
"""The stored timeout of a handler without one."""

LARGEST = 64 * 1024
"""Characters of a signature that is stored at most; a form for a larger one asks for JSON."""

MOST_REFERENCES = 10
"""References of a schema to others that are followed at most."""

WORDS = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}


def stored_signatures(
    handlers: Mapping[str, Handler],
    retry: str | None = None,
    max_attempts: int | None = None,
    timeout: float | None = None,
    codec_of: Callable[[Handler], str | None] = lambda handler: handler.defaults.codec,
) -> dict[str, str]:
    """Write the signatures of handlers as JSON, by name; a handler whose types have no schema is left out.

    Args:
        retry: the runner's retry plan, for a handler without one; None for unknown.
        max_attempts: the same for the maximum number of attempts.
        timeout: the same for the timeout in seconds; 0 without one.
        codec_of: returns the codec of a handler; None without one.
    """
    texts = {
        name: _signature_text(handler, retry, max_attempts, timeout, codec_of(handler))
        for name, handler in handlers.items()
    }
    return {name: text for name, text in texts.items() if text is not None and len(text) <= LARGEST}


def _signature_text(
    handler: Handler, retry: str | None, max_attempts: int | None, timeout: float | None, codec: str | None
) -> str | None:
    try:
        schema = handler.signature.schema()
    except (PydanticUserError, InvalidHandler):
        return None
    for name, default in handler.signature.defaults.items():
        if name in schema.get("properties", {}) and not is_secret(name):
            schema["properties"][name]["default"] = default
    options = {name: value for name, value in handler.submit_defaults.items() if value is not None}
    call_options = handler.defaults.call_options
    if call_options.after:
        options[DECLARED] = stored_declared(call_options.after)
    derived = [name for name, value in call_options._asdict().items() if value is not None]
    attempts = attempt_options(handler, retry, max_attempts, timeout)
    # A form cannot use a default that JSON cannot hold.
    sealing = {} if codec is None else {"codec": codec}
    return json.dumps(
        {"parameters": schema, "options": options, "derived": derived, "attempts": attempts, **sealing},
        default=lambda value: getattr(value, "value", None),
    )


def attempt_options(
    handler: Handler, retry: str | None, max_attempts: int | None, timeout: float | None
) -> dict[str, object]:
    """Return the options of attempts that hold for a handler, and the names of those that are settings of the runner.

    Args:
        retry, max_attempts, timeout: the settings; see `stored_signatures`.
    """
    defaults = handler.defaults
    own = {"retry": defaults.retry, "max_attempts": defaults.max_attempts, "timeout": defaults.timeout}
    settings = {"retry": retry, "max_attempts": max_attempts, "timeout": timeout}
    options: dict[str, object] = {name: settings[name] if value is None else value for name, value in own.items()}
    if defaults.timeout == inf:
        options["timeout"] = NO_TIMEOUT
    if defaults.chunk is not None:
        options |= {"chunk": defaults.chunk.size, "chunk_wait": defaults.chunk.wait}
    return options | {FROM_SETTINGS: [name for name, value in own.items() if value is None]}


class Kind(Enum):
    """The kind of a parameter: how its text is read."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    BOOLEAN = "yes or no"
    TEXT = "text"
    TIME = "a time: now, +15m, 14:30, 2026-11-20T14:30+01:00"
    CHOICE = "one of"
    JSON = "JSON"


KINDS = {"integer": Kind.INTEGER, "number": Kind.NUMBER, "boolean": Kind.BOOLEAN, "string": Kind.TEXT}

NUMERIC_FORMATS = ("date", "date-time", "time", "duration")
"""The formats of texts that may be numbers instead."""


@dataclass(frozen=True, slots=True)
class ParameterField:
    """One parameter of a handler.

    Args:
        required: True if a call must pass it.
        nullable: True if it may be null.
        choices: its values, of the kind CHOICE.
        bounds: least and greatest number, or length of a text; None for no bound.
        default: its default as text; empty without one.
        format: the format of its text in the schema; empty without one.
    """

    name: str
    kind: Kind
    required: bool
    nullable: bool = False
    choices: tuple[Any, ...] = ()
    bounds: tuple[float | None, float | None] = (None, None)
    default: str = ""
    format: str = ""

    @property
    def hint(self) -> str:
        """The texts that it takes, in words, and its default."""
        remark = f"; {self.default} by default" if self.default else "" if self.required else "; optional"
        return f"{self.texts}{remark}"

    @property
    def texts(self) -> str:
        """The texts that it takes, in words."""
        verb, write = ("", str) if self.kind is Kind.CHOICE else (" such as", json.dumps)
        kind = self.kind.value + (f"{verb} {', '.join(map(write, self.choices))}" if self.choices else "")
        return f"{kind}, or null" if self.nullable else kind

    def show(self, value: Any) -> str:
        """Write a value as the text that `read` reads."""
        if self.kind is Kind.CHOICE and value in self.choices:
            return str(value)
        if self.kind is Kind.BOOLEAN and isinstance(value, bool):
            return "yes" if value else "no"
        plain = isinstance(value, str) and value == value.strip() and value.isprintable()
        if self.kind in (Kind.TEXT, Kind.TIME) and plain and value not in ("", "null") and value[0] != '"':
            return str(value)
        return json.dumps(value, ensure_ascii=False)

    def read(self, text: str, clock: Clock) -> Any:
        """Read a text.

        Args:
            text: not empty.
            clock: the time that relative times refer to.

        Raises:
            InvalidInput: the text is none of the parameter's values.
        """
        if text == "null" and self.nullable:
            return None
        value = self._read(text, clock)
        if why := self._out_of_bounds(value):
            raise InvalidInput(why=why)
        return value

    def misfit(self, value: Any) -> str:
        """Return why code would refuse a value of JSON; empty if nothing is known against it.

        Code converts some values of other types, as pydantic does: the text "7" is a whole number.
        """
        if self.kind is Kind.JSON or (value is None and self.nullable):
            return ""
        return f"expected {self.type_name}" if not self._converts(value) else self._out_of_bounds(value)

    @property
    def type_name(self) -> str:
        """The values of JSON that it takes, in words."""
        return "an ISO time, such as 2026-11-20T14:30:00Z" if self.kind is Kind.TIME else self.texts

    def _converts(self, value: Any) -> bool:
        number = _as_number(value)
        match self.kind:
            case Kind.CHOICE:
                return value in self.choices or str(value) in map(str, self.choices)
            case Kind.BOOLEAN:
                return number in (0, 1) or (isinstance(value, str) and value.lower() in BOOLEAN_TEXTS)
            case Kind.INTEGER:
                return number is not None and number == number // 1
            case Kind.NUMBER:
                return number is not None
            case Kind.TIME:
                return number is not None or (isinstance(value, str) and _is_iso(value))
        return isinstance(value, str) or (self.format in NUMERIC_FORMATS and number is not None)

    def _out_of_bounds(self, value: Any) -> str:
        is_text = isinstance(value, str) and self.kind in (Kind.TEXT, Kind.TIME)
        size = len(value) if is_text else _as_number(value)
        least, most = self.bounds
        unit = " characters" if is_text else ""
        if size is None or self.kind in (Kind.CHOICE, Kind.BOOLEAN):
            return ""
        if least is not None and size < least:
            return f"at least {least:g}{unit}"
        least_size = len(value.strip()) if is_text else size  # code may strip a text first
        return f"at most {most:g}{unit}" if most is not None and least_size > most else ""

    def _read(self, text: str, clock: Clock) -> Any:
        value = _decoded(text)
        numbers = (int,) if self.kind is Kind.INTEGER else (int, float)
        match self.kind:
            case Kind.BOOLEAN:
                value = WORDS.get(text.lower(), _NO_JSON)
            case Kind.INTEGER | Kind.NUMBER if not isinstance(value, numbers) or isinstance(value, bool):
                value = _NO_JSON
            case Kind.TEXT if not isinstance(value, str):
                value = text
            case Kind.TIME:
                value = parse_moment(text, *clock).isoformat()
            case Kind.CHOICE:
                value = next((choice for choice in self.choices if text in (str(choice), json.dumps(choice))), _NO_JSON)
        if value is _NO_JSON:
            raise InvalidInput(why=f"expected {self.texts}")
        return value


_NO_JSON = object()

BOOLEAN_TEXTS = ("1", "on", "t", "true", "y", "yes", "0", "off", "f", "false", "n", "no")
"""The texts that code converts to a truth value."""


def _as_number(value: Any) -> float | None:
    """The number of a value of JSON, or of a text that writes one; None for others."""
    if not isinstance(value, str):
        return value if isinstance(value, (int, float)) else None
    for read in (int, float):
        with suppress(ValueError):
            return read(value)
    return None


def _is_iso(text: str) -> bool:
    with suppress(ValueError):
        return bool(datetime.fromisoformat(text.upper()))  # RFC 3339 allows t and z
    with suppress(ValueError):  # code takes further separators and signs
        return bool(TypeAdapter(datetime).validate_python(text))
    return False


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _constant: _NO_JSON)
    except (ValueError, RecursionError):
        return _NO_JSON


class StoredSignature(NamedTuple):
    """The signature of a handler as its runners stored it last.

    Args:
        extra: any other argument that a call may pass; None if there is none.
        options: the defaults of its tasks, by task option.
        derived: call options that its code sets, such as unique_key, bucket, order_key and tenant.
        attempts: the retry plan (`retry`), `max_attempts` and `timeout` of a task that has none of its own, and the
            maximum number of tasks of a chunk and its wait in seconds (`chunk`, `chunk_wait`), if its handler has one.
        codec: what encrypts its tasks; None without one.
    """

    fields: Sequence[ParameterField]
    extra: ParameterField | None
    options: Mapping[str, Any]
    derived: Sequence[str]
    attempts: Mapping[str, Any]
    codec: str | None = None

    def arguments(self, texts: Mapping[str, str], clock: Clock) -> tuple[dict[str, Any], dict[str, str]]:
        """Read the texts of a form.

        Args:
            texts: texts by parameter; an empty one is left out.
            clock: the time that relative times refer to.

        Returns:
            The arguments, and the reason why a text is refused, by parameter.
        """
        arguments, errors = dict[str, Any](), dict[str, str]()
        for field in self.fields:
            text = texts.get(field.name, "").strip()
            try:
                if text:
                    arguments[field.name] = field.read(text, clock)
                elif field.required:
                    errors[field.name] = f"required: {field.texts}"
            except RunnerError as error:
                errors[field.name] = str(error.fields.get("why", error))
        return arguments, errors

    def require(self, handler: str, payload: str) -> None:
        """Reject a payload that the handler would refuse.

        Args:
            payload: the arguments, a JSON object as text.

        Raises:
            InvalidPayload: it does not match; the message names the argument without its value.
        """
        if why := self.misfit(json.loads(payload)):
            why = f"{why}. Its runners stored this signature; the command line has --unchecked"
            raise InvalidPayload(handler=handler, why=why)

    def misfit(self, payload: Mapping[str, Any]) -> str:
        """Return why the handler would refuse a payload; empty if nothing is known against it.

        The code decides: it may have checks that no schema shows.
        """
        names = [field.name for field in self.fields]
        for name in (name for name in payload if name not in names):
            if self.extra is None:
                return f"{name}: the handler has no such argument; it has: {', '.join(names) or 'none'}"
            if why := self.extra.misfit(payload[name]):
                return f"{name}: {why}"
        for field in self.fields:
            if field.name in payload and (why := field.misfit(payload[field.name])):
                return f"{field.name}: {why}"
            if field.required and field.name not in payload:
                return f"{field.name}: the handler requires it: {field.type_name}"
        return ""


def read_signature(stored: str | None) -> StoredSignature | None:
    """Read a stored signature; None if there is none, or a foreign client has written it."""
    try:
        values = json.loads(stored or "")
        schema = values["parameters"]
        required, definitions = schema.get("required", []), schema.get("$defs", {})
        fields = [
            _field(name, part, definitions, name in required) for name, part in schema.get("properties", {}).items()
        ]
        other = schema.get("additionalProperties", True)
        extra = None if other is False else _field("", {} if other is True else other, definitions, False)
        defaults, attempts = dict(values.get("options", {})), dict(values.get("attempts", {}))
        derived, codec = list(values.get("derived", [])), values.get("codec")
        return StoredSignature(fields, extra, defaults, derived, attempts, codec if isinstance(codec, str) else None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _field(name: str, schema: Mapping[str, Any], definitions: Mapping[str, Any], required: bool) -> ParameterField:
    default = schema.get("default", _NO_JSON)
    schema = _resolved(schema, definitions)
    options = [_resolved(option, definitions) for option in schema.get("anyOf", [])]
    others = [option for option in options if option.get("type") != "null"]
    nullable = len(others) < len(options)
    if len(others) == 1:
        schema = others[0]
    choices = tuple(schema["enum"]) if "enum" in schema else (schema["const"],) if "const" in schema else ()
    kind = Kind.JSON if OPEN in schema else Kind.CHOICE if choices else KINDS.get(schema.get("type", ""), Kind.JSON)
    if kind is Kind.TEXT and schema.get("format") == "date-time":
        kind = Kind.TIME
    low, high = ("minLength", "maxLength") if kind is Kind.TEXT else ("minimum", "maximum")
    least, most = (bound if isinstance(bound := schema.get(name), (int, float)) else None for name in (low, high))
    field = ParameterField(name, kind, required, nullable, choices, (least, most), format=str(schema.get("format", "")))
    return field if default in (_NO_JSON, None) else replace(field, default=field.show(default))


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(MOST_REFERENCES):
        if "$ref" not in schema:
            return schema
        schema = definitions[str(schema["$ref"]).rpartition("/")[2]]
    return {}
