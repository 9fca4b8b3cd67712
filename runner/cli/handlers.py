"""The handlers that a command knows: of the modules that -H names, found from the current directory as well."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from runner.errors import HandlersNotFound
from runner.handlers import Registry, discover
from runner.settings import Settings

Modules = Annotated[tuple[str, ...], Parameter(name=("--handlers", "-H"))]
"""The option -H, which may be repeated."""


def load_handlers(settings: Settings) -> Registry:
    """Import the modules that the settings name, and those that installed packages offer.

    Args:
        settings: with the names of the modules.

    Returns:
        All handlers by name.

    Raises:
        HandlersNotFound: a module cannot be imported.
        DuplicateHandler: two handlers have one name.
    """
    with _from_here():
        try:
            return discover(settings.handlers)
        except SystemExit as end:
            modules = ", ".join(settings.handlers)
            raise HandlersNotFound(module=modules, why=f"it ends the program when it is imported ({end})") from None


@contextmanager
def _from_here() -> Iterator[None]:
    """Look into the current directory first for what is asked for by name, and last for all that comes later.

    Left in front, any file there (queue.py, email.py) would take the place of a module of Python's own. A file
    runner.py takes nobody's place: this package is imported already.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
