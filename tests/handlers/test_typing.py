"""Submits are typed: a type checker rejects arguments that the handler does not take."""

import re
from pathlib import Path

import pytest
from mypy import api

from tests.pages import PAGES, PROJECT, blocks, save

CALLS = Path(__file__).parent / "typing" / "calls.py"
SAID = re.compile(r"calls\.py:(\d+): error: (.*)")


@pytest.mark.slow
def test_a_type_checker_rejects_only_wrong_calls() -> None:
    output, complaint, _ = api.run([str(CALLS), "--strict", "--no-error-summary", "--hide-error-codes"])
    assert complaint == ""
    errors = {int(line): text for line, text in SAID.findall(output)}
    lines = enumerate(CALLS.read_text().splitlines(), 1)
    expected = {number: text.partition("# refused: ")[2] for number, text in lines if "# refused: " in text}
    assert errors.keys() == expected.keys(), output
    assert [errors[line] for line, text in expected.items() if text not in errors[line]] == []
    assert len(expected) >= 10


def test_the_package_is_marked_as_typed() -> None:
    """Without this file, a type checker treats an installed package as untyped."""
    assert (Path(__file__).parents[2] / "runner" / "py.typed").exists()


FOREIGN = ("--ignore-missing-imports", "--allow-untyped-decorators", "--allow-subclassing-any", "--no-warn-return-any")
"""Options for packages that carry no types, or that are not installed here."""

PROGRAMS = [page for page in PAGES if any(block.first.endswith(".py") for block in blocks(page, "python"))]
"""The pages with files for the reader to save."""

LEFT_OUT = {"env.py": "a part of Alembic's own file", "shop_sqlmodel.py": "SQLModel is not installed here"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PROGRAMS, ids=lambda page: page.name)
def test_a_type_checker_accepts_the_programs_of_a_page(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in save(page, tmp_path) if name not in LEFT_OUT]
    for name in {*names}:
        versions = [block.text for block in blocks(page, "python") if block.first == f"# {name}"]
        if all("from runner import handler" in version for version in versions):  # in tabs
            (tmp_path / name).write_text(versions[-1])
    for folder in {(tmp_path / name).parent for name in names} - {tmp_path}:
        (folder / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    cache = str(PROJECT / ".mypy_cache")
    output, complaint, _ = api.run([*names, "--strict", *FOREIGN, "--no-error-summary", "--cache-dir", cache])
    assert (output, complaint) == ("", "")
