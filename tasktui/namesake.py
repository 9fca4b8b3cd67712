"""Namesake: a file of an application that hides the package `runner`, because Python imports only one of that name."""

from importlib.util import find_spec
from pathlib import Path

ADVICE = "hides the package runner of tasktui. Rename it, or remove its directory from PYTHONPATH"


def namesake() -> Path | None:
    """Return the file that Python would import instead of the package; None if nothing hides it."""
    spec = find_spec("runner")
    origin = Path(spec.origin if spec is not None and spec.origin else "runner")
    return None if origin.parent == Path(__file__).parent.with_name("runner") else origin
