"""Capture: the output of a command that another part of the program runs in its own process."""

from contextvars import ContextVar
from io import StringIO
from typing import Any


class Capture:
    """The output of one command.

    Args:
        read_only: its connections refuse changes.
        holds_text: keep its lines of standard output too.

    Attributes:
        documents: its JSON documents.
        models: the read models of its output, for totals over shards.
        messages: its lines on standard error.
        text: its lines of standard output; None if they go there.
    """

    def __init__(self, *, read_only: bool, holds_text: bool = False) -> None:
        self.read_only = read_only
        self.documents: list[Any] = []
        self.models: list[object] = []
        self.messages: list[str] = []
        self.text = StringIO() if holds_text else None


CAPTURE: ContextVar[Capture | None] = ContextVar("capture", default=None)
"""The capture of the command that this context runs; None for a command of its own process."""
