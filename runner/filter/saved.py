"""Views: filters that an operator saved by name, in a file of the operator's own."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from runner.errors import InvalidInput
from runner.filter.fields import suggestion
from runner.model.home import config_folder
from runner.text.sanitize import clean

LONGEST_NAME = 40
MOST = 500

SIGN = "@"
"""The prefix of a view's name."""


def default_path() -> Path:
    """The file of this operator's views."""
    return config_folder() / "views.json"


def load(path: Path) -> dict[str, str]:
    """Read the views: the filters as typed, by name.

    Raises:
        InvalidInput: the file exists but cannot be read as views.
    """
    try:
        views = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(why=f"the views in {path} cannot be read: {error}") from None
    if not isinstance(views, dict) or not all(isinstance(text, str) for text in views.values()):
        raise InvalidInput(why=f"{path} must contain a JSON object with one filter per name")
    return views


def get(views: Mapping[str, str], name: str) -> str:
    """The filter of a view.

    Raises:
        InvalidInput: the view does not exist.
    """
    if name not in views:
        names = ", ".join(sorted(views)) or "none"
        raise InvalidInput(why=f"unknown view {name!r}{suggestion(name, tuple(views))}; saved views: {names}")
    return views[name]


def expand(words: Sequence[str], path: Path) -> str:
    """Replace the views in a filter: `@late queue:mail`.

    Args:
        words: the words of the filter as typed; a word that starts with @ names a view.
        path: the file of views; it is read only if a view is named.

    Returns:
        The filter as text.

    Raises:
        InvalidInput: a view does not exist.
    """
    if not any(word.startswith(SIGN) for word in words):
        return " ".join(words)
    views = load(path)
    return " ".join(get(views, word.removeprefix(SIGN)) if word.startswith(SIGN) else word for word in words)


_VIEW = re.compile(rf'(?<!\S){SIGN}(?:"(?P<quoted>[^"]*)"|(?P<word>\S+))')


def expand_text(text: str, path: Path) -> str:
    """Replace the views in the text of a filter; a name with spaces is quoted: `@"late mail" queue:mail`.

    Raises:
        InvalidInput: a view does not exist.
    """
    return _VIEW.sub(lambda match: get(load(path), match["quoted"] or match["word"]), text)


def reference(name: str) -> str:
    """The view's name as a filter has it."""
    return f'{SIGN}"{name}"' if " " in name else f"{SIGN}{name}"


def save(path: Path, name: str, filter_text: str) -> None:
    """Save a filter as a view; an existing view of the name is replaced.

    Raises:
        InvalidInput: the name cannot be typed, there are too many views, or the file cannot be written.
    """
    if not 1 <= len(name) <= LONGEST_NAME or clean(name) != name:
        shown = clean(name, LONGEST_NAME + 1)
        raise InvalidInput(why=f"a view name has 1 to {LONGEST_NAME} printable characters, unlike {shown!r}")
    views = load(path) | {name: filter_text}
    if len(views) > MOST:
        raise InvalidInput(why=f"{MOST} views are saved, which is the limit; delete one first")
    _write(path, views)


def delete(path: Path, name: str) -> None:
    """Delete a view.

    Raises:
        InvalidInput: the view does not exist, or the file cannot be written.
    """
    views = load(path)
    get(views, name)
    _write(path, {saved_name: filter_text for saved_name, filter_text in views.items() if saved_name != name})


def _write(path: Path, views: Mapping[str, str]) -> None:
    """Replace the file as a whole: another console reads either the old or the new views."""
    draft = path.with_suffix(".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(views, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise InvalidInput(why=f"{path} cannot be written: {error.strerror} (errno {error.errno})") from None
