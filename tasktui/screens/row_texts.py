"""The texts of a row to copy, with the command that shows it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tasktui.actions.as_command import command_line
from tasktui.session.session import Session

if TYPE_CHECKING:
    from tasktui.data.values import Copyable


def texts_of_row(
    session: Session, subject: str | None, words: Sequence[object], texts: Mapping[str, str | None]
) -> "Copyable | None":
    """Return the texts of the row under the cursor; None without a row.

    Args:
        subject: its name; None without a row.
        words: the words after `runner` of the command that shows it.
        texts: the texts by name, apart from the link.
    """
    if subject is None:
        return None
    from tasktui.data.values import of_row  # imports modules that the first screen does not need

    return of_row(subject, texts, command_line(words, session.settings))
