"""Redaction: secrets in payloads and texts are masked, by field name and by form."""

import json
from datetime import timedelta, timezone

import pytest

from runner.text.redact import MASK, MOST_LEVELS, decode, differences, is_secret, mask, redact, secrets

SECRET = (
    "password db_password Passwd passphrase secret client_secret token accessToken api_key apiKey API-KEY "
    "Authorization authorisation credentials private_key cookie session_id pin"
)
ORDINARY = "user_id author compass spinning key path passenger session_length"


@pytest.mark.parametrize("name", SECRET.split())
def test_names_of_secrets_are_recognized(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ORDINARY.split())
def test_other_names_are_not_masked(name: str) -> None:
    assert not is_secret(name)


def test_secrets_of_any_type_are_masked_at_any_depth() -> None:
    payload = {"user": 7, "login": [{"password": "x", "hints": {"token": {"a": 1}}}], "secret": None}
    assert redact(payload) == {
        "user": 7,
        "login": [{"password": MASK, "hints": {"token": MASK}}],
        "secret": None,
    }
    assert payload["user"] == 7


def test_the_secrets_of_a_payload_are_listed_longest_first() -> None:
    payload = {"user": "somebody", "password": "hunter2", "auth": {"key": "abcdefgh", "n": [1, "of-many"]}, "pin": "12"}
    result = secrets(json.dumps(payload))
    assert (result[0], sorted(result)) == ("abcdefgh", ["abcdefgh", "hunter2", "of-many"])
    assert secrets("{") == secrets("[" * 100_000) == []


def test_revealing_returns_the_stored_text() -> None:
    assert decode('{"token": "x"}', reveal=True) == {"token": "x"}
    assert decode('{"token": "x"}') == {"token": MASK}
    assert decode(None) is None


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "token=abc"])
def test_text_that_is_not_json_is_masked_completely(text: str) -> None:
    assert decode(text) == MASK
    assert decode(text, reveal=True) == text


def test_deeply_nested_values_are_not_shown() -> None:
    deep = "[" * 900 + "]" * 900
    redacted_text = json.dumps(decode(deep, reveal=True), indent=2)
    assert redacted_text.count("[") == MOST_LEVELS
    assert MASK in redacted_text


@pytest.mark.parametrize(
    ("text", "redacted_text"),
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
def test_likely_secrets_are_masked_in_any_text(text: str, redacted_text: str) -> None:
    assert mask(text) == redacted_text
    assert mask(redacted_text) == redacted_text
    assert mask(text, reveal=True) == text
    assert redact({"said": [text]}) == {"said": [redacted_text]}


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
        "password: at least 8 characters; token: expected text",
        "api_key: the handler requires it: text",
        "secret: String should have at least 8 characters",
        "token: Field required; password: Input should be a valid string",
        "ValueError: password: must have at least 8 characters",
    ],
)
def test_ordinary_words_are_not_masked(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize(
    ("text", "redacted_text"),
    [
        ("password: at", "password: ***"),
        ("password: atleast8", "password: ***"),
        ("password=at least 8 characters", "password=*** least 8 characters"),
        ("password:at least 8 characters", "password:*** least 8 characters"),
        ('{"password": "at least 8 characters"}', '{"password": ***}'),
        ("password: 'must have at least 8 characters'", "password: ***"),
        ("password: must", "password: ***"),
        ("password: must-have-at-least-8", "password: ***"),
        ("token: expected", "token: ***"),
        ("token: expected_text", "token: ***"),
        ("secret: requiredhunter2", "secret: ***"),
        ("secret: required: hunter2", "secret: *** hunter2"),
        ("password: value", "password: ***"),
        ("password: at least 8 characters; token: hunter2", "password: at least 8 characters; token: ***"),
        ("password: at least 8 characters, token=hunter2", "password: at least 8 characters, token=***"),
        ("token: Value error, password=hunter2 is short", "token: Value error, password=*** is short"),
        ("password: should be a Bearer abcdefghij1", "password: should be a Bearer ***"),
        ("password:  at least 8 characters", "password:  *** least 8 characters"),
        ("password: \nat least 8", "password: \n*** least 8"),
    ],
)
def test_a_value_that_resembles_a_message_is_masked(text: str, redacted_text: str) -> None:
    assert mask(text) == redacted_text


def test_a_payload_without_secrets_is_unchanged() -> None:
    payload = {"a": [1, 2.5, True, None, {"b": "ü"}]}
    assert decode(json.dumps(payload)) == payload


def strings(before: str, after: str) -> list[str]:
    return [str(each) for each in differences(before, after)]


def test_a_value_that_did_not_change_is_left_out_and_a_changed_secret_is_not() -> None:
    before, after = '{"attempt": 2, "rescues": 0, "token": "a"}', '{"attempt": 0, "rescues": 0, "token": "b"}'
    assert strings(before, after) == ["attempt: 2 -> 0", 'token: "***" -> "***"']


def test_a_changed_payload_is_shown_by_its_arguments_and_an_arrow_stays_in_its_value() -> None:
    before, after = ({"payload": json.dumps(each)} for each in ({"n": 1, "a": "x -> y", "at": 2}, {"n": 1, "at": 3}))
    changes = differences(json.dumps(before), json.dumps(after))
    assert changes == [("payload a", '"x -> y"', "-"), ("payload at", "2", "3")]


def test_a_change_is_shown_by_its_main_field_and_in_whole_seconds() -> None:
    before = '{"run_at": "2026-11-20T13:00:00.5+00:00", "state": "dead", "fence": 3}'
    after = '{"run_at": "2026-11-20T14:10:00+01:00", "state": "waiting", "fence": 3}'
    run_at = "run_at: 2026-11-20 13:00:00 UTC -> 2026-11-20 13:10:00 UTC"
    assert strings(before, after) == ['state: "dead" -> "waiting"', run_at]
    there = differences(before, after, zone=timezone(timedelta(hours=1), "CET"))
    assert there[1].before == "2026-11-20 14:00:00 CET"
    assert strings('{"run_at": "soon"}', "{}") == ['run_at: "soon" -> -']
    for name in ("finished_at", "expires_at", "paused_until", "opened_at", "last_tick"):
        after = f'{{"{name}": "2026-11-20 13:00:00.250"}}'
        assert strings("{}", after) == [f"{name}: - -> 2026-11-20 13:00:00 UTC"]
