"""Redaction: secrets, found by field name or by form, masked for display."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, NamedTuple

from runner.errors import InvalidEdit
from runner.model.sealed import CODEC, hide_sealed, sealed_of, shown
from runner.text.sanitize import CUT, before_number, clean

MASK = "***"
"""The replacement of a secret."""

SHORTEST = 6
"""The least characters of a secret that is searched for in other texts; a shorter one can occur by chance."""

MOST_LEVELS = 50
"""Maximum number of levels of nesting that are shown, so that printing never exhausts the stack."""

INTERNAL_FIELDS = ("version", "fence", "signal_id", "failed_steps")
"""Fields of audit entries that identify rows, or that only an undo needs; they are not shown."""

_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)|^pass$|^pwd$|secret|token|authori[sz]ation|^auth$|api[-_ ]?key|access[-_ ]?key"
    r"|private[-_ ]?key|credential|cookie|^session(?:[-_ ]?id)?$|^pin$|^cvv$|^cvc$|signature",
    re.IGNORECASE,
)
_SECRET_IN_TEXT = re.compile(_SECRET.pattern.replace("^", '"').replace("$", '"'), re.IGNORECASE)
"""Finds the same names in JSON text."""

# The first words of messages about an argument, as in "password: at least 8 characters". Each has no word of a value.
_MESSAGE = r"""
    (?:at\ (?:least|most)\ \d | expected\ (?:text|JSON|yes\ or\ no|one\ of|an?)\b
      | the\ handler\ (?:requires\ it|has\ no\ such)\b | required:\ (?:text|JSON|yes\ or\ no|one\ of|an?)\b
      | (?:must|should)\ (?:be|have|contain)\ (?:an?|at|between|exactly|less|more|only)\ [\w]
      | (?:string|bytes|input|value|list|dictionary|set|tuple|number)\ should\ (?:be|have|match)\ \w
      | field\ required\b | extra\ inputs\ are\ not\ permitted\b | (?:value\ error|assertion\ failed),\ \w)
"""
# The value after one of these names in a text that is not JSON: password=x, "token": "x", api_key: x.
_NAMED = rf"""
    (?P<named>(?:pass(?:word|wd|phrase|code)|pwd|secret|token|authori[sz]ation|api[-_]?key|access[-_]?key
      |private[-_]?key|credential|cookie|signature)[\w-]{{0,30}}[\\"']{{0,3}}\s{{0,3}}(?:=>|[:=])\s{{0,3}}\\?)
    (?!(?<=:\ ){_MESSAGE})(?:(?:bearer|basic)\s{{1,3}})?
    (?:"(?=[^\w"\n]{{0,9}}\w)[^"\n]{{1,400}}"|'(?=[^\w'\n]{{0,9}}\w)[^'\n]{{1,400}}'|[^\s"'&,;(){{}}\[\]\\]{{1,400}})
"""
_TEXT = rf"""
    -----BEGIN\ [A-Z\ ]{{0,40}}PRIVATE\ KEY-----(?:.*?-----END\ [A-Z\ ]{{0,40}}PRIVATE\ KEY-----|.*)
    | (?P<url>://[^\s/@:"']{{0,100}}:)[^\s/@"']{{1,400}}(?=@)
    | (?P<scheme>\b(?:bearer|basic)\s{{1,3}})(?=[a-z._~+/-]{{0,400}}[\d=])[\w.~+/=-]{{8,}}
    | \beyJ[\w-]{{8,}}\.[\w-]{{8,}}(?:\.[\w-]*)?
    | \b(?:(?:AKIA|ASIA)[A-Z0-9]{{16}}|[rs]k_(?:live|test)_\w{{8,}}|gh[opsur]_\w{{20,}}|xox[abeprs]-[\w-]{{10,}}
      |glpat-[\w-]{{16,}}|AIza[\w-]{{30,}}|sk-[\w-]{{20,}})
    | {_NAMED}
"""
_HINTS = (
    *("pass", "pwd", "secret", "token", "authori", "key", "credential", "cookie", "signature", "://", "bearer"),
    *("basic", "eyj", "akia", "asia", "aiza", "k_", "gh", "xox", "glpat", "sk-"),
)
"""A text without any of these has no secret; the check is cheap, because it runs for every line drawn."""


def mask(text: str, *, reveal: bool = False) -> str:
    """Mask secrets in a text: an error, a traceback, a log line.

    Returns:
        The text with MASK in place of passwords in URLs, values after names such as `password=`, bearer tokens, and
        keys in well-known formats, and with descriptions of encrypted values.
    """
    if CODEC in text:
        text = hide_sealed(text)
    lower = text.lower()
    if reveal or not any(hint in lower for hint in _HINTS):
        return text
    return _text_pattern().sub(_mask, text)


@cache
def _text_pattern() -> re.Pattern[str]:
    return re.compile(_TEXT, re.IGNORECASE | re.VERBOSE | re.DOTALL)  # compiling takes milliseconds


def _mask(match: re.Match[str]) -> str:
    return f"{match['url'] or match['scheme'] or match['named'] or ''}{MASK}"


def is_secret(name: str) -> bool:
    """True if the field name suggests a secret."""
    return bool(_SECRET.search(name))


def redact(value: Any, *, reveal: bool = False, levels: int = MOST_LEVELS) -> Any:
    """Mask the values of secret fields, and values that look like secrets, at any depth.

    Args:
        value: decoded JSON.
        levels: maximum number of levels of nesting to show; deeper values are masked.

    Returns:
        A copy with MASK in place of every secret; null stays null.
    """
    if isinstance(value, str):
        return mask(value, reveal=reveal)
    if not isinstance(value, (dict, list)):
        return value
    if levels == 0:
        return MASK
    if (sealed := sealed_of(value)) is not None:
        return shown(sealed.codec, sealed.key)
    if isinstance(value, list):
        return [redact(item, reveal=reveal, levels=levels - 1) for item in value]
    return {
        name: MASK
        if item is not None and not reveal and is_secret(str(name))
        else redact(item, reveal=reveal, levels=levels - 1)
        for name, item in value.items()
    }


def secrets(payload: str, headers: str | None = None) -> list[str]:
    """The values of secret fields and headers that are long enough to search for, longest first.

    Args:
        payload: JSON text.
        headers: JSON text; None without any.
    """
    texts: set[str] = set()
    for text in (payload, headers or ""):
        if "\\" in text or _SECRET_IN_TEXT.search(text):  # cheap, because each log line asks
            with suppress(ValueError, RecursionError):
                texts |= set(_secret_texts(json.loads(text), secret=False))
    return sorted(texts, key=len, reverse=True)


def hide(value: Any, texts: Iterable[str]) -> Any:
    """Mask texts in a value at any depth of its lists and dicts.

    Args:
        value: a text, or decoded JSON.
        texts: the texts, as from `secrets`.
    """
    match value:
        case str():
            for text in texts:
                value = value.replace(text, MASK)
        case list() | tuple():
            return type(value)([hide(item, texts) for item in value])
        case dict():
            return {name: hide(item, texts) for name, item in value.items()}
    return value


def _secret_texts(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, str) and secret and len(value) >= SHORTEST:
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _secret_texts(item, secret=secret or is_secret(name))
    elif isinstance(value, list):
        for item in value:
            yield from _secret_texts(item, secret=secret)


def decode(text: str | None, *, reveal: bool = False) -> Any:
    """Decode a JSON text for display.

    Args:
        text: the stored text, possibly from a foreign client; None for no value.

    Returns:
        The value with its secrets masked; a text that is not JSON is masked as a whole.
    """
    if text is None:
        return None
    try:
        return redact(json.loads(text), reveal=reveal)
    except (ValueError, RecursionError):
        return text if reveal else MASK


def with_secrets(typed: str, stored: str) -> str:
    """Put the secrets of a stored payload back in place of their masks.

    Args:
        typed: the edited payload, JSON text; a mask keeps the secret of the same place.
        stored: the stored payload, JSON text.

    Raises:
        InvalidEdit: a mask is at a place that had no secret.
    """
    if MASK not in typed:
        return typed
    old = json.loads(stored)
    return json.dumps(_with_secrets(json.loads(typed), old, redact(old)), ensure_ascii=False)


def _with_secrets(new: Any, old: Any, shown: Any) -> Any:
    if new == shown:
        return old
    if isinstance(new, dict):
        before, masked = ({**value} if isinstance(value, dict) else {} for value in (old, shown))
        return {name: _with_secrets(value, before.get(name), masked.get(name)) for name, value in new.items()}
    if isinstance(new, list):
        same = isinstance(old, list) and isinstance(shown, list) and len(old) == len(shown) == len(new)
        olds, showns = (old, shown) if same else ([None] * len(new), [None] * len(new))
        return [_with_secrets(*items) for items in zip(new, olds, showns, strict=True)]
    if isinstance(new, str) and MASK in new:
        why = f"{MASK} keeps a secret only at its own place; enter the value"
        raise InvalidEdit(field="payload", value=MASK, why=why)
    return new


LEADING_FIELDS = ("state", "paused_until", "cancel_requested", "signal")
"""The fields of a change that are shown first."""

MOMENTS = ("_at", "_until", "_tick")
"""The ends of the names of fields that hold times."""


def decode_audit(text: str | None, *, reveal: bool = False) -> dict[str, Any]:
    """Decode the values of an audit entry.

    Args:
        text: the stored text; None for no value.

    Returns:
        The values by name, with secrets masked; the payload, stored as text, is decoded too.
    """
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    if isinstance(values.get("payload"), str):
        values["payload"] = decode(values["payload"], reveal=reveal)
    result: dict[str, Any] = redact(values, reveal=reveal)
    return result


class ChangedValue(NamedTuple):
    """A changed value of an audit entry.

    Args:
        name: its column; `payload NAME` for an argument.
        before: the value before as JSON, or a time; NO_VALUE if there was none.
        after: the value after.
    """

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


NO_VALUE = "-"
"""In place of a value that an audit entry does not have."""

ARGUMENT = "payload "
"""The beginning of the names of arguments."""


def differences(
    before: str | None, after: str | None, *, reveal: bool = False, most: int | None = None, zone: tzinfo = UTC
) -> list[ChangedValue]:
    """The values that an audit entry changed: `priority: 1 -> 9`; of a payload the changed arguments.

    Args:
        before: the values before, JSON text.
        after: the values after, JSON text.
        most: maximum number of characters of a value; None for all.
    """
    old, new = (decode_audit(text, reveal=reveal) for text in (before, after))
    was, now = (decode_audit(text, reveal=True) for text in (before, after))  # masks would hide a changed secret
    if all(isinstance(values.get("payload"), dict) for values in (old, new)):
        for values in (old, new, was, now):
            values |= {f"{ARGUMENT}{name}": value for name, value in values.pop("payload").items()}
    changed = [name for name in {**was, **now} if name not in INTERNAL_FIELDS and was.get(name) != now.get(name)]
    names = sorted(changed, key=lambda name: name not in LEADING_FIELDS)  # a list shows only the beginning
    return [ChangedValue(name, *(_cut(_json(values, name, zone), most) for values in (old, new))) for name in names]


def _json(values: dict[str, Any], name: str, zone: tzinfo) -> str:
    if name not in values:
        return NO_VALUE
    value = values[name]
    if name.endswith(MOMENTS) and isinstance(value, str) and not name.startswith(ARGUMENT):
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(value)
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return f"{moment.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
    return json.dumps(value, ensure_ascii=False)


PLAIN_TEXT = re.compile(r'"(?!(?:true|false|null|none|[\d.+-]+)")[^\s"\\{\[](?:[^"\\]*[^\s"\\])?"')
"""A JSON string that is a text, without blanks at its ends and without escapes."""


def unquoted(value: str) -> str:
    """A JSON value without the quotes of a text that cannot be mistaken for another value."""
    return value[1:-1] if PLAIN_TEXT.fullmatch(value) else "none" if value == "null" else value


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: before_number(text, most - 1)]}{CUT}"


def markdown_text(text: str) -> str:
    """Mask the secrets of a text, and escape the marks that Markdown or HTML would follow."""
    marks = clean(mask(text), newlines=False)
    return "".join(f"\\{mark}" if mark in "\\`*_[]|#~!" else "&lt;" if mark == "<" else mark for mark in marks)


def markdown_code(text: str) -> str:
    """Mask the secrets of a text, and put it into a code span that is valid in a table too."""
    return f"`{clean(mask(text)).replace('`', chr(39)).replace('|', chr(0x2758)).strip() or ' '}`"
