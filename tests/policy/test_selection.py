"""Selections as decisions: buckets, slices, shares, and the handlers of a runner."""

import re

import pytest

from runner.errors import InvalidSettings
from runner.model.task import BUCKETS
from runner.policy.selection import (
    ALL,
    StaticSlice,
    format_buckets,
    mask,
    member_name,
    parse_buckets,
    parse_slice,
    select_handlers,
    share,
)

MEMBERS = [f"host-{number}#0" for number in range(8)]


@pytest.mark.parametrize("text", ["0-511", "7", "0,2,4-9,999"])
def test_buckets_are_formatted_as_they_are_parsed(text: str) -> None:
    assert format_buckets(parse_buckets(text)) == text


@pytest.mark.parametrize("text", ["", "1000", "-1", "9-3", "a", "1,,2", "0-1000", "²"])
def test_other_buckets_are_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape("use numbers and ranges from 0 to 999")):
        parse_buckets(text)


def test_the_mask_has_one_character_per_bucket() -> None:
    assert mask(frozenset({0, 3})) == "1001" + "0" * (BUCKETS - 4)


def test_static_slices_have_every_bucket_once() -> None:
    slices = [StaticSlice(number, 7).buckets for number in range(7)]
    assert frozenset().union(*slices) == ALL
    assert sum(map(len, slices)) == BUCKETS


@pytest.mark.parametrize("text", ["0/4", "3/4", "single", "live"])
def test_a_slice_is_formatted_as_it_is_parsed(text: str) -> None:
    assert str(parse_slice(text) or "live") == text


@pytest.mark.parametrize("text", ["4/4", "1", "-1/4", "0/1001", "lively", "1/"])
def test_another_slice_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(
        InvalidSettings, match=r"use a number and the slices such as 0/4 .* live, single, or a class of your own"
    ):
        parse_slice(text)


def test_members_have_every_bucket_once_and_about_as_many() -> None:
    shares = {member: share(member, MEMBERS) for member in MEMBERS}
    assert frozenset().union(*shares.values()) == ALL
    assert sum(map(len, shares.values())) == BUCKETS
    assert all(80 <= len(part) <= 170 for part in shares.values()), {name: len(part) for name, part in shares.items()}


def test_a_member_that_leaves_moves_only_its_own_buckets() -> None:
    before = {member: share(member, MEMBERS) for member in MEMBERS}
    rest = MEMBERS[1:]
    after = {member: share(member, rest) for member in rest}
    assert all(before[member] <= after[member] for member in rest)
    assert frozenset().union(*(after[member] - before[member] for member in rest)) == before[MEMBERS[0]]


def test_a_runner_gets_the_first_free_name_on_its_host() -> None:
    assert member_name("web", []) == "web#0"
    assert member_name("web", ["web#0", "db#0", "web#2"]) == "web#1"


@pytest.mark.parametrize(
    ("only", "without", "names"),
    [
        ((), (), ["mail.bulk", "mail.send", "report"]),
        (("mail.*",), (), ["mail.bulk", "mail.send"]),
        (("mail.*",), ("*.bulk",), ["mail.send"]),
        ((), ("report",), ["mail.bulk", "mail.send"]),
    ],
)
def test_a_runner_takes_the_handlers_that_its_patterns_select(
    only: tuple[str, ...], without: tuple[str, ...], names: list[str]
) -> None:
    handlers = dict.fromkeys(("mail.bulk", "mail.send", "report"), object())
    assert list(select_handlers(handlers, only, without)) == names


@pytest.mark.parametrize(
    ("only", "without", "why"),
    [
        (("mial.*",), (), "(only): 'mial.*': no handler matches it; the handlers are mail.send"),
        ((), ("sms",), "(without): 'sms': no handler matches it"),
        (("mail.*",), ("mail.send",), "it leaves no handler"),
    ],
)
def test_a_pattern_without_a_handler_is_refused(only: tuple[str, ...], without: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(why)):
        select_handlers({"mail.send": object()}, only, without)
