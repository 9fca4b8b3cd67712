"""Views: filters that an operator saved under a name, in a file of the operator's own."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from runner.errors import InvalidInput
from runner.people.fields import suggestion
from runner.people.terminal import clean

LONGEST_NAME = 40
MOST = 500

SIGN = "@"
"""Stands before the name of a view."""


def default_path() -> Path:
    """Where the views of this person are kept."""
    return platformdirs.user_config_path("tasktui") / "views.json"


def load(path: Path) -> dict[str, str]:
    """Read the views: filters as they were typed, by name.

    Raises:
        InvalidInput: there is such a file, but it cannot be read as views.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(why=f"the views in {path} cannot be read: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise InvalidInput(why=f"{path} must hold a JSON object with a filter for each name")
    return found


def chosen(views: Mapping[str, str], name: str) -> str:
    """The filter of a view.

    Raises:
        InvalidInput: there is none of that name.
    """
    if name not in views:
        known = ", ".join(sorted(views)) or "none"
        raise InvalidInput(why=f"there is no view {name!r}{suggestion(name, tuple(views))}. Saved are: {known}")
    return views[name]


def expanded(words: Sequence[str], path: Path) -> str:
    """Put views into a filter: `@late queue:mail`.

    Args:
        words: of a filter, as they were typed; those that begin with @ name views.
        path: of the file; it is read only when a view is named.

    Returns:
        The filter as text.

    Raises:
        InvalidInput: there is no view of that name.
    """
    if not any(word.startswith(SIGN) for word in words):
        return " ".join(words)
    views = load(path)
    return " ".join(chosen(views, word.removeprefix(SIGN)) if word.startswith(SIGN) else word for word in words)


def save(path: Path, name: str, wanted: str) -> None:
    """Keep a filter under a name; one that is there already is replaced.

    Raises:
        InvalidInput: the name is not one that can be typed, there are too many, or the file cannot be written.
    """
    if not 1 <= len(name) <= LONGEST_NAME or clean(name) != name:
        raise InvalidInput(why=f"the name of a view has 1 to {LONGEST_NAME} ordinary characters")
    views = load(path) | {name: wanted}
    if len(views) > MOST:
        raise InvalidInput(why=f"there are {MOST} views already; forget one first")
    _write(path, views)


def forget(path: Path, name: str) -> None:
    """Forget a view.

    Raises:
        InvalidInput: there is none of that name, or the file cannot be written.
    """
    views = load(path)
    chosen(views, name)
    _write(path, {kept: wanted for kept, wanted in views.items() if kept != name})


def _write(path: Path, views: Mapping[str, str]) -> None:
    """Write the file as a whole: another console that reads it sees the old views or the new ones."""
    draft = path.with_suffix(".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(views, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InvalidInput(why=f"the views cannot be written to {path}: {error.strerror}") from None
