"""Capture: the documents and messages of a command that another program runs in its own process."""

from contextvars import ContextVar
from typing import Any


class Capture:
    """The output of one command.

    Args:
        read_only: its connections refuse changes.

    Attributes:
        documents: its JSON documents.
        messages: its lines on standard error.
    """

    def __init__(self, *, read_only: bool) -> None:
        self.read_only = read_only
        self.documents: list[Any] = []
        self.messages: list[str] = []


CAPTURE: ContextVar[Capture | None] = ContextVar("capture", default=None)
"""The capture of the command that this context runs; None for a command of its own process."""
