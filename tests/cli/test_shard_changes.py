"""Changes by a filter, and their undo, on a profile with shards."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runner.cli.exit_codes import Exit
from tests.cli.conftest import Call, Store
from tests.cli.test_shards import fits
from tests.shards import EACH_PAIR, Sharded

ROUTES = ("customer-3", "customer-0", "customer-3", "customer-3", "customer-0")
"""Three tasks of eu and two of us."""


@pytest.fixture
def profile(profile: Sharded, monkeypatch: pytest.MonkeyPatch, call: Call) -> Sharded:
    """The profile of the commands, with waiting tasks."""
    monkeypatch.setenv("TASKTUI_CONFIG", str(profile.config))
    monkeypatch.setenv("TASKTUI_PROFILE", "orders")
    for route in ROUTES:
        assert call("submit", "work", "{}", "--route", route).code == Exit.OK
    return profile


def waiting(profile: Sharded) -> list[int]:
    """The number of unfinished tasks of each shard."""
    return [len(Store(url).tasks()) for url in profile.urls.values()]


def figures(document: Any, name: str) -> list[Any]:
    """A figure of each shard."""
    return [each["figures"] and each["figures"][name] for each in document["totals"]["rows"]]


def group_of(output: str) -> str:
    return output.split("--group ")[1].split(maxsplit=1)[0]


@pytest.mark.slow
@EACH_PAIR
def test_a_filter_changes_each_shard_after_one_preview_and_one_undo_reverses_all(call: Call, profile: Sharded) -> None:
    preview = call("terminate", "queue:default", "--dry-run")
    rows = [line.split() for line in preview.out.splitlines()]
    assert rows[2:5] == [["eu", "3", "3"], ["us", "2", "2"], ["total", "5", "5"]]
    assert "us:2" in preview.out
    assert waiting(profile) == [3, 2]
    wrong = call("terminate", "queue:default", "--yes", 3)
    assert (wrong.code, waiting(profile)) == (Exit.CONFLICT, [3, 2])
    done = call("terminate", "queue:default", "--yes", 5, "--reason", "a trial")
    assert (done.code, waiting(profile)) == (Exit.OK, [0, 0])
    assert done.out.splitlines()[:2] == ["eu: 3 changed", "us: 2 changed"]
    group = group_of(done.out)
    assert figures(call("undo", "--group", group, "--dry-run", "--json").document, "eligible") == [
        {"number": 3, "more": False},
        {"number": 2, "more": False},
    ]
    undone = call("undo", "--group", group, "--yes", 5, "--json")
    fits("undo", undone.document)
    assert (undone.code, figures(undone.document, "changed"), waiting(profile)) == (Exit.OK, [3, 2], [3, 2])
    again = call("undo", "--group", group, "--yes", 5)
    assert again.code == Exit.CONFLICT
    assert "does not exist" in call("undo", "--group", "nope").err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("retry",), ("delay", "--by", "10m"), ("edit", "--priority", 9), ("unblock",), ("erase",)], ids=str
)
def test_every_change_by_a_filter_has_the_numbers_of_each_shard(
    call: Call, profile: Sharded, command: tuple[Any, ...]
) -> None:
    verb, *options = command
    document = call(verb, "queue:default", *options, "--dry-run", "--json").document
    fits(verb, document)
    assert [each["number"] for each in figures(document, "total")] == [3, 2]
    count = document["totals"]["total"]["eligible"]["number"]
    assert count == (5 if verb in ("retry", "delay", "edit") else 0)
    result = call(verb, "queue:default", *options, *(["--yes", count] if count else []), "--json")
    fits(verb, result.document)
    assert figures(result.document, "changed") == ([3, 2] if count else [0, 0])
    assert result.code == (Exit.OK if count else Exit.CONFLICT)


@pytest.mark.slow
def test_a_limit_counts_over_all_shards(call: Call, profile: Sharded) -> None:
    document = call("terminate", "queue:default", "--limit", 4, "--dry-run", "--json").document
    assert [each["number"] for each in figures(document, "eligible")] == [3, 1]
    assert [each["eligible"] for each in document["shards"].values()] == [3, 1]
    assert document["totals"]["total"]["eligible"]["number"] == 4
    result = call("terminate", "queue:default", "--limit", 4, "--yes", 4)
    assert (result.code, waiting(profile)) == (Exit.OK, [0, 1])
    assert call("terminate", "queue:default", "--limit", 0, "--yes", 1).code == Exit.BAD_INPUT


def test_a_shard_that_is_away_is_not_changed_and_the_others_are(call: Call, profile: Sharded) -> None:
    file = Path(profile.urls["us"].removeprefix("sqlite:///"))
    file.rename(file.with_suffix(".away"))
    preview = call("terminate", "queue:default", "--dry-run")
    assert (preview.code, "The total is partial, without us." in preview.out) == (Exit.DATABASE, True)
    assert "runner: us: nothing would be changed: The SQLite file" in preview.err
    late = call("terminate", "queue:default", "--yes", 5)
    assert (late.code, "us: no answer, so its tasks do not count" in late.err) == (Exit.CONFLICT, True)
    result = call("terminate", "queue:default", "--yes", 3)
    assert result.code == Exit.PARTIAL
    assert result.out.splitlines()[:2] == ["eu: 3 changed", "us: nothing changed"]
    assert "terminate: 3 changed, without us; undo with: runner undo --group" in result.out
    assert "runner: us: nothing was changed: The SQLite file" in result.err
    file.with_suffix(".away").rename(file)
    assert waiting(profile) == [0, 2]
    document = call("terminate", "queue:default", "--yes", 2, "--json").document
    assert (figures(document, "changed"), document["totals"]["partial"]) == ([0, 2], False)


@pytest.mark.slow
@EACH_PAIR
def test_a_shard_that_fails_after_its_preview_is_named(call: Call, profile: Sharded) -> None:
    rename = "ALTER TABLE task_audit RENAME TO task_audit_away"  # The preview does not read it.
    if profile.urls["us"].startswith("sqlite"):
        with closing(sqlite3.connect(profile.urls["us"].removeprefix("sqlite:///"))) as file:
            file.execute(rename)
        result = call("terminate", "queue:default", "--yes", 5)
        assert result.code == Exit.PARTIAL
        assert result.out.splitlines()[:2] == ["eu: 3 changed", "us: 0 changed, 2 refused"]
        assert "task us:2 is refused: " in result.err
        return
    with psycopg.connect(profile.urls["us"], autocommit=True) as server:
        server.execute(rename)
    result = call("terminate", "queue:default", "--yes", 5)
    assert result.code == Exit.PARTIAL
    assert result.out.splitlines()[:2] == ["eu: 3 changed", "us: broken off"]
    group = group_of(result.out)
    assert f"runner: us: some of it may be changed; see runner audit --group {group} --profile us: " in result.err
    document = call("terminate", "queue:default", "--yes", 2, "--json").document
    assert [each["error"] is None for each in document["totals"]["rows"]] == [True, False]


@pytest.mark.slow
def test_nothing_matches_in_any_shard(call: Call, profile: Sharded) -> None:
    result = call("terminate", "queue:defautl")
    assert (result.code, result.out) == (Exit.OK, "No tasks match.\n")
    assert json.loads(call("terminate", "queue:defautl", "--json").out)["totals"]["total"]["changed"] == 0
