"""Arguments that are not text: a shell passes bytes that are not UTF-8, an assistant half of a surrogate pair."""

import pytest

from runner.cli.exit_codes import Exit
from tests.cli.conftest import Call, Store


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "words",
    [
        ("workflows", "a\udcff"),
        ("schedules", "show", "a\udcff"),
        ("audit", "--operator", "a\udcff"),
        ("audit", "--of=a\udcff"),
        ("audit", "--group", "a\udcff"),
    ],
    ids=" ".join,
)
def test_an_argument_that_is_not_text_is_bad_input(cli: Call, store: Store, words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert result.code == Exit.BAD_INPUT
    assert result.err.startswith("runner: Invalid input: ")
    assert "a\\udcff" in result.err
    assert "half of a surrogate pair" in result.err
