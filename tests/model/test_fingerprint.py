import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.outcome import LONGEST_COMPARED, fingerprint, masked

anything = st.text(st.characters(exclude_categories=()))

ALIKE = [
    ("user 17 has 3 coupons", "user 4711 has 12 coupons"),
    ("took 1.25 s", "took 300 s"),
    ("no file 'a.txt'", 'no file "b/c.txt"'),
    ("no file 'it\\'s'", "no file ''"),
    ("order 6f9619ff-8b86-d011-b42d-00c04fc964ff is gone", "order 00000000-0000-0000-0000-000000000000 is gone"),
    ("<Task at 0x7fe738b22910>", "<Task at 0x1>"),
    ("commit deadbeef01 not found", "commit 0123456789abcdef not found"),
    ("a   b\tc", "a b c"),
    ("first line\nsecond 1", "first line\nanother"),
    ("\n\n  first line", "first line"),
]

DIFFERENT = [
    ("connection refused", "connection reset"),
    ("no file 'a'", "no folder 'a'"),
    ("facade", "decade"),
    ("defaced", "effaced"),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_failures_with_the_same_cause_have_one_fingerprint(one: str, other: str) -> None:
    assert fingerprint("h", "E", one) == fingerprint("h", "E", other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_failures_with_different_causes_have_different_fingerprints(one: str, other: str) -> None:
    assert fingerprint("h", "E", one) != fingerprint("h", "E", other)


def test_handler_and_exception_class_are_part_of_the_fingerprint() -> None:
    prints = {fingerprint(handler, kind, "m") for handler in ("a", "b") for kind in ("E", "F")}
    assert len(prints | {fingerprint("aE", "", "m")}) == 5


def test_a_fingerprint_never_changes() -> None:
    assert fingerprint("coupons.send", "ValueError", "no such coupon: 17") == "40482910b5d7184f"


def test_only_the_start_of_a_long_message_counts() -> None:
    assert masked("x" * LONGEST_COMPARED + "a") == masked("x" * LONGEST_COMPARED + "b")


@pytest.mark.parametrize("sign", ["'", '"', "\\", "'\\", "0x", "-", "a1", "1."])
def test_masking_a_hostile_message_is_fast(sign: str) -> None:
    assert len(masked(sign * 10**6)) <= 3 * LONGEST_COMPARED


@given(anything, anything, anything)
def test_every_fingerprint_has_sixteen_hexadecimal_digits(handler: str, kind: str, message: str) -> None:
    assert len(f"{int(fingerprint(handler, kind, message), 16):016x}") == 16
