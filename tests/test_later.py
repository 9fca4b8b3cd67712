"""Names that are loaded when they are asked for."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import runner
from runner import later, migrations
from runner.store import intervene, observe
from tasktui import screens

PACKAGES = (runner, migrations, intervene, observe, screens)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that passes on a name of each of two modules."""
    folder = tmp_path / "shelf" / "books"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    for name in ("novel", "poem"):
        (folder / f"{name}.py").write_text(f"def {name}(): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shelf.books"
    for name in [name for name in sys.modules if name.startswith("shelf")]:
        del sys.modules[name]


def written(tmp_path: Path, text: str) -> None:
    (tmp_path / "shelf" / "books" / "__init__.py").write_text(text)


OURS = """
from typing import TYPE_CHECKING
from runner.later import names_of
if TYPE_CHECKING:
    from shelf.books.novel import novel
    from shelf.books.poem import poem as verse
__all__ = ["novel", "verse"]
__getattr__ = names_of(__name__)
"""

THEIRS = """
from .novel import novel as novel
from .poem import poem as verse
"""


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_can_be_had(package: object) -> None:
    assert all(getattr(package, name) is not None for name in package.__all__)  # type: ignore[attr-defined]


def test_asking_for_a_name_loads_only_its_module(package: str, tmp_path: Path) -> None:
    written(tmp_path, OURS)
    books = import_module(package)
    assert books.verse.__name__ == "poem"
    assert "shelf.books.poem" in sys.modules
    assert "shelf.books.novel" not in sys.modules


def test_a_name_stays_what_it_is_when_a_module_of_that_name_is_loaded(package: str, tmp_path: Path) -> None:
    written(tmp_path, OURS)
    module = import_module(f"{package}.novel")
    books = import_module(package)
    assert books.novel is module.novel


def test_an_unknown_name_is_missed_as_everywhere(package: str, tmp_path: Path) -> None:
    written(tmp_path, OURS)
    with pytest.raises(AttributeError, match=r"module 'shelf\.books' has no attribute 'play'"):
        import_module(package).play  # noqa: B018 - asking is what is tested


def test_a_package_of_others_is_divided(package: str, tmp_path: Path) -> None:
    written(tmp_path, THEIRS)
    later.divide(package)
    assert "shelf" not in sys.modules
    books = import_module(package)
    assert books.verse.__name__ == "poem"
    assert "shelf.books.novel" not in sys.modules
    assert import_module("shelf").books is books


def test_all_names_of_a_divided_package_can_be_imported_at_once(package: str, tmp_path: Path) -> None:
    written(tmp_path, THEIRS)
    later.divide(package)
    found: dict[str, object] = {}
    exec(f"from {package} import *", found)
    assert {"novel", "verse"} <= found.keys()


def test_a_package_that_is_loaded_is_not_divided(package: str, tmp_path: Path) -> None:
    written(tmp_path, THEIRS)
    books = import_module(package)
    later.divide(package)
    assert import_module(package) is books


def test_loading_a_package_loads_all_of_its_names(package: str, tmp_path: Path) -> None:
    written(tmp_path, OURS)
    books = import_module(package)
    later.load(books)
    assert {"novel", "verse"} <= vars(books).keys()
