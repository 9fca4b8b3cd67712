"""How a runner separates the tasks that kill their runner from innocent ones, and how long that takes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.policy.suspicion import (
    ALONE,
    OLDEST_FIRST,
    WIDTHS,
    Proof,
    Suspect,
    first,
    is_suspect,
    more,
    width,
)
from tests.policy.suspicion_bounds import rounds, seconds

PROOF = Proof(group=3.0, alone=15.0)
attempts = st.integers(1, 30)
running = st.lists(st.builds(Suspect, st.sampled_from(WIDTHS), st.floats(0, 20)), max_size=30)


@pytest.mark.parametrize(
    ("rescues", "attempts_left", "used", "suspect"),
    [
        *((0, 1, 4, False), (0, None, 4, False), (1, 2, 3, False), (1, 1, 4, True), (1, None, 4, False)),
        *((1, 1, 0, False), (2, 1, 0, True), (2, 9, 2, True), (2, None, 2, True)),
    ],
)
def test_two_lost_runners_make_a_suspect_or_one_before_the_last_attempt(
    rescues: int, attempts_left: int | None, used: int, suspect: bool
) -> None:
    assert is_suspect(rescues, attempts_left, used) is suspect


@given(rescues=st.integers(1, 30), attempts_left=attempts)
def test_each_lost_runner_and_each_attempt_narrows_the_group(rescues: int, attempts_left: int) -> None:
    assert (
        width(rescues + 1, attempts_left)
        <= width(rescues, attempts_left)
        <= width(rescues, attempts_left + 1)
        <= width(rescues, None)
    )


@given(rescues=st.integers(1, 30))
def test_the_last_attempt_is_run_alone(rescues: int) -> None:
    assert width(rescues, 1) == ALONE


@given(suspects=running, room=st.integers(0, 40), group_width=st.sampled_from(WIDTHS))
def test_no_suspect_is_claimed_into_a_group_that_is_too_wide_for_it(
    suspects: list[Suspect], room: int, group_width: int
) -> None:
    unproven = PROOF.unproven(suspects)
    ask = first(unproven, room)
    assert ask.limit <= min(1, room)
    if ask.limit and group_width >= ask.width:
        group = [*unproven, Suspect(group_width, 0.0)]
        assert len(group) <= min(suspect.width for suspect in group)
        rest = more(group, group_width, room - 1)
        assert len(group) + rest.limit <= min(suspect.width for suspect in group)
        assert rest.limit <= room - 1


def test_a_suspect_alone_keeps_its_place_for_longer_than_one_of_a_group() -> None:
    assert PROOF.unproven([Suspect(1, 14.9), Suspect(4, 3.1), Suspect(16, 2.9)]) == [Suspect(1, 14.9), Suspect(16, 2.9)]


class Trial:
    """One runner at work on its suspects, round by round; each lost runner costs its group one attempt."""

    def __init__(self, innocents: int, killers: int, attempts: int, slots: int, seed: int) -> None:
        self.slots, self.maximum = slots, attempts
        self.killers = set(range(killers))
        self.lost = dict.fromkeys(range(innocents + killers), 2)
        self.draw = random.Random(seed)
        self.lost_at_end: dict[int, int] = {}
        self.rounds = self.widest = 0
        self._age = dict(zip(self.lost, random.Random(seed).sample(range(len(self.lost)), len(self.lost)), strict=True))

    def run(self) -> None:
        while self.lost:
            group = self._group()
            self.rounds += 1
            self.widest = max(self.widest, len(group))
            if self.killers.isdisjoint(group):
                for task in group:
                    self.lost_at_end[task] = self.lost.pop(task)
                continue
            for task in group:
                self.lost[task] += 1
                if self.lost[task] == self.maximum:
                    assert task in self.killers, "an innocent is dead"
                    self.lost_at_end[task] = self.lost.pop(task)

    def _group(self) -> list[int]:
        oldest_first = self.draw.random() < OLDEST_FIRST
        queue = sorted(self.lost, key=lambda task: (0 if oldest_first else -self._width(task), self._age[task]))
        unproven: list[Suspect] = []
        group: list[int] = []
        while queue and (ask := first(unproven, self.slots - len(group))).limit and self._width(queue[0]) >= ask.width:
            head = queue.pop(0)
            batch = [head]
            unproven.append(Suspect(self._width(head), 0.0))
            beside = more(unproven, self._width(head), self.slots - len(group) - 1)
            batch += [task for task in queue if self._width(task) >= beside.width][: beside.limit]
            unproven += [Suspect(self._width(task), 0.0) for task in batch[1:]]
            queue = [task for task in queue if task not in batch]
            group += batch
        return group

    def _width(self, task: int) -> int:
        return width(self.lost[task], self.maximum - self.lost[task])


@given(
    innocents=st.integers(0, 150),
    killers=st.integers(0, 4),
    attempts=st.integers(5, 20),
    slots=st.integers(1, 60),
    seed=st.integers(0, 2**20),
)
def test_killers_die_and_innocents_end_well_within_the_bound(
    innocents: int, killers: int, attempts: int, slots: int, seed: int
) -> None:
    trial = Trial(innocents, killers, attempts, slots, seed)
    trial.run()
    assert trial.rounds <= rounds(innocents, killers, slots, attempts)
    assert trial.widest <= min(WIDTHS[0], slots)
    assert {task for task, lost in trial.lost_at_end.items() if lost == attempts} == trial.killers
    assert all(lost <= 4 for task, lost in trial.lost_at_end.items() if task not in trial.killers)


@given(innocents=st.integers(1, 100), attempts=st.integers(3, 4), seed=st.integers(0, 2**20))
def test_with_few_attempts_innocents_end_well_too(innocents: int, attempts: int, seed: int) -> None:
    trial = Trial(innocents, 1, attempts, 20, seed)
    trial.run()
    assert {task for task, lost in trial.lost_at_end.items() if lost == attempts} == {0}


def test_sixty_innocents_take_a_few_rounds_and_not_sixty() -> None:
    assert rounds(60, slots=20) == 4
    assert rounds(60, 1, slots=20) == 4 + 2 + 4 + 1 + 3 + 5
    assert seconds({16: 60}, 20, PROOF, 0.5) == 4 * 0.5 + 3 * 0.5
    assert seconds({1: 3}, 20, PROOF, 3600.0) == 3 * 15.0 + 3600.0
