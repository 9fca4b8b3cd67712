"""Secrets: found by the names they stand under and by what they look like, and masked wherever anything is shown."""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import Any

from runner.people.terminal import CUT

MASK = "***"
"""Stands where a secret was."""

SHORTEST = 6
"""Characters of a secret that is looked for in other texts: a shorter one may stand there by chance."""

MOST_LEVELS = 50
"""Levels of nesting that are shown; whatever prints the rest need not fear to run out of stack."""

KNOWN_BY = ("version", "fence")
"""What an entry of the audit tells its change by; it says nothing to people."""

_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)|^pass$|^pwd$|secret|token|authori[sz]ation|^auth$|api[-_ ]?key|access[-_ ]?key"
    r"|private[-_ ]?key|credential|cookie|^session(?:[-_ ]?id)?$|^pin$|^cvv$|^cvc$|signature",
    re.IGNORECASE,
)

# What follows one of these names in a text that is no JSON: password=x, "token": "x", api_key: x.
_NAMED = r"""
    (?P<named>(?:pass(?:word|wd|phrase|code)|pwd|secret|token|authori[sz]ation|api[-_]?key|access[-_]?key
      |private[-_]?key|credential|cookie|signature)[\w-]{0,30}[\\"']{0,3}\s{0,3}(?:=>|[:=])\s{0,3}\\?)
    (?:(?:bearer|basic)\s{1,3})?
    (?:"(?=[^\w"\n]{0,9}\w)[^"\n]{1,400}"|'(?=[^\w'\n]{0,9}\w)[^'\n]{1,400}'|[^\s"'&,;(){}\[\]\\]{1,400})
"""
_TEXT = re.compile(
    rf"""
    -----BEGIN\ [A-Z\ ]{{0,40}}PRIVATE\ KEY-----(?:.*?-----END\ [A-Z\ ]{{0,40}}PRIVATE\ KEY-----|.*)
    | (?P<url>://[^\s/@:"']{{0,100}}:)[^\s/@"']{{1,400}}(?=@)
    | (?P<scheme>\b(?:bearer|basic)\s{{1,3}})(?=[a-z._~+/-]{{0,400}}[\d=])[\w.~+/=-]{{8,}}
    | \beyJ[\w-]{{8,}}\.[\w-]{{8,}}(?:\.[\w-]*)?
    | \b(?:(?:AKIA|ASIA)[A-Z0-9]{{16}}|[rs]k_(?:live|test)_\w{{8,}}|gh[opsur]_\w{{20,}}|xox[abeprs]-[\w-]{{10,}}
      |glpat-[\w-]{{16,}}|AIza[\w-]{{30,}}|sk-[\w-]{{20,}})
    | {_NAMED}
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_HINTS = (
    *("pass", "pwd", "secret", "token", "authori", "key", "credential", "cookie", "signature", "://", "bearer"),
    *("basic", "eyj", "akia", "asia", "aiza", "k_", "gh", "xox", "glpat", "sk-"),
)
"""Without one of these there is nothing to look for: most texts have none, and are looked at for every line drawn."""


def masked(text: str, *, reveal: bool = False) -> str:
    """Mask what looks like a secret in a text: an error, a traceback, a line of a log.

    Args:
        text: anything.
        reveal: leave the secrets in.

    Returns:
        The text with MASK in place of passwords in URLs, of what stands behind names such as `password=`, of bearer
        tokens, and of keys of the forms that are well known.
    """
    lower = text.lower()
    if reveal or not any(hint in lower for hint in _HINTS):
        return text
    return _TEXT.sub(_hidden, text)


def _hidden(found: re.Match[str]) -> str:
    return f"{found['url'] or found['scheme'] or found['named'] or ''}{MASK}"


def is_secret(name: str) -> bool:
    """Tell whether what stands under this name is likely a secret."""
    return bool(_SECRET.search(name))


def redacted(value: Any, *, reveal: bool = False, levels: int = MOST_LEVELS) -> Any:
    """Mask what stands under the names of secrets, or looks like one, at any depth.

    Args:
        value: decoded JSON.
        reveal: leave the secrets in.
        levels: of nesting that are shown; what lies deeper is masked, secret or not.

    Returns:
        A copy in which each secret is MASK, whatever it was; null, which tells nothing, stays.
    """
    if isinstance(value, str):
        return masked(value, reveal=reveal)
    if not isinstance(value, (dict, list)):
        return value
    if levels == 0:
        return MASK
    if isinstance(value, list):
        return [redacted(item, reveal=reveal, levels=levels - 1) for item in value]
    return {
        name: MASK
        if item is not None and not reveal and is_secret(str(name))
        else redacted(item, reveal=reveal, levels=levels - 1)
        for name, item in value.items()
    }


def secrets(payload: str) -> list[str]:
    """The texts that stand under the names of secrets, the longest first; those that are long enough to be told apart.

    Args:
        payload: JSON text.
    """
    try:
        found = set(_hidden_texts(json.loads(payload), secret=False))
    except (ValueError, RecursionError):
        return []
    return sorted(found, key=len, reverse=True)


def _hidden_texts(value: Any, *, secret: bool) -> Iterator[str]:
    if isinstance(value, str) and secret and len(value) >= SHORTEST:
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _hidden_texts(item, secret=secret or is_secret(name))
    elif isinstance(value, list):
        for item in value:
            yield from _hidden_texts(item, secret=secret)


def decoded(text: str | None, *, reveal: bool = False) -> Any:
    """Decode a JSON text for people.

    Args:
        text: as it stands in the row, whoever wrote it; None for nothing.
        reveal: leave the secrets in.

    Returns:
        The value with its secrets masked; what cannot be read as JSON is masked as a whole.
    """
    if text is None:
        return None
    try:
        return redacted(json.loads(text), reveal=reveal)
    except (ValueError, RecursionError):
        return text if reveal else MASK


TELLING = ("state", "paused_until", "cancel_requested")
"""What tells most of a change stands first."""

MOMENTS = ("run_at", "paused_at", "paused_until")


def audited(text: str | None, *, reveal: bool = False) -> dict[str, Any]:
    """Decode the values that an entry of the audit holds.

    Args:
        text: as it stands in the row; None for nothing.
        reveal: leave the secrets in.

    Returns:
        The values by name, their secrets masked; a payload, which stands there as text, is decoded too.
    """
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    if isinstance(values.get("payload"), str):
        values["payload"] = decoded(values["payload"], reveal=reveal)
    found: dict[str, Any] = redacted(values, reveal=reveal)
    return found


def differences(
    before: str | None, after: str | None, *, reveal: bool = False, most: int | None = None, zone: tzinfo = UTC
) -> list[str]:
    """The values that an entry of the audit changed, before and after: `priority: 1 -> 9`.

    Args:
        before: the values before, JSON text.
        after: the values after, JSON text.
        reveal: leave the secrets in.
        most: characters of a value that are shown; None for all.
        zone: in which times are told.
    """
    old, new = (audited(text, reveal=reveal) for text in (before, after))
    told = [name for name in {**old, **new} if name not in KNOWN_BY and (old.get(name), new.get(name)) != (None, None)]
    names = sorted(told, key=lambda name: name not in TELLING)  # a list has room for the beginning only
    return [f"{name}: {_cut(_json(old, name, zone), most)} -> {_cut(_json(new, name, zone), most)}" for name in names]


def _json(values: dict[str, Any], name: str, zone: tzinfo) -> str:
    if name not in values:
        return "-"
    value = values[name]
    if name in MOMENTS and isinstance(value, str):
        with suppress(ValueError, OverflowError):
            return f"{datetime.fromisoformat(value).astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1]}{CUT}"
