"""Secrets are masked wherever a payload or a text is shown: by the names they stand under, and by their looks."""

import json
from datetime import timedelta, timezone

import pytest

from runner.people.redaction import MASK, MOST_LEVELS, decoded, differences, is_secret, masked, redacted, secrets

SECRET = (
    "password db_password Passwd passphrase secret client_secret token accessToken api_key apiKey API-KEY "
    "Authorization authorisation credentials private_key cookie session_id pin"
)
ORDINARY = "user_id author compass spinning key path passenger session_length"


@pytest.mark.parametrize("name", SECRET.split())
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ORDINARY.split())
def test_other_names_are_not_taken_for_secrets(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_masked_at_any_depth_whatever_they_are() -> None:
    payload = {"user": 7, "login": [{"password": "x", "hints": {"token": {"a": 1}}}], "secret": None}
    assert redacted(payload) == {
        "user": 7,
        "login": [{"password": MASK, "hints": {"token": MASK}}],
        "secret": None,
    }
    assert payload["user"] == 7


def test_the_secrets_of_a_payload_are_known_the_longest_first() -> None:
    payload = {"user": "somebody", "password": "hunter2", "auth": {"key": "abcdefgh", "n": [1, "of-many"]}, "pin": "12"}
    found = secrets(json.dumps(payload))
    assert (found[0], sorted(found)) == ("abcdefgh", ["abcdefgh", "hunter2", "of-many"])
    assert secrets("{") == secrets("[" * 100_000) == []


def test_revealed_is_what_was_stored() -> None:
    assert decoded('{"token": "x"}', reveal=True) == {"token": "x"}
    assert decoded('{"token": "x"}') == {"token": MASK}
    assert decoded(None) is None


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "token=abc"])
def test_what_is_no_json_may_be_anything_and_is_masked(text: str) -> None:
    assert decoded(text) == MASK
    assert decoded(text, reveal=True) == text


def test_what_lies_too_deep_is_not_shown() -> None:
    deep = "[" * 900 + "]" * 900
    shown = json.dumps(decoded(deep, reveal=True), indent=2)
    assert shown.count("[") == MOST_LEVELS
    assert MASK in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no way to postgresql://ana:hunter2@db/app", "no way to postgresql://ana:***@db/app"),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
        ("https://h/p?token=hunter2&page=1", "https://h/p?token=***&page=1"),
        ('Failing row: {"user": 1, "api_key": "hunter 2", "n": 2}', 'Failing row: {"user": 1, "api_key": ***, "n": 2}'),
        ("connect(password='hunter2', port=1)", "connect(password=***, port=1)"),
        ("Authorization: Bearer hunter2", "Authorization: ***"),
        ("sent Bearer abcdefghij1 to h", "sent Bearer *** to h"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.hunter2 is over", "*** is over"),
        ("the key AKIAIOSFODNN7EXAMPLE is unknown", "the key *** is unknown"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nend", "***\nend"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2, cut off", "***"),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_any_text(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown
    assert masked(text, reveal=True) == text
    assert redacted({"said": [text]}) == {"said": [shown]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "KeyError: 'password'",
        "passwords do not match; basic functionality of bearer certificates",
        "unexpected token: '}' in line 7",
        "SyntaxError: Missing parentheses in call to 'print'",
        "https://example.org:8080/path?page=1",
        "the tokenizer failed: bad input",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert masked(text) == text


def test_a_payload_without_secrets_comes_out_as_it_went_in() -> None:
    payload = {"a": [1, 2.5, True, None, {"b": "ü"}]}
    assert decoded(json.dumps(payload)) == payload


def test_a_change_is_told_by_what_says_most_and_in_whole_seconds() -> None:
    before = '{"run_at": "2026-11-20T13:00:00.5+00:00", "state": "dead", "fence": 3}'
    after = '{"run_at": "2026-11-20T14:10:00+01:00", "state": "waiting", "fence": 3}'
    run_at = "run_at: 2026-11-20 13:00:00 UTC -> 2026-11-20 13:10:00 UTC"
    assert differences(before, after) == ['state: "dead" -> "waiting"', run_at]
    assert "14:00:00 CET -> " in differences(before, after, zone=timezone(timedelta(hours=1), "CET"))[1]
    assert differences('{"run_at": "soon"}', "{}") == ['run_at: "soon" -> -']
