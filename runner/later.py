"""Packages whose names are loaded one by one, when somebody asks for them: whoever needs one name need not load all.

A package imports its names for type checkers only, and lets this module read which name stands where:

    if TYPE_CHECKING:
        from runner.store.observe.audit import Audited, audit

    __all__ = ["Audited", "audit"]
    __getattr__ = names_of(__name__)

It is what SPEC 1 of the scientific Python projects (lazy loading of submodules) does, without a second file.
"""

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package in which a public name is never the submodule of the same name, whoever loads that."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self.__all__):
            super().__setattr__(name, value)


class _Divided(SourceFileLoader):
    """Loads a module without what its source imports."""

    def exec_module(self, module: ModuleType) -> None:
        lines = _source(module)
        vars(module)["__getattr__"] = _named(module, lines)
        vars(module)["__all__"] = [name for name, _ in _places(lines)]  # for who imports all of them


class _Dividing:
    """Is asked for every module that is loaded, until it has found the one that it is here for."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._package:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Divided(spec.loader.name, spec.loader.path)
        return spec


def names_of(package: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package out of what its source imports for type checkers.

    Args:
        package: its name; it is being loaded.

    Returns:
        A function that loads the module of a name, and answers with what has this name there.
    """
    module = sys.modules[package]
    module.__class__ = _Package
    blocks = [block for block in _source(module) if isinstance(block, ast.If) and _is_for_checkers(block.test)]
    return _named(module, [line for block in blocks for line in block.body])


def divide(package: str) -> None:
    """Let a module of others that only passes names on load them one by one too; unless it is loaded already.

    For the start of a program of ours. It is divided when somebody loads it; a name that it does not pass on is looked
    for among its submodules.

    Args:
        package: its name.
    """
    if package not in sys.modules:
        sys.meta_path.insert(0, _Dividing(package))


def load(package: ModuleType) -> None:
    """Load every public name of such a package."""
    for name in package.__all__:
        getattr(package, name)


def _source(module: ModuleType) -> list[ast.stmt]:
    return ast.parse(Path(str(module.__file__)).read_bytes()).body


def _is_for_checkers(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _named(module: ModuleType, lines: Sequence[ast.stmt]) -> Callable[[str], Any]:
    places = dict(_places(lines))

    def named(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        place, original = places[name]
        value = getattr(import_module(place, module.__name__), original)
        setattr(module, name, value)
        return value

    return named


def _places(lines: Sequence[ast.stmt]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every name that is imported: the module, and what it is called there."""
    for line in lines:
        if isinstance(line, ast.ImportFrom):
            module = "." * line.level + (line.module or "")
            yield from ((found.asname or found.name, (module, found.name)) for found in line.names)
