import itertools

import pytest

from runner.policy.ranges import AHEAD, LAST_ID, WIDER_EVERY, Fate, Range, Weighed, beyond, fate, next_range
from runner.schema.partitions import WIDTH

FIRST = Range(1, 1 + WIDTH)


def grown(ranges: list[Range], next_id: int) -> list[Range]:
    """Create ranges until there are enough."""
    while made := next_range(ranges, next_id):
        ranges = [*ranges, made]
    return ranges


def test_ranges_stand_ready_beyond_the_next_id_and_follow_each_other() -> None:
    ranges = grown([FIRST], next_id=1)
    assert len(ranges) == 1 + AHEAD
    assert all(one.end == other.first for one, other in itertools.pairwise(ranges))
    assert grown(ranges, next_id=WIDTH // 2) == ranges
    assert len(grown(ranges, next_id=1 + WIDTH)) == 2 + AHEAD


def test_ranges_grow_wider_the_more_there_are() -> None:
    ranges = grown([FIRST], next_id=10_000_000_000)
    for _ in range(200):
        ranges = grown(ranges, next_id=ranges[-1].first)
    assert ranges[0].end - ranges[0].first == WIDTH
    few = [Range(n * WIDTH + 1, (n + 1) * WIDTH + 1) for n in range(WIDER_EVERY)]
    wider = next_range(few, few[-1].end - 1)
    assert wider == Range(few[-1].end, few[-1].end + 2 * WIDTH)
    billions = [FIRST]
    while billions[-1].end < 10_000_000_000:
        billions = grown(billions, billions[-1].end)
    assert len(billions) < 100


def test_ids_that_ran_away_get_a_range_where_they_are() -> None:
    assert next_range([FIRST], next_id=12 * WIDTH + 7) == Range(12 * WIDTH + 1, 13 * WIDTH + 1)


def test_a_range_is_put_behind_ids_that_stand_elsewhere() -> None:
    wanted = Range(1 + WIDTH, 1 + 2 * WIDTH)
    assert beyond(wanted, WIDTH + 7) == Range(1 + 2 * WIDTH, 1 + 3 * WIDTH)
    assert beyond(wanted, 2 * WIDTH) == Range(1 + 2 * WIDTH, 1 + 3 * WIDTH)


def test_no_range_goes_beyond_the_last_id() -> None:
    assert next_range([FIRST], LAST_ID) is None
    assert beyond(FIRST, LAST_ID) is None


@pytest.mark.parametrize(
    ("weighed", "expected"),
    [
        (Weighed(used_up=True, few_live=True, old=True, all_old=True, soon_old=True), Fate.DROP),
        (Weighed(used_up=True, few_live=True, old=True, all_old=None, soon_old=None), Fate.DROP),
        (Weighed(used_up=True, few_live=True, old=None, all_old=None, soon_old=None), Fate.DROP),
        (Weighed(used_up=True, few_live=True, old=True, all_old=False, soon_old=True), Fate.SPARE),
        (Weighed(used_up=True, few_live=True, old=True, all_old=False, soon_old=False), Fate.SWEEP),
        (Weighed(used_up=True, few_live=True, old=False, all_old=None, soon_old=None), Fate.KEEP),
        (Weighed(used_up=True, few_live=False, old=True, all_old=True, soon_old=True), Fate.SWEEP),
        (Weighed(used_up=True, few_live=False, old=None, all_old=None, soon_old=None), Fate.SWEEP),
        (Weighed(used_up=False, few_live=True, old=True, all_old=True, soon_old=True), Fate.SWEEP),
        (Weighed(used_up=False, few_live=True, old=None, all_old=None, soon_old=None), Fate.SWEEP),
    ],
)
def test_the_fate_of_a_range(weighed: Weighed, expected: Fate) -> None:
    assert fate(weighed) is expected
