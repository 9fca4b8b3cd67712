"""Signature: the arguments of a handler as JSON and back, checked by its annotations."""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any, NotRequired, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticUserError
from typing_extensions import TypedDict

from runner.errors import InvalidHandler, InvalidPayload

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


class Signature:
    """What a handler takes.

    Args:
        name: the handler's, for messages.
        function: whose annotations count.
        context: the name of the parameter that receives the Context; None when it wants none.
    """

    def __init__(self, name: str, function: Callable[..., Any], context: str | None) -> None:
        self.name = name
        self._function = function
        parameters = [item for item in inspect.signature(function).parameters.values() if item.name != context]
        for item in parameters:
            if item.kind in POSITIONAL:
                raise InvalidHandler(name=name, why=f"its parameter {item} has no name to stand under in the payload")
        self._calling = inspect.Signature(parameters)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Check a call's arguments and write them as a JSON object.

        Raises:
            InvalidPayload: naming each argument that does not fit, without its value.
        """
        try:
            values = self._adapter.validator.validate_python(self._named(args, kwargs) if args else kwargs)
        except ValidationError as error:
            raise self._refused(error) from None
        return self._written(values)

    def encode_each(self, calls: Iterable[Mapping[str, Any]]) -> list[str]:
        """Write many calls as `encode` does, each given by its named arguments.

        Raises:
            InvalidPayload: as `encode`, with the place of the first call that does not fit, from 0.
        """
        payloads: list[str] = []
        try:
            for call in calls:
                payloads.append(self.encode((), call))
        except InvalidPayload as error:
            raise InvalidPayload(handler=self.name, why=f"call {len(payloads)}: {error.fields['why']}") from None
        return payloads

    def check(self, payload: str) -> str:
        """Check a payload written elsewhere, and write it in our form.

        Raises:
            InvalidPayload: as `encode`.
        """
        return self._written(self.decode(payload))

    def decode(self, payload: str) -> dict[str, Any]:
        """Read a payload into the arguments to call with.

        Raises:
            InvalidPayload: as `encode`.
        """
        try:
            values: dict[str, Any] = self._adapter.validator.validate_json(payload)
        except ValidationError as error:
            raise self._refused(error) from None
        return values

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give every argument its name, as Python does; what was given by name needs none."""
        try:
            given = self._calling.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidPayload(handler=self.name, why=str(error)) from None
        rest: dict[str, Any] = given.get(self._extra, {})
        return {name: value for name, value in given.items() if name != self._extra} | rest

    def require_types(self) -> None:
        """Refuse annotations that no argument could be made by, once all that they name is defined.

        Raises:
            InvalidHandler: naming the argument.
        """
        _ = self._adapter

    def takes(self, name: str) -> bool:
        """Tell whether a call may hold an argument of this name."""
        return bool(self._extra) or name in self._calling.parameters

    def arguments(self, payload: str) -> dict[str, Any]:
        """Read a payload into all the arguments that the function will see: with the defaults of those left out.

        Raises:
            InvalidPayload: as `encode`.
        """
        return self._defaults | self.decode(payload)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = self._calling.parameters.values()
        return {item.name: item.default for item in parameters if item.default is not inspect.Parameter.empty}

    @cached_property
    def _extra(self) -> str:
        """The name of the parameter that takes all other names, or an empty text."""
        rest = (item.name for item in self._calling.parameters.values() if item.kind is inspect.Parameter.VAR_KEYWORD)
        return next(rest, "")

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        """Built at first use: annotations may name what is defined after the handler.

        Raises:
            InvalidHandler: there is no way to make an argument of its JSON.
        """
        make: Any = TypedDict  # its static meaning has no place for fields that are known only now
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except (NameError, TypeError) as error:
            why = f"its annotations cannot be read: {error}. Import what they name, and not for type checkers alone"
            raise InvalidHandler(name=self.name, why=why) from None
        annotated: dict[str, Any] = {}
        for item in self._calling.parameters.values():
            if item.name != self._extra:
                hint = hints.get(item.name, Any)
                annotated[item.name] = hint if item.default is inspect.Parameter.empty else NotRequired[hint]
        shape = make("Arguments", annotated)
        extra: Any = "allow" if self._extra else "forbid"
        rules = ConfigDict(extra=extra, allow_inf_nan=False, ser_json_inf_nan="constants")
        try:
            return TypeAdapter(with_config(rules)(shape))
        except PydanticUserError as error:
            raise InvalidHandler(
                name=self.name, why=_unknown({name: hints.get(name, Any) for name in annotated}, error)
            ) from None

    def _written(self, values: dict[str, Any]) -> str:
        try:
            # The adapter's own methods would first look up what nobody configures: as long as all the work takes.
            text = self._adapter.serializer.to_json(values).decode()
            if "NaN" in text or "Infinity" in text:
                json.loads(text, parse_constant=_refuse_constant)
            if "null" in text:
                _require_finite(values)
        except ValueError as error:  # pydantic's own errors are of this kind too
            raise InvalidPayload(handler=self.name, why=f"it cannot be written as JSON: {error}") from None
        return text

    def _refused(self, error: ValidationError) -> InvalidPayload:
        return InvalidPayload(handler=self.name, why=_reasons(error))


def _unknown(hints: Mapping[str, Any], error: PydanticUserError) -> str:
    """Say which argument has a type that cannot be made of JSON."""
    for name, hint in hints.items():
        try:
            TypeAdapter(hint)
        except PydanticUserError:
            shown = hint.__qualname__ if isinstance(hint, type) else hint
            return (
                f"no {shown} can be made of JSON for its argument {name}: take an id, a data class or a pydantic model"
            )
    return error.message.partition("\n")[0]


def _require_finite(value: Any) -> None:
    """Refuse what pydantic writes as null where no annotation of ours forbids it: NaN and infinity."""
    match value:
        case float():
            if not math.isfinite(value):
                _refuse_constant(str(value))
        case dict():
            _require_finite([*value.values()])
        case list() | tuple() | set() | frozenset():
            for item in value:
                _require_finite(item)
        case BaseModel():
            _require_finite(vars(value))
        case _ if is_dataclass(value):
            _require_finite([getattr(value, field.name) for field in fields(value)])


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _reasons(error: ValidationError) -> str:
    """Every complaint in one line, without the values: they may be secret."""
    found = error.errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'payload'}: {item['msg']}" for item in found)
