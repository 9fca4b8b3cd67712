"""Submitting is a typed call: a type checker refuses what the handler would not take."""

import re
from pathlib import Path

from mypy import api

CALLS = Path(__file__).parent / "typing" / "calls.py"
SAID = re.compile(r"calls\.py:(\d+): error: (.*)")


def test_a_type_checker_refuses_wrong_calls_and_no_others() -> None:
    told, complaint, _ = api.run([str(CALLS), "--strict", "--no-error-summary", "--hide-error-codes"])
    assert complaint == ""
    said = {int(line): text for line, text in SAID.findall(told)}
    lines = enumerate(CALLS.read_text().splitlines(), 1)
    wanted = {number: text.partition("# refused: ")[2] for number, text in lines if "# refused: " in text}
    assert said.keys() == wanted.keys(), told
    assert [said[line] for line, text in wanted.items() if text not in said[line]] == []
    assert len(wanted) >= 10


def test_applications_see_our_types() -> None:
    """Without this file a type checker takes an installed package for untyped."""
    assert (Path(__file__).parent.parent / "runner" / "py.typed").exists()
