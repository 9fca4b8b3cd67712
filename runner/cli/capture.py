"""Capture: the documents and messages of a command that another program runs in its own process."""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Capture:
    """The output of one command.

    Args:
        read_only: its connections refuse changes.
        documents: its JSON documents.
        messages: its lines on standard error.
    """

    read_only: bool
    documents: list[Any] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


CAPTURE: ContextVar[Capture | None] = ContextVar("capture", default=None)
"""The capture of the command that this context runs; None for a command of its own process."""
