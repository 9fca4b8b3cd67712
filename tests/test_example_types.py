"""The Python examples of the pages: mypy --strict and pyright accept each of them, as a reader's editor would."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import indent

import pytest
from mypy import api

from tests.node.run import pyright
from tests.pages import DOCS, PAGES, PROJECT, README, blocks, save

ELSEWHERE = {
    "coupons.py": next(block.text for block in blocks(README, "python") if block.first == "# coupons.py"),
    "handlers.py": blocks(DOCS / "handlers.md", "python")[0].text,
}
"""Modules of one page that others import."""

PRELUDES = {
    "architecture/fragments.py": (
        "from runner.db.needs import Needs, needs\nfrom runner.db.transaction import Transaction\n"
        "from runner.store.dependencies.resolve import _any_open\n"
    ),
    "dependencies/fragments.py": "from handlers import charge\n",
    "django/fragments.py": "from pathlib import Path\nfrom shop.tasks import send_receipt\nBASE_DIR = Path()\n",
    "sqlalchemy/env.py": (
        "import sqlalchemy as sa\nfrom alembic import context\nfrom shop import Base\n"
        "connection, target_metadata = sa.create_engine('sqlite://').connect(), Base.metadata\n"
    ),
    "submitting/fragments.py": "from handlers import charge\n",
    "transactions/orders/models.py": (
        "from django.db import models\n\n\nclass Order(models.Model):\n    cents = models.IntegerField()\n"
    ),
}
"""What the text of a page takes from elsewhere, by file."""

APART = ("limits",)
"""Pages whose blocks define the same handlers, each in another way."""

LEFT_OUT = {"shop_sqlmodel.py": "sqlmodel"}
"""Files that have types only with an optional package: a class with keywords."""

UNTYPED = ("--allow-untyped-decorators", "--allow-subclassing-any", "--no-warn-return-any", "--implicit-reexport")
"""Options of mypy for packages that carry no types."""

ANY = "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
"""The types of a package that carries none, or that is not installed here."""


CELL = "async def cell() -> None:\n"
"""The beginning of a cell of a notebook, where `await` needs no function."""

NAMED = re.compile(r"# [\w/]+\.py(, continued)?")


def programs(page: Path, root: Path) -> Path:
    """Write the examples of a page into a folder of their own: the files that it names, and its other blocks."""
    folder = root / page.stem
    folder.mkdir()
    for name, text in ELSEWHERE.items():
        (folder / name).write_text(text)
    save(page, folder)
    others = [block.text for block in blocks(page, "python") if not NAMED.fullmatch(block.first)]
    others = [CELL + indent(text, "    ") if "\nasync with" in text else text for text in others]
    for number, text in enumerate(others if page.stem in APART else ["\n\n".join(others)]):
        (folder / f"fragments{number or ''}.py").write_text(text)
    for name, text in PRELUDES.items():
        file = root / name
        if file.is_relative_to(folder):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text + (file.read_text() if file.exists() else ""))
    for file in folder.glob("*/*.py"):
        (file.parent / "__init__.py").touch()
    for name, package in LEFT_OUT.items():
        if find_spec(package) is None:
            (folder / name).unlink(missing_ok=True)
    return folder


def describe_foreign(root: Path) -> None:
    """Write types for the packages without any, so that both type checkers read the same."""
    own = sys.stdlib_module_names | {file.stem for file in root.glob("*/*")}
    texts = [file.read_text() for file in root.glob("*/**/*.py")]
    for module in {name for text in texts for name in re.findall(r"^(?:from|import) ([\w.]+)", text, re.MULTILINE)}:
        top, *rest = module.split(".")
        spec = find_spec(top) if top not in own else None
        if top not in own and not (spec and spec.origin and (Path(spec.origin).parent / "py.typed").exists()):
            for depth in range(len(rest) + 1):
                stub = root.joinpath("typings", top, *rest[:depth], "__init__.pyi")
                stub.parent.mkdir(parents=True, exist_ok=True)
                stub.write_text(ANY)


@pytest.fixture
def examples(tmp_path: Path) -> list[Path]:
    """A folder for each page with Python examples."""
    folders = [programs(page, tmp_path) for page in PAGES if blocks(page, "python")]
    describe_foreign(tmp_path)
    return folders


@pytest.mark.slow
def test_mypy_accepts_the_examples(examples: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPYPATH", str(examples[0].parent / "typings"))
    refused = []
    for folder in examples:
        monkeypatch.chdir(folder)
        cache = str(PROJECT / ".mypy_cache")
        output, complaint, _ = api.run([".", "--strict", *UNTYPED, "--no-error-summary", "--cache-dir", cache])
        refused += [f"{folder.name}/{line}" for line in (output + complaint).splitlines()]
    assert refused == [], "\n".join(refused)


@pytest.mark.slow
def test_pyright_accepts_the_examples(examples: list[Path]) -> None:
    root = examples[0].parent
    pages = [{"root": folder.name} for folder in examples]
    (root / "pyrightconfig.json").write_text(json.dumps({"executionEnvironments": pages}))
    report = pyright("-p", root)
    refused = [
        f"{Path(found['file']).relative_to(root)}:{found['range']['start']['line'] + 1}: {found['message']}"
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    ]
    assert refused == [], "\n".join(refused)
    assert report["summary"]["filesAnalyzed"] > len(examples)
