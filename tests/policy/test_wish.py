"""What an operator may ask of a runner, as text."""

import pytest

from runner.errors import InvalidEdit
from runner.policy.wish import Wish, parse_wish


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("drain", Wish(drain=True)),
        ("slots=50", Wish(slots=50)),
        ("threads=4", Wish(threads=4)),
        ("slots=50 threads=4", Wish(slots=50, threads=4)),
    ],
)
def test_a_wish_is_read_and_written_alike(text: str, wish: Wish) -> None:
    assert parse_wish(text) == wish
    assert str(wish) == text


@pytest.mark.parametrize(
    "text", ["", "dance", "slots=0", "slots=-1", "slots=1 slots=2", "drain slots=1", "slots=9999999"]
)
def test_what_runners_do_not_understand_is_refused(text: str) -> None:
    with pytest.raises(InvalidEdit, match="drain"):
        parse_wish(text)
