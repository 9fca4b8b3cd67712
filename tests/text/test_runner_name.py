"""The name of a runner, the same in lists, sentences and alerts."""

from runner.text.runner_name import process_name, runner_name


def test_a_runner_has_one_name_as_far_as_it_is_known() -> None:
    assert process_name("web-3", 4117) == "web-3:4117"
    assert runner_name(7, "web-3", 4117) == "runner 7 (web-3:4117)"
    assert runner_name(7, "web-3") == "runner 7 (web-3)"
    assert runner_name(7, None) == "runner 7 (an unknown host)"
    assert process_name("web\x1b[31m", 1) == "web\u241b[31m:1"
