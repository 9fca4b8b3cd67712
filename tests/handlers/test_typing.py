"""Submits are typed: a type checker rejects arguments that the handler does not take."""

import re
from pathlib import Path

import pytest
from mypy import api

from tests.node.run import pyright

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


@pytest.mark.slow
def test_pyright_rejects_the_same_calls() -> None:
    report = pyright(CALLS)
    lines = enumerate(CALLS.read_text().splitlines())
    errors = [each for each in report["generalDiagnostics"] if each["severity"] == "error"]
    assert {each["range"]["start"]["line"] for each in errors} == {n for n, text in lines if "# refused: " in text}


def test_the_package_is_marked_as_typed() -> None:
    """Without this file, a type checker treats an installed package as untyped."""
    assert (Path(__file__).parents[2] / "runner" / "py.typed").exists()
