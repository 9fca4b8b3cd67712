"""The handlers that a command loads: the modules of -H, searched in the current directory too."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from runner.errors import HandlersNotFound
from runner.handlers.registry import Registry, discover
from runner.settings import Settings

Modules = Annotated[tuple[str, ...], Parameter(name=("--handlers", "-H"))]
"""The option -H; may be repeated."""


def load_handlers(settings: Settings) -> Registry:
    """Import the modules named in the settings, and the modules that installed packages register.

    Args:
        settings: the settings, with the module names.

    Returns:
        The handlers by name.

    Raises:
        HandlersNotFound: a module cannot be imported.
        DuplicateHandler: two handlers have the same name.
    """
    with _from_here():
        try:
            return discover(settings.handlers)
        except HandlersNotFound as error:
            if (namesake := _namesake()) is None:
                raise
            why = f"{error.fields['why']}. Your {namesake} and tasktui's package have the same name: rename yours"
            raise HandlersNotFound(module=error.fields["module"], why=why) from error
        except SystemExit as end:
            modules = ", ".join(settings.handlers)
            raise HandlersNotFound(module=modules, why=f"importing it exits the process ({end})") from None


def _namesake() -> Path | None:
    """Return a file or package `runner` in the current directory that is not this one: its modules import this one."""
    for path in (Path("runner.py"), Path("runner", "__init__.py")):
        if path.is_file() and not path.samefile(Path(__file__).parent.parent / "__init__.py"):
            return path
    return None


@contextmanager
def _from_here() -> Iterator[None]:
    """Search the current directory first for the named modules, and last for all later imports.

    If it stayed first, any file there (queue.py, email.py) would replace a standard module. A file runner.py harms only
    modules that mean to import it: this package is already imported.
    """
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)
