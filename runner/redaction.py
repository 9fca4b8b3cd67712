"""Secrets in payloads: found by the names they stand under, and masked wherever a payload is shown."""

import json
import re
from typing import Any

MASK = "***"
"""Stands where a secret was."""

_SECRET = re.compile(
    r"pass(?:word|wd|phrase|code)|^pass$|^pwd$|secret|token|authori[sz]ation|^auth$|api[-_ ]?key|access[-_ ]?key"
    r"|private[-_ ]?key|credential|cookie|^session(?:[-_ ]?id)?$|^pin$|^cvv$|^cvc$|signature",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Tell whether what stands under this name is likely a secret."""
    return bool(_SECRET.search(name))


def redacted(value: Any) -> Any:
    """Mask what stands under the names of secrets, at any depth.

    Args:
        value: decoded JSON.

    Returns:
        A copy in which each secret is MASK, whatever it was; null, which tells nothing, stays.
    """
    match value:
        case dict():
            return {
                name: MASK if item is not None and is_secret(str(name)) else redacted(item)
                for name, item in value.items()
            }
        case list():
            return [redacted(item) for item in value]
    return value


def decoded(text: str | None, *, reveal: bool = False) -> Any:
    """Decode a JSON text for people.

    Args:
        text: as it stands in the row, whoever wrote it; None for nothing.
        reveal: leave the secrets in.

    Returns:
        The value with its secrets masked; what cannot be read as JSON, or is nested too deeply, is masked as a whole.
    """
    if text is None:
        return None
    try:
        value = json.loads(text)
        return value if reveal else redacted(value)
    except (ValueError, RecursionError):
        return text if reveal else MASK
