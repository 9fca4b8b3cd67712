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


def redacted_json(text: str) -> str:
    """Mask the secrets in a JSON text; what cannot be read as JSON, or is nested too deeply, is masked as a whole."""
    try:
        return json.dumps(redacted(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return MASK
