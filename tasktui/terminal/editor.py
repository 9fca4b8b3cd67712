"""The operator's own editor: a text goes into a temporary file, which only the operator can read."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from textual.app import App, SuspendNotSupported

from runner.errors import InvalidInput

DEFAULT = "vi"
"""The editor if the environment names none."""


def editor_command(environment: Mapping[str, str]) -> list[str]:
    """The words of the editor's command line, from VISUAL or EDITOR.

    Raises:
        InvalidInput: the variable is not a command line.
    """
    text = environment.get("VISUAL") or environment.get("EDITOR") or DEFAULT
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidInput(why=f"EDITOR is not a command line: {error}") from error


def edit_text(app: App[object], text: str, suffix: str) -> str:
    """Edit a text while the console is suspended.

    Args:
        app: the console; its terminal belongs to the editor until the editor ends.
        text: the text.
        suffix: the end of the file's name, by which editors choose colours.

    Returns:
        The edited text; the file is deleted.

    Raises:
        InvalidInput: the editor cannot start, or reports a failure; nothing was edited.
    """
    command = editor_command(os.environ)
    with tempfile.TemporaryDirectory(prefix="tasktui-") as folder:  # mode 0700
        path = Path(folder) / f"payload{suffix}"
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend():
                code = subprocess.run([*command, str(path)], check=False).returncode  # noqa: S603 - the operator's own
        except SuspendNotSupported as error:
            raise InvalidInput(why="this terminal cannot be given to an editor") from error
        except OSError as error:
            raise InvalidInput(why=f"cannot start {command[0]!r}: {error.strerror}; set EDITOR") from error
        if code:
            raise InvalidInput(why=f"{command[0]} ended with code {code}; the text is as before")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(why=f"the edited file is unreadable: {error}") from error
