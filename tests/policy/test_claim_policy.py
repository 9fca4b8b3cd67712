from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any

import pytest

from runner.policy.claim_conditions import ClaimCondition, used_up
from runner.policy.claim_facts import ClaimFacts, Explanation
from runner.policy.claim_policy import CLAIM_POLICY

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def task(**values: Any) -> Any:
    return SimpleNamespace(
        **{"id": 7, "handler": "work", "run_at": NOW, "attempt": 0, "max_attempts": 3, "rescues": 0, "error": None}
        | {"tenant": None, "expires_at": None, "shown": "ready"}
        | values
    )


@dataclass(frozen=True)
class KnownFacts:
    """The facts about a due task that meets every condition, unless a test changes one."""

    task: Any = field(default_factory=task)
    at: datetime = NOW
    refused: frozenset[str] = frozenset()
    later: bool = False
    predecessor: Any = None
    queue: Any = None
    handler: Any = None
    limits: tuple[Any, ...] = ()
    candidates: tuple[Any, ...] = ()


def paused(until: datetime | None = None) -> Any:
    return SimpleNamespace(name="mail", pause=SimpleNamespace(since=NOW, until=until, by="ana", why="relay is down"))


def kinds(facts: ClaimFacts) -> list[str]:
    return [explanation.kind for explanation in CLAIM_POLICY.explain(facts, UTC)]


class Curfew(ClaimCondition):
    """A condition that only explains itself."""

    name = "curfew"

    def explain(self, facts: ClaimFacts, _zone: tzinfo) -> Iterator[Explanation]:
        if facts.task.id == 7:
            yield Explanation(self.name, "Task 7 has a curfew.")


def test_a_task_that_meets_every_condition_needs_no_change() -> None:
    assert kinds(KnownFacts()) == []
    assert CLAIM_POLICY.remedies(KnownFacts()) == []


def test_every_unmet_condition_is_explained_with_its_remedy() -> None:
    facts = KnownFacts(task(attempt=3), refused=frozenset({"attempts", "due"}), later=True, queue=paused())
    assert kinds(facts) == ["attempts", "due", "paused"]
    assert [step.kind for step in CLAIM_POLICY.remedies(facts) or ()] == ["attempts", "due", "resume"]


def test_a_pause_that_ends_before_the_task_is_due_is_not_a_reason() -> None:
    tomorrow = NOW + timedelta(days=1)
    facts = KnownFacts(task(run_at=tomorrow), refused=frozenset({"due"}), later=True, queue=paused(until=tomorrow))
    assert kinds(facts) == ["due"]
    assert [step.kind for step in CLAIM_POLICY.remedies(facts) or ()] == ["due", "resume"]


def test_no_change_is_certain_to_start_a_suspect() -> None:
    assert CLAIM_POLICY.remedies(KnownFacts(task(rescues=2), refused=frozenset({"apart"}))) is None


def test_no_change_is_certain_to_help_against_a_condition_without_a_remedy() -> None:
    policy = CLAIM_POLICY._replace(conditions=(*CLAIM_POLICY.conditions, Curfew()))
    assert [explanation.text for explanation in policy.explain(KnownFacts(), UTC)] == ["Task 7 has a curfew."]
    assert policy.remedies(KnownFacts()) is None
    assert policy.remedies(KnownFacts(task(id=8))) == []


def test_claimed_tasks_are_sorted_by_priority_then_time_then_id() -> None:
    later = NOW + timedelta(seconds=1)
    keys = [(1, NOW, 1), (9, later, 2), (9, NOW, 4), (9, NOW, 3)]
    in_order = sorted(keys, key=lambda key: CLAIM_POLICY.order.sort_key(*key))
    assert [id for _, _, id in in_order] == [3, 4, 2, 1]


@pytest.mark.parametrize(("attempt", "most", "expected"), [(2, 3, False), (3, 3, True), (4, 3, True), (9, None, False)])
def test_attempts_are_used_up_at_the_maximum(attempt: int, most: int | None, expected: bool) -> None:
    assert used_up(attempt, most) is expected
