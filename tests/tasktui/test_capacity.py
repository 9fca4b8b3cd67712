"""The dialog of the capacity: no number is cut, and a reason without room gets a line of its own."""

from datetime import UTC, datetime

import pytest
from rich.cells import cell_len

from runner.policy.capacity import CapacityRow, Demand
from runner.policy.rate import Bound
from runner.queries.capacity import Capacity
from tasktui.dialogs.capacity import capacity_lines

LIMIT = "queue images-of-the-european-shops: at most 24 running"
ROWS = (
    CapacityRow(
        "images-of-the-european-shops", Demand(60.0, 1.0, 9.0, 1_234_567, 90_000.0), 24, Bound(LIMIT, 569.9, True)
    ),
    CapacityRow("images-of-the-american-shops", Demand(1.0, 1.0, 9.0, 3), 24, Bound("slots", 100.0)),
)


def shown(width: int) -> list[str]:
    return [text.plain for text in capacity_lines(Capacity(datetime.now(UTC), 10.0, "queue", ROWS), width)]


@pytest.mark.parametrize("width", [40, 72, 98, 150])
def test_no_number_of_the_capacity_is_cut(width: int) -> None:
    texts = shown(width)
    numbers = [word for text in texts[2:] for word in text.split() if word[:1].isdigit() or word[:1] == ">"]
    assert not any(word.endswith("…") for word in numbers)
    assert "1,234,567" in " ".join(texts)
    assert (">820,656" in " ".join(texts)) is (width > 60)
    assert max(map(cell_len, texts)) <= width


@pytest.mark.parametrize("width", [60, 72, 98, 150])
def test_each_reason_of_the_capacity_is_readable_and_names_differ(width: int) -> None:
    texts = shown(width)
    assert LIMIT in " ".join(" ".join(texts).split())
    first, second = (text.split()[0] for text in texts if text.startswith("imag"))
    assert first != second
