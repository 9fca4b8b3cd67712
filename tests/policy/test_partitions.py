import itertools

import pytest

from runner.db.schema.partitions import WIDTH
from runner.model.task import LAST_ID
from runner.policy.partitions import AHEAD, WIDER_EVERY, Fate, Range, RangeState, beyond, fate, next_range

FIRST = Range(1, 1 + WIDTH)


def extended(ranges: list[Range], next_id: int) -> list[Range]:
    """Create ranges until there are enough."""
    while new := next_range(ranges, next_id):
        ranges = [*ranges, new]
    return ranges


def test_ranges_beyond_the_next_id_are_consecutive() -> None:
    ranges = extended([FIRST], next_id=1)
    assert len(ranges) == 1 + AHEAD
    assert all(one.end == other.first for one, other in itertools.pairwise(ranges))
    assert extended(ranges, next_id=WIDTH // 2) == ranges
    assert len(extended(ranges, next_id=1 + WIDTH)) == 2 + AHEAD


def test_the_width_grows_with_the_number_of_ranges() -> None:
    ranges = extended([FIRST], next_id=10_000_000_000)
    for _ in range(200):
        ranges = extended(ranges, next_id=ranges[-1].first)
    assert ranges[0].end - ranges[0].first == WIDTH
    few = [Range(n * WIDTH + 1, (n + 1) * WIDTH + 1) for n in range(WIDER_EVERY)]
    wider = next_range(few, few[-1].end - 1)
    assert wider == Range(few[-1].end, few[-1].end + 2 * WIDTH)
    billions = [FIRST]
    while billions[-1].end < 10_000_000_000:
        billions = extended(billions, billions[-1].end)
    assert len(billions) < 100


def test_a_jump_of_the_ids_gets_a_range_at_the_new_ids() -> None:
    assert next_range([FIRST], next_id=12 * WIDTH + 7) == Range(12 * WIDTH + 1, 13 * WIDTH + 1)


def test_a_range_starts_after_ids_in_another_partition() -> None:
    candidate = Range(1 + WIDTH, 1 + 2 * WIDTH)
    assert beyond(candidate, WIDTH + 7) == Range(1 + 2 * WIDTH, 1 + 3 * WIDTH)
    assert beyond(candidate, 2 * WIDTH) == Range(1 + 2 * WIDTH, 1 + 3 * WIDTH)


def test_no_range_exceeds_the_last_id() -> None:
    assert next_range([FIRST], LAST_ID) is None
    assert beyond(FIRST, LAST_ID) is None


@pytest.mark.parametrize(
    ("weighed", "expected"),
    [
        (RangeState(used_up=True, few_live=True, old=True, all_old=True, soon_old=True), Fate.DROP),
        (RangeState(used_up=True, few_live=True, old=True, all_old=None, soon_old=None), Fate.DROP),
        (RangeState(used_up=True, few_live=True, old=None, all_old=None, soon_old=None), Fate.DROP),
        (RangeState(used_up=True, few_live=True, old=True, all_old=False, soon_old=True), Fate.SPARE),
        (RangeState(used_up=True, few_live=True, old=True, all_old=False, soon_old=False), Fate.SWEEP),
        (RangeState(used_up=True, few_live=True, old=False, all_old=None, soon_old=None), Fate.KEEP),
        (RangeState(used_up=True, few_live=False, old=True, all_old=True, soon_old=True), Fate.SWEEP),
        (RangeState(used_up=True, few_live=False, old=None, all_old=None, soon_old=None), Fate.SWEEP),
        (RangeState(used_up=False, few_live=True, old=True, all_old=True, soon_old=True), Fate.SWEEP),
        (RangeState(used_up=False, few_live=True, old=None, all_old=None, soon_old=None), Fate.SWEEP),
    ],
)
def test_how_pruning_treats_a_range(weighed: RangeState, expected: Fate) -> None:
    assert fate(weighed) is expected
