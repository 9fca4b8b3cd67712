from collections.abc import Callable
from pathlib import Path

import pytest

from runner import Dead, Retry
from runner.model.outcome import Outcome
from sample_handlers import count_words
from tests.sample_handlers.conftest import LIBRARY


def outcome_after(error: Exception) -> Outcome:
    assert count_words.on_error is not None
    decision = count_words.on_error.decide(error, lambda: pytest.fail("exception classes need no Context"))
    assert decision is not None
    return decision.outcome


def test_lines_words_and_the_longest_line_are_counted(file: Callable[[bytes], Path]) -> None:
    assert count_words(file("eins zwei\ndrei fünf\n\n".encode())) == {"lines": 3, "words": 4, "longest": 9}


def test_an_empty_file_has_nothing_to_count(file: Callable[[bytes], Path]) -> None:
    assert count_words(file(b"")) == {"lines": 0, "words": 0, "longest": 0}


def test_the_library_can_be_counted() -> None:
    assert count_words(LIBRARY / "json" / "decoder.py")["lines"] > 100


def test_undecodable_bytes_are_given_up_at_once(file: Callable[[bytes], Path]) -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        count_words(file(b"caf\xe9\n"))
    assert isinstance(outcome_after(raised.value), Dead)


def test_a_missing_file_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        count_words(tmp_path / "gone.py")
    assert isinstance(outcome_after(raised.value), Retry)
