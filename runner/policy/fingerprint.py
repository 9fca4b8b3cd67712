"""Fingerprints: an id that is equal for failures that differ only in numbers, ids and quoted values."""

import hashlib
import re

MASKS = (
    (re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""), "'*'"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "*"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "*"),
    (re.compile(r"\d+(?:\.\d+)?"), "#"),
)
LONGEST = 2_000
"""Characters of a message that are compared."""


def masked(message: str) -> str:
    """Return the message in one line, with numbers, ids and quoted values masked."""
    text = " ".join(message[:LONGEST].split())
    for pattern, mark in MASKS:
        text = pattern.sub(mark, text)
    return text


def fingerprint(handler: str, error_type: str, message: str) -> str:
    """Return sixteen hexadecimal digits that identify a failure group.

    Args:
        handler: handler name.
        error_type: class of the exception.
        message: message of the exception; only its first line counts, masked.
    """
    first, *_ = message.strip().splitlines() or [""]
    return hashlib.sha256(f"{handler}\0{error_type}\0{masked(first)}".encode("utf-8", "replace")).hexdigest()[:16]
