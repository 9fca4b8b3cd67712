"""Secrets in payloads: found by the names they stand under, and masked wherever a payload is shown."""

import json
import re
from typing import Any

MASK = "***"
"""Stands where a secret was."""

MOST_LEVELS = 50
"""Levels of nesting that are shown; whatever prints the rest need not fear to run out of stack."""

KNOWN_BY = ("version", "fence")
"""What an entry of the audit tells its change by; it says nothing to people."""

_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)|^pass$|^pwd$|secret|token|authori[sz]ation|^auth$|api[-_ ]?key|access[-_ ]?key"
    r"|private[-_ ]?key|credential|cookie|^session(?:[-_ ]?id)?$|^pin$|^cvv$|^cvc$|signature",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Tell whether what stands under this name is likely a secret."""
    return bool(_SECRET.search(name))


def redacted(value: Any, *, reveal: bool = False, levels: int = MOST_LEVELS) -> Any:
    """Mask what stands under the names of secrets, at any depth.

    Args:
        value: decoded JSON.
        reveal: leave the secrets in.
        levels: of nesting that are shown; what lies deeper is masked, secret or not.

    Returns:
        A copy in which each secret is MASK, whatever it was; null, which tells nothing, stays.
    """
    if not isinstance(value, (dict, list)):
        return value
    if levels == 0:
        return MASK
    if isinstance(value, list):
        return [redacted(item, reveal=reveal, levels=levels - 1) for item in value]
    return {
        name: MASK
        if item is not None and not reveal and is_secret(name)
        else redacted(item, reveal=reveal, levels=levels - 1)
        for name, item in value.items()
    }


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


def differences(before: str | None, after: str | None, *, reveal: bool = False) -> list[str]:
    """The values that an entry of the audit changed, before and after: `priority: 1 -> 9`."""
    old, new = (audited(text, reveal=reveal) for text in (before, after))
    names = [name for name in {**old, **new} if name not in KNOWN_BY]
    return [f"{name}: {_json(old, name)} -> {_json(new, name)}" for name in names]


def _json(values: dict[str, Any], name: str) -> str:
    return json.dumps(values[name], ensure_ascii=False) if name in values else "-"
