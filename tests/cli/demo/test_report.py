import json
from dataclasses import replace

import pytest

from runner.cli.demo import DemoAdvice, DemoReport, advise, print_report, sum_totals
from runner.cli.demo_round import DeadTask, DemoTotal, FailureReason, Findings, SlowTask
from runner.cli.output import print_json
from runner.settings import Settings
from runner.urls import parse_url

HOSTILE = "\x1b[2J[red]\u202e/[/x]" + "very/long/" * 20 + "name.py"
FINDINGS = Findings(
    totals=[
        DemoTotal("source.count", 1_700, 1_690, 10, retried=3, seconds=1.7),
        DemoTotal("source.parse", 40, 38, 1, 0, 1),
    ],
    slowest=[SlowTask(123_456, "source.count", HOSTILE, 1.5)],
    reasons=[FailureReason("source.parse", HOSTILE, 12, 4)],
    dead=[DeadTask(number, "source.parse", HOSTILE, 3, HOSTILE) for number in range(1, 31)],
)
REPORT = DemoReport(
    database="sqlite:///tasktui.db",
    location="/tmp/tasktui.db",
    first=1,
    seconds=2.0,
    interrupted=False,
    notes=["A note."],
    findings=FINDINGS,
    advice=[DemoAdvice("tasktui", "see everything")],
)


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    print_report(REPORT)
    return capsys.readouterr().out


def test_the_report_fits_into_80_columns(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= 80


def test_a_pipe_gets_whole_files_and_reasons(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_report(REPORT)
    output = capsys.readouterr().out
    assert "…" not in output
    assert max(map(len, output.splitlines())) > 300
    assert output.count("very/long/" * 20 + "name.py  ␛[2J") == 20  # the file of a dead task beside its reason


def test_hostile_names_are_harmless_and_not_taken_for_markup(shown: str) -> None:
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "␛[2J[red]\\u202e/[/x]" in shown


def test_a_long_table_is_cut_and_says_so(shown: str) -> None:
    assert "and 10 more" in shown


def test_the_sum_stands_below_the_handlers(shown: str) -> None:
    (line,) = [line.split() for line in shown.splitlines() if line.split()[:1] == ["all"]]
    assert line == ["all", "1,740", "1,728", "11", "1", "3", "1.0", "ms"]


def test_what_did_not_happen_has_no_column(shown: str) -> None:
    assert "UNFINISHED" in shown
    assert "CANCELLED" not in shown


def test_a_stopped_round_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(REPORT, interrupted=True))
    assert "Stopped after 2.0 s: 1,739 tasks finished, 870 per second." in capsys.readouterr().out


def test_a_round_without_failures_has_no_tables_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(REPORT, findings=Findings([], [], [], [])))
    output = capsys.readouterr().out
    assert "0 tasks finished" in output
    assert "REASON" not in output


def test_json_holds_the_whole_report(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(REPORT)
    text = capsys.readouterr().out
    data = json.loads(text)
    assert data["total"] == {
        "handler": "all",
        "tasks": 1_740,
        "succeeded": 1_728,
        "dead": 11,
        "cancelled": 0,
        "unfinished": 1,
        "retried": 3,
        "seconds": 1.7,
    }
    assert [total["handler"] for total in data["totals"]] == ["source.count", "source.parse"]
    assert data["slowest"] == [{"id": 123_456, "handler": "source.count", "key": HOSTILE, "seconds": 1.5}]
    assert data["reasons"] == [{"handler": "source.parse", "reason": HOSTILE, "attempts": 12, "tasks": 4}]
    assert len(data["dead"]) == 30
    assert data["advice"] == [{"command": "tasktui", "purpose": "see everything"}]
    assert "\x1b" not in text


def test_nothing_adds_up_to_nothing() -> None:
    assert sum_totals([]) == DemoTotal("all")


def test_advice_names_a_task_that_is_there() -> None:
    commands = [command for command, _ in advise(Settings(), FINDINGS)]
    assert commands[0] == "tasktui"
    assert "runner show 1" in commands
    assert "runner tasks state:dead" in commands


def test_without_dead_tasks_none_is_mentioned() -> None:
    commands = [command for command, _ in advise(Settings(), replace(FINDINGS, dead=[]))]
    assert commands
    assert not [command for command in commands if "show" in command or "dead" in command]


def test_a_database_from_the_command_line_is_given_on() -> None:
    settings = Settings(url=parse_url("sqlite:////my file.db"))
    assert all(command.endswith(" --url 'sqlite:////my file.db'") for command, _ in advise(settings, FINDINGS))
