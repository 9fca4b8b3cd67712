"""Signature: converts the arguments of a handler to JSON and back, validated by its annotations."""

import inspect
import json
import math
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Never,
    NoReturn,
    NotRequired,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, Secret, SecretBytes, SecretStr, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticUserError
from pydantic_core import to_json
from typing_extensions import TypedDict
from typing_extensions import Unpack as OlderUnpack

from runner.errors import InvalidHandler, InvalidPayload
from runner.handlers.functions import POSITIONAL, RETURN, UNREADABLE, hints_of, signature_of
from runner.handlers.plain_values import BYTES_ADVICE, is_untyped, require_plain
from runner.model.outcome import HANDLER_OUTCOMES
from runner.model.text_limits import TOO_DEEP, require_levels, require_payload

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema


class ExtraArguments:
    """The arguments that a call may pass beside the named ones.

    Args:
        annotation: the type of each of them.
        rules: configuration of pydantic.

    Raises:
        PydanticUserError: the type cannot be read from JSON.
    """

    def __init__(self, annotation: Any, rules: ConfigDict) -> None:
        self._untyped = is_untyped(annotation)
        self._adapter = TypeAdapter(dict[str, annotation], config=rules)

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Validate the arguments of a call.

        Raises:
            ValidationError: one has another type.
        """
        return self._adapter.validator.validate_python(values)  # type: ignore[no-any-return]

    def require_plain(self, values: Mapping[str, Any]) -> None:
        """Reject a value that JSON would change or use up, if the annotation leaves its type open.

        Raises:
            ValueError: the message names it.
        """
        for name in values if self._untyped else ():
            require_plain(name, values[name])

    def read(self, values: dict[str, Any]) -> dict[str, Any]:
        """Validate values that were read from JSON.

        Raises:
            ValidationError: one has another type.
        """
        return values if self._untyped else self._adapter.validator.validate_json(to_json(values))

    def write(self, values: Mapping[str, Any]) -> str:
        """Write the arguments as a JSON object."""
        return self._adapter.serializer.to_json(values).decode()

    def schema(self, generator: Any) -> dict[str, Any]:
        """Return the JSON schema of each argument as `additionalProperties`, and its definitions.

        Args:
            generator: class that writes schemas.
        """
        return {
            name: part
            for name, part in self._adapter.json_schema(schema_generator=generator).items()
            if name in ("additionalProperties", "$defs")
        }


def unpacked(annotation: Any) -> dict[str, Any]:
    """Return the annotations of the keys that a `**` parameter takes, `Unpack` of a TypedDict; empty for others."""
    if get_origin(annotation) not in (Unpack, OlderUnpack):
        return {}
    (keys,) = get_args(annotation)
    return {
        name: NotRequired[hint] if name in keys.__optional_keys__ and get_origin(hint) is not NotRequired else hint
        for name, hint in get_type_hints(keys, include_extras=True).items()
    }


class Signature:
    """The parameters of a handler.

    Args:
        name: handler name, for messages.
        function: the handler; its annotations validate the arguments.
        injected: names of the parameters that are not part of a call: the Context and the resources.
    """

    def __init__(self, name: str, function: Callable[..., Any], injected: Collection[str] = ()) -> None:
        self.name = name
        self._function = function
        parameters = [item for item in signature_of(function).parameters.values() if item.name not in injected]
        for item in parameters:
            if item.kind in POSITIONAL:
                raise InvalidHandler(name=name, why=f"a payload has only named arguments, so {item} cannot be passed")
        self._calling = inspect.Signature(parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Validate the arguments of a call and write them as a JSON object.

        Raises:
            InvalidPayload: arguments do not match; the message names them without their values.
        """
        try:
            values = self._adapter.validator.validate_python(self._bound(args, kwargs) if args else kwargs)
            if self._extra is not None:
                values |= self._extra.validate(self._unnamed(values))
        except ValidationError as error:
            raise self._invalid(error) from None
        if self._untyped or self._extra is not None:
            self._require_plain(values)
        return self._to_json(values)

    def _require_plain(self, values: dict[str, Any]) -> None:
        try:
            for name in self._untyped & values.keys():
                require_plain(name, values[name])
            if self._extra is not None:
                self._extra.require_plain(self._unnamed(values))
        except RecursionError:
            raise InvalidPayload(handler=self.name, why=TOO_DEEP) from None
        except ValueError as error:
            why = str(error)
            try:
                require_faithful(values, require_shown)
            except ValueError as hidden:  # the more important reason
                why = f"it cannot be written as JSON: {hidden}"
            raise InvalidPayload(handler=self.name, why=why) from None

    def encode_each(self, calls: Iterable[Mapping[str, Any]]) -> list[str]:
        """Encode many calls.

        Raises:
            InvalidPayload: as for `encode`, with the index of the first call that does not match.
        """
        payloads: list[str] = []
        try:
            for call in calls:
                payloads.append(self.encode((), call))
        except InvalidPayload as error:
            raise InvalidPayload(handler=self.name, why=f"call {len(payloads)}: {error.fields['why']}") from None
        return payloads

    def check(self, payload: str) -> str:
        """Validate a payload from another source and rewrite it as `encode` does.

        Raises:
            InvalidPayload: as for `encode`.
        """
        return self._to_json(self.decode(payload))

    def read(self, payload: str) -> Any:
        """Read a payload into the arguments of one call, as the function receives them.

        Raises:
            InvalidPayload: as for `encode`.
        """
        return self.decode(payload)

    def decode(self, payload: str) -> dict[str, Any]:
        """Read a payload into keyword arguments.

        Raises:
            InvalidPayload: as for `encode`.
        """
        try:
            values: dict[str, Any] = self._adapter.validator.validate_json(payload)
            if self._extra is not None:
                values |= self._extra.read(self._unnamed(values))
        except ValidationError as error:
            raise self._invalid(error) from None
        return values

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind positional arguments to their names."""
        try:
            bound = self._calling.bind(*args, **kwargs).arguments
        except TypeError as error:
            why = f"{error}; it has: {', '.join(self._calling.parameters) or 'none'}"
            raise InvalidPayload(handler=self.name, why=why) from None
        extra: dict[str, Any] = bound.get(self._extra_name, {})
        return {name: value for name, value in bound.items() if name != self._extra_name} | extra

    def require_types(self) -> None:
        """Check that every annotation can be read from JSON. Call it once all annotated types are defined.

        Raises:
            InvalidHandler: an annotation cannot be read from JSON.
        """
        _ = self._adapter

    def takes(self, name: str) -> bool:
        """True if a call may pass an argument of this name."""
        return bool(self._extra_name) or name in self._calling.parameters

    def arguments(self, payload: str) -> dict[str, Any]:
        """Read a payload into all arguments that the function sees, including defaults.

        Raises:
            InvalidPayload: as for `encode`.
        """
        return self.defaults | self.decode(payload)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a payload. An argument with a validator that sees the plain value may have any type.

        Raises:
            PydanticUserError: a type has no schema.
            InvalidHandler: an annotation cannot be read from JSON.
        """
        generator = _input_schema()
        schema = self._adapter.json_schema(schema_generator=generator)
        if self._extra is None:
            return schema
        extra = self._extra.schema(generator)
        definitions = extra.pop("$defs", {}) | schema.get("$defs", {})
        return schema | extra | ({"$defs": definitions} if definitions else {})

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the function's parameters, by name."""
        parameters = self._calling.parameters.values()
        return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}

    @cached_property
    def _extra_name(self) -> str:
        """Name of the `**` parameter, or ""."""
        names = (item.name for item in self._calling.parameters.values() if item.kind is inspect.Parameter.VAR_KEYWORD)
        return next(names, "")

    @cached_property
    def _untyped(self) -> frozenset[str]:
        """Names of the parameters whose annotations leave types open."""
        hints = self._hints
        return frozenset(name for name in hints if name != self._extra_name and is_untyped(hints[name]))

    @cached_property
    def _extra(self) -> ExtraArguments | None:
        """The arguments of the `**` parameter; None without one, or if its annotation lists them.

        Raises:
            InvalidHandler: its annotation cannot be read from JSON.
        """
        hint = self._hints.get(self._extra_name, Any)
        if not self._extra_name or unpacked(hint):
            return None
        try:
            return ExtraArguments(hint, _rules("forbid"))
        except PydanticUserError as error:
            raise InvalidHandler(name=self.name, why=_unreadable_type({self._extra_name: hint}, error)) from None

    def _unnamed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the `**` parameter."""
        return {name: value for name, value in values.items() if name not in self._calling.parameters}

    @property
    def _names(self) -> list[str]:
        """The names of all arguments, for messages."""
        keys = unpacked(self._hints.get(self._extra_name))
        return [name for name in self._calling.parameters if not keys or name != self._extra_name] + [*keys]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The annotation of each parameter.

        Raises:
            InvalidHandler: an annotation cannot be evaluated.
        """
        try:
            hints = hints_of(self._function, self._calling.parameters)
        except UNREADABLE as error:
            why = f"its annotations cannot be read: {error}. Import the types outside `if TYPE_CHECKING`"
            raise InvalidHandler(name=self.name, why=why) from None
        return {name: hints.get(name, Any) for name in self._calling.parameters}

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        """Built at first use, because annotations may name types defined after the handler.

        Raises:
            InvalidHandler: an annotation cannot be read from JSON.
        """
        make: Any = TypedDict  # type checkers do not accept fields that are computed at run time
        annotated: dict[str, Any] = {
            name: hint if item.default is inspect.Parameter.empty else NotRequired[hint]
            for (name, hint), item in zip(self._hints.items(), self._calling.parameters.values(), strict=True)
            if name != self._extra_name
        } | unpacked(self._hints.get(self._extra_name))
        rules = _rules("forbid" if self._extra is None else "allow")
        try:
            return TypeAdapter(with_config(rules)(make("Arguments", annotated)))
        except PydanticUserError as error:
            raise InvalidHandler(name=self.name, why=_unreadable_type(self._hints, error)) from None

    def _to_json(self, values: dict[str, Any]) -> str:
        try:
            text = self._write(values)
            if "NaN" in text or "Infinity" in text:
                json.loads(text, parse_constant=_reject_constant)
            if "\\u" in text:
                require_payload(text)
            require_levels(text)
            if "null" in text:
                require_faithful(values, _require_finite)
            if HIDDEN in text:
                require_faithful(values, require_shown)
        except ValueError as error:  # includes pydantic's errors
            why = BYTES_ADVICE if "invalid utf-8" in str(error) else error
            raise InvalidPayload(handler=self.name, why=f"it cannot be written as JSON: {why}") from None
        except RecursionError:
            raise InvalidPayload(handler=self.name, why=TOO_DEEP) from None
        return text

    def _write(self, values: dict[str, Any]) -> str:
        # The adapters' own methods look up configuration first, which takes as long as the serialization.
        write = self._adapter.serializer.to_json
        if self._extra is None:
            return write(values).decode()
        named = {name: value for name, value in values.items() if name in self._calling.parameters}
        text, rest = write(named).decode(), self._extra.write(self._unnamed(values))
        # Serializers before pydantic 2.12 leave out the arguments of a `**` parameter.
        return text[:-1] + ("," if named and len(values) > len(named) else "") + rest[1:]

    def _invalid(self, error: ValidationError) -> InvalidPayload:
        return InvalidPayload(handler=self.name, why=_reasons(error, "payload", ", ".join(self._names)))


def _rules(extra: Literal["allow", "forbid"]) -> ConfigDict:
    return ConfigDict(extra=extra, allow_inf_nan=False, ser_json_inf_nan="constants")


OPEN = "x-open"
"""The mark in the schema of an enumeration that takes further values."""


@cache
def _input_schema() -> type["GenerateJsonSchema"]:
    """Return the class that writes the schema of the values before any validator changes them."""
    from pydantic.json_schema import GenerateJsonSchema  # only a runner writes schemas

    class InputSchema(GenerateJsonSchema):
        def function_before_schema(self, schema: Any) -> dict[str, Any]:
            return super().function_before_schema(schema) if "json_schema_input_schema" in schema else {}

        def function_wrap_schema(self, schema: Any) -> dict[str, Any]:
            return super().function_wrap_schema(schema) if "json_schema_input_schema" in schema else {}

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            """An enumeration with `_missing_` takes other values too."""
            missing = getattr(schema["cls"]._missing_, "__func__", None)  # None if it is a plain function
            is_open = missing is not Enum._missing_.__func__  # type: ignore[attr-defined]
            return super().enum_schema(schema) | ({OPEN: True} if is_open else {})

    return InputSchema


def _unreadable_type(hints: Mapping[str, Any], error: PydanticUserError) -> str:
    """Name the argument whose type cannot be read from JSON."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint)
        except PydanticUserError:
            type_name = hint.__qualname__ if isinstance(hint, type) else hint
            remedy = "use an id, a data class or a pydantic model"
            return f"its argument {name} has the type {type_name}, which JSON cannot hold: {remedy}"
    return error.message.partition("\n")[0]


HIDDEN = '"**********"'
"""JSON that pydantic writes for every SecretStr."""


def require_faithful(value: Any, check: Callable[[Any], None]) -> None:
    """Check every value that the JSON of a value contains.

    Args:
        value: a value with any containers, data classes and models.
        check: raises ValueError for a value that JSON would not hold as it is.
    """
    match value:
        case dict():
            children: Iterable[Any] = value.values()
        case list() | tuple() | set() | frozenset():
            children = value
        case BaseModel():
            children = vars(value).values()
        case _ if is_dataclass(value):
            children = [getattr(value, field.name) for field in fields(value)]
        case _:
            check(value)
            return
    for child in children:
        require_faithful(child, check)


def _require_finite(value: Any) -> None:
    """Reject NaN and infinity, which pydantic writes as null unless an annotation forbids them."""
    if isinstance(value, float) and not math.isfinite(value):
        _reject_constant(str(value))


def require_shown(value: Any) -> None:
    """Reject a secret, which pydantic writes as asterisks.

    Raises:
        ValueError: the value is a SecretStr, SecretBytes or Secret.
    """
    if isinstance(value, (Secret, SecretBytes, SecretStr)):
        instead = "pass the name under which the handler finds the secret, or declare it as str"
        raise ValueError(f"{type(value).__name__} would be stored as asterisks; {instead}")


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _reasons(error: ValidationError, whole: str, names: str = "") -> str:
    """All errors in one line, without the values, which may be secret."""
    reasons: list[str] = []
    for item in error.errors(include_url=False, include_context=False):
        is_argument = len(item["loc"]) == 1 and item["type"] == "extra_forbidden"
        why = f"the handler has no such argument; it has: {names or 'none'}" if is_argument else item["msg"]
        if not is_argument and isinstance(item["input"], (bytes, bytearray)):
            why = f"{why}; {BYTES_ADVICE}"
        reasons.append(f"{'.'.join(map(str, item['loc'])) or whole}: {why}")
    return "; ".join(reasons)


class Returned:
    """The return type of a handler.

    Args:
        function: the handler. Without a return annotation, or with one that pydantic does not support, a result is
            plain JSON.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def read(self, result: str | None) -> Any:
        """Convert a stored result.

        Args:
            result: JSON text; None if the handler returned nothing.

        Raises:
            ValueError: it does not match the annotation. The message omits the value.
        """
        text = "null" if result is None else result
        if self._adapter is None:
            return json.loads(text)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            if result is None:
                raise ValueError("there is none; inside ctx.transaction(), set its result") from None
            raise ValueError(_reasons(error, "result")) from None

    @cached_property
    def excludes_none(self) -> bool:
        """True if the annotation is a type that None does not match, such as `int`, and not `int | None`."""
        if self._adapter is None:
            return False
        try:
            self._adapter.validate_python(None)
        except ValidationError:
            return True
        return False

    @property
    def name(self) -> str:
        """The annotation, for people."""
        annotation = hints_of(self._function, [RETURN])[RETURN]
        return annotation.__name__ if isinstance(annotation, type) else str(annotation)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        """Built at first use, because the annotation may name a type defined after the handler."""
        try:
            return TypeAdapter(_result_of(hints_of(self._function, [RETURN])[RETURN]))
        except (KeyError, *UNREADABLE, PydanticUserError):
            return None


def _result_of(annotation: Any) -> Any:
    """The annotation without outcome classes."""
    if annotation in (*HANDLER_OUTCOMES, Never, NoReturn):
        return None
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    return Union[tuple(kind for kind in get_args(annotation) if kind not in HANDLER_OUTCOMES) or (None,)]  # noqa: UP007 - built at run time


class ChunkSignature(Signature):
    """The parameters of one task of a chunk handler.

    Args:
        name: handler name, for messages.
        payload_type: the class of the arguments.

    Raises:
        InvalidHandler: the class has no named fields.
    """

    def __init__(self, name: str, payload_type: Any) -> None:
        is_class = isinstance(payload_type, type)
        if not is_class or not (is_dataclass(payload_type) or issubclass(payload_type, BaseModel)):
            found = payload_type.__qualname__ if is_class else str(payload_type)
            why = f"its Chunk has tasks of type {found}: use a data class or a pydantic model with the arguments"
            raise InvalidHandler(name=name, why=why)
        super().__init__(name, payload_type)
        self._type: type[Any] = payload_type

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Validate the arguments of a task, an object or its fields by name, and write them as a JSON object.

        Raises:
            InvalidPayload: arguments do not match; the message names them without their values.
        """
        if args:
            if len(args) > 1 or kwargs or not isinstance(args[0], self._type):
                why = f"pass one object of {self._type.__qualname__}, or its fields by name"
                raise InvalidPayload(handler=self.name, why=why)
            kwargs = self._fields(args[0])
        return super().encode((), kwargs)

    def read(self, payload: str) -> Any:
        """Read a payload into the object of one task.

        Raises:
            InvalidPayload: as for `encode`.
        """
        values = self.decode(payload)
        try:
            return self._type(**values)
        except ValidationError as error:
            raise self._invalid(error) from None

    def arguments(self, payload: str) -> dict[str, Any]:
        """Read a payload into all fields of its object, including defaults.

        Raises:
            InvalidPayload: as for `encode`.
        """
        return self._fields(self.read(payload))

    def _fields(self, item: Any) -> dict[str, Any]:
        if isinstance(item, BaseModel):
            return item.model_dump(by_alias=True)
        return {name: getattr(item, name) for name in self._calling.parameters}


def chunk_result(result: Any) -> Returned:
    """Return the type of the results of the tasks of a chunk handler.

    Args:
        result: the second type of its Chunk.
    """

    def task() -> None: ...

    task.__annotations__ = {"return": result}
    return Returned(task)
