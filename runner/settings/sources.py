"""Where settings come from: layers of values that know their origin, and complaints that name it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import ValidationError

from runner.errors import InvalidSettings

PREFIX = "RUNNER_"

# What pydantic adds about a value that is derived from one already complained about.
_CONSEQUENCE = "default_factory_not_called"


class Layer(NamedTuple):
    """One source of settings.

    Args:
        values: by name of the setting.
        origin: says where the setting of a name stands in this source.
    """

    values: Mapping[str, Any]
    origin: Callable[[str], str]


def merge(layers: Iterable[Layer], known: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Put layers upon each other.

    Args:
        layers: the strongest last.
        known: names of all settings.

    Returns:
        The values, and the origin of each.

    Raises:
        InvalidSettings: a layer holds a name that is no setting.
    """
    known = list(known)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if name not in known:
                raise InvalidSettings(where=layer.origin(name), why=_unknown(name, known))
            values[name] = value
            origins[name] = layer.origin(name)
    return values, origins


def variable(name: str) -> str:
    """Name the environment variable of a setting."""
    return PREFIX + name.upper()


def explain(error: ValidationError, origins: Mapping[str, str]) -> InvalidSettings:
    """Turn pydantic's complaints into ours, which say where each value stands and do not repeat it.

    Args:
        error: what pydantic found.
        origins: where each value stands, by name of the setting.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    complaints = [
        (_place(item["loc"], origins), _reason(item["msg"])) for item in found if item["type"] != _CONSEQUENCE
    ]
    (where, why), *more = complaints
    return InvalidSettings(where=where, why="; ".join([why, *(f"{place}: {reason}" for place, reason in more)]))


def _place(path: Sequence[int | str], origins: Mapping[str, str]) -> str:
    name = str(path[0]) if path else "settings"
    return origins.get(name, name)


def _reason(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "it must be")


def _unknown(name: str, known: list[str]) -> str:
    meant = resembling(name, known)
    return f"there is no setting {name!r}" + (f"; did you mean {meant}?" if meant else "")


def resembling(name: str, known: list[str]) -> str | None:
    """Guess which setting a mistyped name means."""
    return next(iter(get_close_matches(name.lower(), known, n=1, cutoff=0.75)), None)
