"""Poll modes as decisions: waits, tiers, own scans, and what is refused."""

import re
from datetime import timedelta
from typing import Any

import pytest

from runner.errors import InvalidSettings
from runner.policy.polling import (
    FixedDelay,
    FixedRate,
    OwnScan,
    SpreadScans,
    Throttle,
    describe_polling,
    parse_poll_mode,
    parse_scans,
)


class Nightly(FixedDelay):
    """A mode of a user."""

    def wait(self, period: float, runners: int, random: float) -> float:
        return 2 * period


@pytest.mark.parametrize(
    "text", ["fixed-rate", "fixed-delay", "spread", "tiers", "tiers:0=1s,3=10s", "throttle"], ids=str
)
def test_a_mode_is_formatted_as_it_is_parsed(text: str) -> None:
    assert str(parse_poll_mode(text)) == text


def test_spread_runners_scan_once_per_period_together() -> None:
    waits = [SpreadScans().wait(5.0, 4, random / 10) for random in range(11)]
    assert (waits[0], waits[5], waits[10]) == (10.0, 20.0, 30.0), "5 s x (1/2 to 3/2) x 4 runners"
    assert SpreadScans().wait(5.0, 0, 0.5) == 5.0


def test_tiers_take_failed_tasks_at_the_periods_of_their_tiers() -> None:
    mode = parse_poll_mode("tiers")
    assert mode.period(1.0) == 3.0
    assert mode.most_failures(0) is None, "the first scan takes all tasks"
    bounds = [mode.most_failures(scan) for scan in range(1, 41)]
    assert [3 * scan for scan in range(1, 41) if bounds[scan - 1] == 5] == [30, 90]
    assert [3 * scan for scan in range(1, 41) if bounds[scan - 1] is None] == [60, 120]
    assert bounds.count(0) == 36


def test_only_a_throttle_bounds_the_tasks_of_a_period() -> None:
    modes = (FixedRate(), FixedDelay(), SpreadScans(), Throttle())
    assert [mode.is_throttled for mode in modes] == [False, False, False, True]


def test_a_class_of_the_user_is_a_mode() -> None:
    assert parse_poll_mode("tests.policy.test_poll_mode:Nightly").wait(5.0, 1, 0.0) == 10.0


async def an_application() -> None: ...


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fixed", "'fixed': it is not known; use fixed-rate, fixed-delay, spread, tiers"),
        ("throttle:5", "the class cannot be loaded"),
        ("tests.nowhere:Mode", "ModuleNotFoundError"),
        ("builtins:len", "len is not a class"),
        (f"{__name__}:an_application", "an_application is not a class"),
        ("builtins:dict", "the class lacks period, wait, most_failures"),
        ("tiers:0=soon", "'0=soon' is not a number of failures and a period"),
        ("tiers:1=3s", "the first tier is that of 0 failures"),
        ("tiers:0=3s,5=1s", "must rise"),
    ],
)
def test_an_unknown_mode_is_refused_with_the_choices(text: str, why: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(why)):
        parse_poll_mode(text)


def test_the_first_scan_that_matches_a_handler_has_it() -> None:
    scans = parse_scans(["report.daily=1h", "report.*=1m"], ["mail.send", "report.daily", "report.weekly"])
    assert scans == {
        OwnScan("report.daily", 3600.0): frozenset({"report.daily"}),
        OwnScan("report.*", 60.0): frozenset({"report.weekly"}),
    }


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (["report.*"], "'report.*' is not handlers and a period"),
        (["mail.send=0s"], "is not handlers and a period"),
        (["sms.*=1m"], "no handler matches it that is not in another scan; the handlers are mail.send"),
        (["mail.*=1m", "mail.send=1h"], "no handler matches it that is not in another scan"),
    ],
)
def test_a_scan_without_a_period_or_a_handler_is_refused(parts: list[str], why: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(why)):
        parse_scans(parts, ["mail.send"])


@pytest.mark.parametrize(
    ("mode", "every", "scans", "text"),
    [
        ("fixed-rate", 1.0, (), "fixed-rate 1s"),
        ("tiers", 1.0, ("report.*=1m",), "tiers 3s; report.*=1m"),
        ("fixed-rate", 0.0, (), "fixed-rate 0s once"),
    ],
)
def test_polling_is_described_for_people(mode: str, every: float, scans: Any, text: str) -> None:
    assert describe_polling(parse_poll_mode(mode), timedelta(seconds=every), scans) == text
