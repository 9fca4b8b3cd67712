"""`runner alerts test`: a notice to the receivers, at once."""

import pytest

from runner.cli.exit_codes import Exit
from tests.alerts.servers import Answers, web_server
from tests.cli.conftest import Call

REFUSED = "bad=http://127.0.0.1:1/x#hunter2"


def test_each_receiver_is_tried_and_a_failure_is_named(cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    with web_server(answers) as url:
        monkeypatch.setenv("TASKTUI_ALERT_RECEIVERS", f"good={url},{REFUSED}")
        both, one = cli("alerts", "test"), cli("alerts", "test", "good")
        document = cli("alerts", "test", "--json").document
    assert (both.code, one.code) == (Exit.ERROR, Exit.OK)
    good, bad = both.out.splitlines()
    assert good == "good=http://127.0.0.1: took the notice"
    assert "[Errno 111] Connection refused" in bad
    assert "hunter2" not in both.out
    assert [bool(each["problem"]) for each in document["receivers"]] == [False, True]
    assert len(answers.requests) == 3


def test_a_receiver_that_does_not_exist_is_named_with_the_others(cli: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKTUI_ALERT_RECEIVERS", REFUSED)
    assert "no receiver has the name good; use bad" in cli("alerts", "test", "good").err
    monkeypatch.setenv("TASKTUI_ALERT_RECEIVERS", "")
    assert "the setting alert_receivers names no receiver" in cli("alerts", "test").err
