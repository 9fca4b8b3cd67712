"""The texts of a row that an operator copies: sanitized, with masked secrets."""

import json
from collections.abc import Mapping
from typing import NamedTuple

from runner.queries.failures import Failures
from runner.queries.task.detail import TaskDetail
from runner.text.redact import decode, mask
from tasktui.render.render import block, line

LONGEST = 100_000
"""Characters of a text; terminals refuse a longer one."""


class CopyItem(NamedTuple):
    """A text to copy.

    Args:
        name: its name, whose first letter is its key.
        text: the text; empty if there is none.
    """

    name: str
    text: str

    @property
    def key(self) -> str:
        """The key that copies it."""
        return self.name[0]


class Copyable(NamedTuple):
    """A thing on the screen with its texts.

    Args:
        subject: its name, sanitized.
    """

    subject: str
    items: tuple[CopyItem, ...]


def of_task(detail: TaskDetail, link: str | None) -> Copyable:
    """The texts of a task.

    Args:
        link: the command line that opens it; None if it cannot be pasted.
    """
    task = detail.task
    trace = next((one.traceback for one in reversed(detail.attempts) if one.traceback), None)
    payload = decode(detail.payload)
    error = "\n".join(filter(None, (mask(detail.error or ""), mask(trace or ""))))
    items = (
        CopyItem("id", str(task.id)),
        CopyItem("key", line(task.key, LONGEST) if task.key else ""),
        CopyItem(
            "payload", line(payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False), LONGEST)
        ),
        CopyItem("error", block(error)[:LONGEST]),
        CopyItem("link", link or ""),
    )
    return Copyable(f"task {task.id}", items)


def of_group(group: Failures, link: str | None) -> Copyable:
    """The texts of a failure group.

    Args:
        link: the command line that lists its tasks; None if it cannot be pasted.
    """
    error = "\n".join(filter(None, (mask(f"{group.error_type}: {group.message}"), mask(group.traceback or ""))))
    items = (
        CopyItem("id", line(group.fingerprint)),
        CopyItem("error", block(error)[:LONGEST]),
        CopyItem("link", link or ""),
    )
    return Copyable(f"failure group {line(group.fingerprint)}", items)


def of_row(subject: str, texts: Mapping[str, str | None], link: str | None) -> Copyable:
    """The texts of any other row.

    Args:
        texts: the texts by name; the first letters differ from each other and from `l`.
        link: the command line that shows it; None if it cannot be pasted.
    """
    items = [CopyItem(name, block(mask(text))[:LONGEST] if text else "") for name, text in texts.items()]
    return Copyable(line(subject), (*items, CopyItem("link", link or "")))
