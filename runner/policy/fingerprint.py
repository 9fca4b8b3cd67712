"""fingerprint: failures that differ only in numbers, ids and quoted values have the same one."""

import hashlib
import re

MASKS = (
    (re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""), "'*'"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "*"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "*"),
    (re.compile(r"\d+(?:\.\d+)?"), "#"),
)
LONGEST = 2_000
"""Characters of a message that take part."""


def masked(message: str) -> str:
    """The message with numbers, ids and quoted values masked, on one line."""
    text = " ".join(message[:LONGEST].split())
    for pattern, mark in MASKS:
        text = pattern.sub(mark, text)
    return text


def fingerprint(handler: str, error_type: str, message: str) -> str:
    """Sixteen hexadecimal digits that are equal for failures of one kind.

    Args:
        handler: the handler's name.
        error_type: the exception's class.
        message: what it said; only its first line, masked, takes part.
    """
    first, *_ = message.strip().splitlines() or [""]
    return hashlib.sha256(f"{handler}\0{error_type}\0{masked(first)}".encode("utf-8", "replace")).hexdigest()[:16]
