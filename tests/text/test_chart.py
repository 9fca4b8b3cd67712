"""Charts of reports."""

import re
from itertools import pairwise

import pytest

from runner.text.chart import Chart, Series


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (1, "0 1"),
        (2, "0 1 2"),
        (3, "0 1 2 3 4 5"),
        (10, "0 2 4 6 8 10"),
        (17, "0 5 10 15 20"),
        (48, "0 10 20 30 40 50"),
        (100, "0 25 50 75 100"),
    ],
)
def test_the_axis_of_counts_has_whole_numbers_at_equal_distances(most: int, labels: str) -> None:
    chart = Chart("Tasks", ["12:00"], [Series("done", "good", [most])], "{:,.0f}".format)

    lines = re.findall(r'y="([\d.]+)" text-anchor="end">([\d,]+)<', chart.html())

    assert [text for _, text in lines] == labels.split()
    heights = [float(y) for y, _ in lines]
    steps = {round(one - other) for one, other in pairwise(heights)}
    assert max(steps) - min(steps) <= 1  # of rounding
