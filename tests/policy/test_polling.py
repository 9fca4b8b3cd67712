import pytest

from runner.policy.polling import EVERY, QUICK, SHARE, LookAhead, OrderKeyWatch, Pace


def test_the_first_survey_is_due_immediately() -> None:
    assert Pace().is_due(0.0)


def test_surveys_keep_their_interval() -> None:
    pace = Pace()
    pace.record(100.0, 100.001)
    assert not pace.is_due(100.0 + EVERY)
    assert pace.is_due(100.001 + EVERY)


def test_slow_surveys_take_a_small_share_of_the_time() -> None:
    pace = Pace()
    pace.record(100.0, 102.0)
    pace.record(103.0, 106.0)
    assert not pace.is_due(106.0 + 2.0 * SHARE - 0.01)
    assert pace.is_due(106.0 + 2.0 * SHARE)


def test_a_single_slow_survey_does_not_postpone_the_next_one() -> None:
    pace = Pace()
    pace.record(100.0, 130.0)
    assert pace.is_due(130.0 + EVERY)
    pace.record(131.0, 131.001)
    assert pace.is_due(131.001 + EVERY)
    pace.record(133.0, 163.0)
    assert pace.is_due(163.0 + EVERY)


def test_only_a_query_that_stays_slow_is_barred_until_it_is_due() -> None:
    pace = Pace(every=0.0)
    assert not pace.is_barred(0.0)
    pace.record(1.0, 3.0)
    assert not pace.is_barred(3.0)
    pace.record(4.0, 4.0 + 2 * QUICK)
    assert pace.is_barred(4.0 + 2 * QUICK)
    assert not pace.is_barred(4.0 + 2 * QUICK + SHARE * 2 * QUICK)
    pace.record(8.0, 8.0 + QUICK / 2)
    assert not pace.is_barred(8.0 + QUICK / 2)


def test_the_pause_after_a_slow_query_is_bounded() -> None:
    pace = Pace(every=0.0, most=3.0)
    pace.record(97.0, 99.0)
    pace.record(100.0, 102.0)
    assert not pace.is_due(104.99)
    assert pace.is_due(105.0)


def ahead(per_second: float, seconds: int = 10, **options: int) -> int:
    """The prefetch after some seconds of steady work."""
    look = LookAhead(**options)
    look.tasks(1_000.0)
    for step in range(1, 10 * seconds + 1):
        look.ends += round(per_second / 10)
        tasks = look.tasks(1_000.0 + step / 10)
    return tasks


def test_fast_work_is_prefetched() -> None:
    assert ahead(10_000) == pytest.approx(10_000 * LookAhead().span, abs=1)
    assert ahead(1_000) == pytest.approx(1_000 * LookAhead().span, abs=1)


def test_slow_work_is_not_prefetched() -> None:
    assert ahead(10) == 0


def test_the_prefetch_is_bounded() -> None:
    assert ahead(10**6, most=500) == 500


def test_a_new_runner_does_not_prefetch() -> None:
    assert LookAhead().tasks(1_000.0) == 0


def test_an_old_rate_is_discarded() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ends += 10_000
    assert look.tasks(1_000.5) > 0
    assert look.tasks(1_010.0) == 0


def test_slow_tasks_that_end_together_are_not_prefetched() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ends += 100
    look.busy += 1.0
    assert look.tasks(1_000.1) == 5


def test_a_pool_that_waits_for_full_claims_prefetches_ten_times_as_many() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.waited(100)
    look.ends += 99
    assert look.tasks(1_000.01) == 0
    look.ends += 1
    assert look.tasks(1_000.04) == 1_000


def test_a_full_claim_of_slow_tasks_is_not_prefetched() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.waited(40)
    look.ends += 40
    look.busy += 40.0
    assert look.tasks(1_040.0) == 0


def test_a_quick_task_among_few_proves_nothing() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.waited(1)
    look.ends += 1
    assert look.tasks(1_000.01) == 0


def test_tasks_of_before_prove_nothing_about_a_full_claim() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ends += 80
    look.waited(80)
    look.ends += 64  # of 80, the others run for long
    assert look.tasks(1_000.02) == 0


def test_full_claims_with_slow_tasks_among_quick_ones_do_not_stop_the_estimate() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    for claim in range(1, 6):
        look.waited(90)
        look.ends += 80
        tasks = look.tasks(1_000.0 + claim / 50)
    assert tasks == pytest.approx(4_000 * look.span, abs=2)


def test_a_rate_is_kept_within_its_span() -> None:
    look = LookAhead()
    look.tasks(1_000.0)
    look.ends += 1_000
    rate = look.tasks(1_000.1)
    look.ends += 50_000
    assert look.tasks(1_000.11) == rate > 0


def test_the_end_of_a_task_schedules_a_look_for_the_next_one_of_its_order_key() -> None:
    watch = OrderKeyWatch()
    watch.record_survey(has_heads=True)
    watch.record_untaken(11.0, 0.1)
    watch.record_scan()
    assert watch.wait(11.1) is None
    assert watch.record_end()
    assert watch.wait(11.1) == pytest.approx(0.3)
    assert watch.wait(12.0) == 0.0
    assert not watch.record_end()  # it is scheduled
    watch.record_untaken(13.0, 60.0)
    assert watch.wait(13.0) == EVERY


def test_the_end_of_a_task_during_a_scan_schedules_a_look_after_it() -> None:
    watch = OrderKeyWatch()
    watch.record_scan()
    watch.record_survey(has_heads=True)
    assert not watch.record_end()  # before the claim that finds the next one waiting
    watch.record_untaken(10.0, 0.1)
    assert watch.wait(10.0) == pytest.approx(0.4)


def test_no_look_follows_without_tasks_that_wait_for_their_order_key() -> None:
    watch = OrderKeyWatch()
    watch.record_survey(has_heads=False)
    watch.record_untaken(10.0, 0.1)
    assert not watch.record_end()
    assert watch.wait(20.0) is None
