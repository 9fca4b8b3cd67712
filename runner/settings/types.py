"""The declaration of settings: each has a function that turns text from the environment or a file into a checked value.

It is our own: building pydantic's model of the settings took a fifth of the start-up time of every program.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias

from typing_extensions import dataclass_transform

from runner.errors import InvalidDuration, InvalidSettings, InvalidUrl
from runner.model.duration import format_duration, parse_duration
from runner.model.outcome import Unexpected
from runner.text import formatting

MAX_PREFIX = 20
"""Maximum length of a table prefix: with it, the longest index name fits into PostgreSQL's 63 bytes."""

MAX_NAME = 63
"""Maximum length of a name in PostgreSQL."""

ZERO = timedelta(0)

Parse: TypeAlias = Callable[[Any], Any]
"""Checks a value or a text, and returns the value; a ValueError has the reason why it is not valid."""

Values: TypeAlias = Mapping[str, Any]
"""The valid settings so far, by name."""


class Size(int):
    """A number of bytes."""


def word(value: Any) -> str:
    """Check a text."""
    if not isinstance(value, str):
        raise ValueError("it must be a valid string")
    return value


def nonempty(value: Any) -> str:
    """Check a text that is not empty."""
    if not word(value):
        raise ValueError("it must have at least 1 character")
    return word(value)


def matching(pattern: str, length: int) -> Parse:
    """Texts that match a pattern completely and are not longer than a number of characters."""

    def parse(value: Any) -> str:
        if not re.fullmatch(pattern, word(value)):
            raise ValueError(f"it must match the pattern {pattern}")
        if len(value) > length:
            raise ValueError(f"it must have at most {length} characters")
        return word(value)

    return parse


def module(value: Any) -> str:
    """Check the name of a Python module.

    Raises:
        ValueError: it is not a dotted name; the message derives one from a path such as `shop/tasks.py`.
    """
    text = word(value)
    if all(part.isidentifier() for part in text.split(".")):
        return text
    dotted = text.strip("./").removesuffix(".py").replace("/", ".")
    example = dotted if all(part.isidentifier() for part in dotted.split(".")) else "shop.tasks"
    raise ValueError(f"it must be the name of a Python module, such as {example}, not {text!r}")


def several(parse: Parse) -> Parse:
    """Tuples; a text has its items between commas."""

    def items(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            return tuple(parse(item.strip()) for item in value.split(",") if item.strip())
        if not isinstance(value, list | tuple | set | frozenset):
            raise ValueError("it must be a list, or a text with commas")
        return tuple(map(parse, value))

    return items


def optional(parse: Parse) -> Parse:
    """A value or None."""
    return lambda value: None if value is None else parse(value)


def unlimited(parse: Parse) -> Parse:
    """A value, or None, which a text writes as `none`, `never` or `forever`."""

    def parse_limit(value: Any) -> Any:
        is_word = isinstance(value, str) and value.strip().lower() in {"none", "never", "forever"}
        return None if value is None or is_word else parse(value)

    return parse_limit


def at_least(least: int) -> Parse:
    """Integers from a number on."""

    def parse(value: Any) -> int:
        number = _integer(value)
        if number < least:
            raise ValueError(f"it must be greater than or equal to {least}")
        return number

    return parse


def _integer(value: Any) -> int:
    is_whole = isinstance(value, int | str) or (isinstance(value, float) and value.is_integer())
    try:
        if is_whole and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise ValueError("it must be a valid integer")


def delay(value: Any) -> timedelta:
    """Parse a duration, which may be zero."""
    try:
        duration = parse_duration(value)
    except InvalidDuration:
        raise ValueError("expected a duration such as 250ms, 30s, 5m, 1h30m or 2d") from None
    if duration < ZERO:
        raise ValueError("it must be greater than or equal to 0")
    return duration


def period(value: Any) -> timedelta:
    """Parse a duration above zero."""
    if delay(value) == ZERO:
        raise ValueError("it must be greater than 0")
    return delay(value)


count, whole = at_least(1), at_least(0)
names, modules = several(nonempty), several(module)
limit, maximum = unlimited(period), unlimited(count)

UNITS = {"": 1, "b": 1} | {
    f"{letter}{unit}": step ** (power + 1)
    for power, letter in enumerate("kmgt")
    for unit, step in (("", 1_000), ("b", 1_000), ("ib", 1_024))
}
"""Bytes of the units of sizes."""


def size(value: Any) -> Size:
    """Parse a number of bytes, such as 700, 64KiB or 1.5MiB."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*([a-z]*)\s*", value.lower()) if isinstance(value, str) else None
    if (found is None and isinstance(value, str)) or (found is not None and found[2] not in UNITS):
        raise ValueError("expected a size such as 700, 64KiB or 1MiB")
    number = float(found[1]) * UNITS[found[2]] if found is not None else value
    return Size(count(int(number) if isinstance(number, float) else number))


def boolean(value: Any) -> bool:
    """Parse yes or no."""
    text = value.strip().lower() if isinstance(value, str) else str(int(value)) if value in (0, 1) else ""
    if text in ("1", "on", "t", "true", "y", "yes"):
        return True
    if text in ("0", "off", "f", "false", "n", "no"):
        return False
    raise ValueError("it must be a valid boolean, such as on or off")


def path(value: Any) -> Path:
    """Check a path."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError("it must be a path")
    return Path(value)


def choice(*words: str) -> Parse:
    """One of some words, in upper or lower case as they are."""
    quoted = [f"'{each}'" for each in words]
    why = f"it must be {', '.join(quoted[:-1])} or {quoted[-1]}"

    def parse(value: Any) -> str:
        text = value.upper() if isinstance(value, str) and words[0].isupper() else value
        if text not in words:
            raise ValueError(why)
        return word(text)

    return parse


def outcome_rule(case: Unexpected) -> Parse:
    """Rules for unexpected results; a runner imports their functions when it starts."""

    def parse(value: Any) -> str:
        text = word(value)
        module_name, colon, function = text.partition(":")
        is_function = colon and all(map(str.isidentifier, (*module_name.split("."), function)))
        if text not in case.choices and not is_function:
            raise ValueError(f"{text!r} is not {case.values}")
        return text

    return parse


class Origins(NamedTuple):
    """Origins of the settings.

    Args:
        places: origin by setting, without those at their default.
        stray: RUNNER_* variables that are not settings.
    """

    places: Mapping[str, str] = {}
    stray: tuple[str, ...] = ()

    def of(self, name: str) -> str:
        """Return the origin of a setting that is not at its default."""
        return self.places.get(name, f"argument {name}")


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of a setting.

    Args:
        parse: checks a value.
        description: its meaning in one line.
        default: its default.
        factory: derives the default from the settings above; None for `default`.
        check: compares a given value with the settings above; raises ValueError with the reason.
    """

    parse: Parse
    description: str
    default: Any = None
    factory: Callable[[Values], Any] | None = None
    check: Callable[[Any, Values], object] | None = None


def setting(
    parse: Parse,
    *,
    description: str,
    default: Any = None,
    factory: Callable[[Values], Any] | None = None,
    check: Callable[[Any, Values], object] | None = None,
) -> Any:
    """Declare a setting, see `Setting`."""
    return Setting(parse, description, default, factory, check)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Declared:
    """Immutable values of declared settings.

    Args:
        origins: origins of the values, for messages.
        values: values or texts by name; the others have their defaults.

    Raises:
        InvalidSettings: a value is not valid. The message names its origin and does not repeat it.
        InvalidUrl: a URL is not valid or not supported.
    """

    DECLARATIONS: ClassVar[Mapping[str, Setting]] = {}

    explicit: frozenset[str]
    """The names of the settings that are not at their default."""

    def __init_subclass__(cls) -> None:
        cls.DECLARATIONS = {key: value for key, value in vars(cls).items() if isinstance(value, Setting)}

    def __init__(self, *, origins: Origins | None = None, **values: Any) -> None:
        origins = origins or Origins()
        valid: dict[str, Any] = {}
        errors: list[tuple[str, str]] = []
        for key, declaration in self.DECLARATIONS.items():
            try:
                if key in values:
                    value = declaration.parse(values[key])
                    if declaration.check is not None:
                        declaration.check(value, valid)
                else:
                    value = declaration.factory(valid) if declaration.factory else declaration.default
            except InvalidUrl as error:
                raise InvalidUrl(url=error.fields["url"], why=f"{error.fields['why']} ({origins.of(key)})") from None
            except ValueError as error:
                errors.append((origins.of(key), str(error)))
            except KeyError:  # A setting that this one is derived from is not valid.
                if not errors:
                    raise
            else:
                valid[key] = value
        known = tuple(self.DECLARATIONS)
        errors += [(origins.of(key), unknown_setting(key, known)) for key in values if key not in known]
        if errors:
            (where, why), *more = errors
            raise InvalidSettings(where=where, why="; ".join([why, *(f"{other}: {reason}" for other, reason in more)]))
        vars(self).update(valid, origins=origins, explicit=frozenset(values))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to the setting {name!r}")

    def __repr__(self) -> str:
        values = (f"{key}={getattr(self, key)!r}" for key in self.DECLARATIONS)
        return f"{type(self).__name__}({', '.join(values)})"


def unknown_setting(typed: str, known: tuple[str, ...]) -> str:
    """Explain that a name is not a setting."""
    similar = similar_setting(typed, known)
    return f"unknown setting {typed!r}" + (f"; did you mean {similar!r}?" if similar else "")


def similar_setting(typed: str, known: tuple[str, ...]) -> str | None:
    """Return the setting most similar to a name; None if none is similar."""
    return next(iter(get_close_matches(typed.lower(), known, n=1, cutoff=0.75)), None)


def value_text(value: Any) -> str:
    """Return the value of a setting as text."""
    match value:
        case None | ():
            return "none"
        case bool():
            return "on" if value else "off"
        case Size():
            return formatting.size(value)
        case timedelta():
            return format_duration(value)
        case tuple():
            return ", ".join(value)
    return str(value)
