"""Discovery: importing the modules whose handlers register themselves."""

import importlib
import pkgutil
import traceback
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from runner.errors import DuplicateHandler, HandlersNotFound, RunnerError
from runner.handlers.registry import REGISTRY, Registry
from runner.own_code import fault_text

ENTRY_POINTS = "runner.handlers"
"""The group of entry points in which installed packages list their modules."""


def discover(modules: Iterable[str] = (), *, installed: bool = True) -> Registry:
    """Import modules, which registers their handlers.

    The submodules of a package that registers no handler itself are imported too, except those whose name begins with
    an underscore or `test`.

    Args:
        installed: also import the modules that installed packages list in the entry-point group `runner.handlers`.

    Raises:
        HandlersNotFound: a module cannot be imported, or an argument of `@handler` in it is not valid.
        DuplicateHandler: two handlers have the same name.
        InvalidHandler: an argument of a handler cannot be read from JSON.
    """
    entries = [entry.value.partition(":")[0] for entry in entry_points(group=ENTRY_POINTS)] if installed else []
    for module in (*modules, *entries):
        package = _import(module)
        if hasattr(package, "__path__") and not _has_handlers(module):
            for name in _submodules(package.__path__, f"{module}."):
                _import(name)
    for handler in REGISTRY.values():
        handler.require()  # fail here, not in the attempts of its tasks
        handler.require_parents(REGISTRY)
    return REGISTRY


def _import(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except DuplicateHandler:  # it names both places
        raise
    except RunnerError as error:
        raise HandlersNotFound(module=module, why=f"{str(error).removesuffix('.')}{_place(error)}") from None
    except BaseException as error:  # a module that exits would end the program as if all had been well
        if isinstance(error, KeyboardInterrupt):
            raise
        why = f"{fault_text(error)}{_place(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name == module and module.endswith(".py"):
            why += f"; name the module without .py: {module.removesuffix('.py')}"
        raise HandlersNotFound(module=module, why=why) from error


def _place(error: BaseException) -> str:
    """The last file and line of the application that led to an error of its import; a SyntaxError names them itself."""
    if isinstance(error, SyntaxError):
        return ""
    import sysconfig  # a command without such an error does not need it

    others = ("<", str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [place for place in places if not place[0].startswith(others) and "site-packages" not in place[0]]
    return f" ({ours[-1][0]}:{ours[-1][1]})" if ours else ""


def _has_handlers(package: str) -> bool:
    modules = (handler.function.__module__ for handler in REGISTRY.values())
    return any(module == package or module.startswith(f"{package}.") for module in modules)


def _submodules(path: Iterable[str], prefix: str) -> Iterator[str]:
    """Names of the modules in a package, without importing its packages first, sorted."""
    for item in sorted(pkgutil.iter_modules(path, prefix), key=lambda item: item.name):
        name = item.name.removeprefix(prefix)
        if name.startswith(("_", "test")):
            continue
        yield item.name
        if item.ispkg:
            yield from _submodules([str(Path(folder, name)) for folder in path], f"{item.name}.")
