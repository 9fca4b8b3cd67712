"""The text for Prometheus has every sample under its labels, and leaves the interpreter lock to the event loop."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runner.engine import turns
from runner.engine.exposition import BOUNDS, CONTENT_TYPE, Family, MetricKind, exposition, exposition_text
from runner.policy.histogram import Buckets, Histogram

NAMES = ['a"b', "back\\slash", "two\nlines", "größe", "", 'x="1",y="2"', "\\n"]


@pytest.mark.parametrize("kind", [MetricKind.COUNTER, MetricKind.GAUGE])
def test_a_parser_reads_names_of_every_kind(kind: MetricKind) -> None:
    samples = {(name, "x"): number for number, name in enumerate(NAMES)}
    (family,) = text_string_to_metric_families(exposition_text([Family(kind, "m", "A text.", ("a", "b"), samples)]))
    assert {(each.labels["a"], each.labels["b"]): each.value for each in family.samples} == samples
    assert (family.name, family.documentation, family.type) == ("m", "A text.", kind)


def test_a_histogram_has_cumulative_buckets_with_the_bounds_of_its_times() -> None:
    times = Histogram()
    times.add([0.004, 0.005, 0.03, 7.0, 3_600.0])
    buckets = Buckets().plus(times).plus(times)
    text = exposition_text([Family(MetricKind.HISTOGRAM, "m", "A text.", ("a",), {("x",): buckets})])
    (family,) = text_string_to_metric_families(text)
    numbers = {each.labels["le"]: each.value for each in family.samples if each.name == "m_bucket"}
    assert list(numbers) == list(BOUNDS)
    assert [numbers[bound] for bound in ("0.005", "0.025", "0.05", "5", "10", "900", "+Inf")] == [4, 4, 6, 6, 8, 8, 10]
    others = {each.name: each.value for each in family.samples if each.name != "m_bucket"}
    assert others == {"m_count": 10, "m_sum": pytest.approx(2 * 3_607.039)}


def test_a_name_that_utf_8_cannot_encode_breaks_no_scrape() -> None:
    reply = exposition(lambda: [Family(MetricKind.GAUGE, "m", "A text.", ("a",), {("\udc80",): 1})])()
    assert (reply.status, reply.kind, reply.body.count(b"\n")) == (200, CONTENT_TYPE, 3)


def test_many_samples_leave_turns_to_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    exposition_text([Family(MetricKind.GAUGE, "m", "A text.", ("a",), {(str(number),): 1 for number in range(100)})])
    assert len(pauses) == 100 / turns.ITEMS
