"""Extra arguments: those of the `**` parameter of a handler, each of the type that its annotation names."""

from collections.abc import Mapping
from typing import Any, NotRequired, Unpack, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import to_json
from typing_extensions import Unpack as OlderUnpack

from runner.handlers.plain_values import is_untyped, require_plain


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
