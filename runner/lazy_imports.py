"""Lazy imports: a package whose public names load their modules on first use (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package, and set its `__dir__`, so that `dir` lists its public names.

    Returns:
        A function that imports the module of a name and returns the object with that name.
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    own = vars(sys.modules[package])
    own["__dir__"] = lambda: sorted({*modules, *(name for name in own if name.startswith("__"))})
    return load
