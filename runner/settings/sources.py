"""Where settings come from: layers of values that know their origin."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from runner.errors import InvalidSettings

PREFIX = "RUNNER_"


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


def _unknown(name: str, known: list[str]) -> str:
    meant = resembling(name, known)
    return f"there is no setting {name!r}" + (f"; did you mean {meant}?" if meant else "")


def resembling(name: str, known: list[str]) -> str | None:
    """Guess which setting a mistyped name means."""
    return next(iter(get_close_matches(name.lower(), known, n=1, cutoff=0.75)), None)
