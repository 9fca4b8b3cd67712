"""Commands, completion, forms and confirmation words."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from runner.errors import InvalidEdit, InvalidInput, InvalidMoment
from runner.filter.parse import parse_filter
from runner.model.schedule import ScheduleSpec
from runner.model.task import Shown
from runner.queries.audit import AuditRecord, undoable
from runner.queries.audit_words import brief_changes, column_words, restored_values
from runner.queries.counting import Count
from runner.queries.schedules import ScheduleRow
from runner.queries.task.detail import TaskDetail
from runner.queries.task_list.row import TaskRow
from tasktui.actions.action import ActionTarget, parse_limit
from tasktui.actions.actions import ACTIONS
from tasktui.actions.edit import BULK_FIELDS
from tasktui.actions.edit_form import changes, entries
from tasktui.actions.edit_preview import meanings, outlook, preview, ruler
from tasktui.actions.plan import plan, plan_rows
from tasktui.actions.schedule import edit_form
from tasktui.commands.syntax import Command, complete_command, complete_filter, filter_of, parse_command, target_of
from tasktui.render.rows import plain
from tasktui.session.session import Job
from tasktui.session.write_lock import ASKED, ReadOnly, WriteLock

NOW = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)
NAMES = {"queue": ["mail", "media"], "handler": ["smtp.send", "odd name"], "view": ["late"]}


def row(id: int = 1, shown: Shown = Shown.READY, **values: Any) -> TaskRow:
    task = TaskRow(
        id, shown, 0, "mail", "smtp.send", None, 1, 0, 4, 0, NOW, NOW, None, None, None, None, None, False, None
    )
    return task._replace(**values)


def story(task: TaskRow, payload: str = '{"to": "ana"}', retry: str | None = "1m,5m") -> TaskDetail:
    return TaskDetail(task, None, payload, None, retry, None, (), None, None, None, (), (), (), None, NOW)


def entry(id: int, undo_of: int | None = None) -> AuditRecord:
    return AuditRecord(id, 1, None, undo_of, NOW, "ana", "web-1", "edit", None, "{}", "{}")


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("{}", '{"paused_at": "2026-11-22 10:00:00", "paused_by": "ana", "paused_why": "restore"}', []),
        ('{"max_running": null}', '{"max_running": 24, "limited_at": "2026-11-22 10:00:00"}', ["at most 24 running"]),
        ('{"priority": 1}', '{"priority": 9}', ["priority: 1 -> 9"]),
        ('{"key": "a b"}', '{"key": "7"}', ['key: a b -> "7"']),
        (
            '{"payload": "{\\"n\\": 1, \\"password\\": \\"old\\", \\"to\\": \\"ana\\"}"}',
            '{"payload": "{\\"n\\": 2, \\"password\\": \\"new\\", \\"cc\\": \\"li\\"}"}',
            ["payload n: 1 -> 2", "payload password: *** -> ***", "payload to: ana -> none", "payload cc li"],
        ),
        (
            '{"payload": "{\\"password\\": \\"old\\"}"}',
            '{"payload": "{\\"password\\": \\"new\\"}"}',
            ["payload password: *** -> ***"],
        ),
        ('{"payload": "[1]"}', '{"payload": "{}"}', ["payload: [1] -> {}"]),
        ('{"key": "true"}', '{"key": null}', ['key: "true" -> none']),
        ('{"max_attempts": null}', '{"max_attempts": 6}', ["max attempts: handler's -> 6"]),
        ('{"timeout": 5.0}', '{"timeout": null}', ["timeout: 5.0 -> handler's"]),
        ('{"cancel_requested": false}', '{"cancel_requested": true}', ["termination: not requested -> requested"]),
        ("{}", f'{{"run_at": "{NOW:%Y-%m-%d} 23:59:58"}}', ["run at 23:59"]),
        (
            f'{{"run_at": "{NOW:%Y-%m-%d} 18:10:02"}}',
            f'{{"run_at": "{NOW:%Y-%m-%d} 18:10:41"}}',
            ["run at: 18:10:02 -> 18:10:41"],
        ),
        (
            f'{{"run_at": "{NOW:%Y-%m-%d} 18:10:02"}}',
            f'{{"run_at": "{NOW:%Y-%m-%d} 18:11:02"}}',
            ["run at: 18:10 -> 18:11"],
        ),
        ("{}", '{"run_at": "2026-11-22 10:00:00", "priority": 9}', ["run at 22 Nov 10:00", "priority 9"]),
        ("{}", '{"key": "2026-99-99 10:00:00 x"}', ["key 2026-99-99 10:00:00 x"]),
        ('{"priority": 1}', '{"priority": 2, "signal": "paid"}', ["signal paid", "priority: 1 -> 2"]),
    ],
)
def test_the_list_of_changes_leaves_out_what_other_columns_show(before: str, after: str, shown: list[str]) -> None:
    assert brief_changes(replace(entry(1), before=before, after=after), UTC) == shown


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ('{"max_attempts": null}', '{"max_attempts": 6}', ("max attempts", "6", "handler's")),
        ('{"rate_limit": null}', '{"rate_limit": 600, "rate_period": 60.0}', ("limits", "600/min started", "no limit")),
        ('{"cancel_requested": false}', '{"cancel_requested": true}', ("termination", "requested", "not requested")),
        ('{"key": null}', '{"key": "7"}', ("key", '"7"', "none")),
        ("{}", '{"paused_by": "ana"}', ("paused by", "ana", "none")),
        ('{"payload": "{\\"n\\": 1}"}', '{"payload": "{\\"n\\": 2}"}', ("payload n", "2", "1")),
    ],
)
def test_an_undo_shows_the_values_that_return_in_words(before: str, after: str, shown: tuple[str, str, str]) -> None:
    assert list(restored_values(replace(entry(1), before=before, after=after), UTC)) == [shown]


def test_the_audit_has_the_words_of_the_forms() -> None:
    spec = ScheduleSpec("mail.send", "every 5m")
    schedule = ScheduleRow("nightly", spec, None, (), None, None, None, None, (), None, 1)
    session: Any = SimpleNamespace(now=lambda: NOW)
    of_schedule = edit_form(ACTIONS["schedules edit"], session, schedule).fields
    labels = {field.name: field.label for field in (*entries(story(row())), *BULK_FIELDS, *of_schedule)}
    del labels["spread"]  # no column
    assert {name: column_words(name).capitalize() for name in labels} == labels


@pytest.mark.parametrize(
    ("typed", "command"),
    [
        ("tasks queue:mail state:dead", Command("tasks", ("queue:mail", "state:dead"))),
        (":q", Command("q", ())),
        ("  wr 10m why not ", Command("write", ("10m", "why", "not"))),
        ("task 7", Command("task", ("7",))),
    ],
)
def test_a_command_is_read_by_its_beginning(typed: str, command: Command) -> None:
    assert parse_command(typed) == command


@pytest.mark.parametrize(
    ("typed", "target", "rest"),
    [
        ("limit mail concurrency=5 deploy", "queue mail", ("concurrency=5", "deploy")),
        ("limit queue mail --concurrency 5 deploy", "queue mail", ("concurrency=5", "deploy")),
        ("limit handler smtp.send --rate=5/s", "handler smtp.send", ("rate=5/s",)),
        ("limit handler smtp.send --default as agreed", "handler smtp.send", ("default", "as", "agreed")),
        ("limit queue concurrency=5", "queue queue", ("concurrency=5",)),
        ("pause --handler smtp.send 30m deploy", "handler smtp.send", ("30m", "deploy")),
        ("pause mail --until 30m --reason deploy", "queue mail", ("30m", "deploy")),
        ("pause queue 30m", "queue queue", ("30m",)),
        ("resume handler:smtp.send", "handler smtp.send", ()),
    ],
)
def test_a_queue_or_a_handler_is_named_as_on_the_command_line(typed: str, target: str, rest: tuple[str, ...]) -> None:
    named, words = target_of(parse_command(typed))
    assert (str(named), words) == (target, rest)


@pytest.mark.parametrize(
    ("typed", "hint"), [("r", "ambiguous: runners, reports, resume"), ("tsks", "did you mean 'tasks'")]
)
def test_a_command_that_is_not_known_is_explained(typed: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        parse_command(typed)


@pytest.mark.parametrize(
    ("typed", "completion"),
    [
        ("que", "queue:"),
        ("err", "error~"),
        ("due", None),
        ("state:de", "state:dead"),
        ("state:dead,ret", "state:dead,retrying"),
        ("state:dead -queue:ma", "state:dead -queue:mail"),
        ("handler:smtp", "handler:smtp.send"),
        ("handler:odd", None),
        ("", None),
        ("state:dead ", None),
        ('"que', None),
    ],
)
def test_a_filter_is_completed(typed: str, completion: str | None) -> None:
    assert complete_filter(typed, NAMES) == completion


@pytest.mark.parametrize(
    ("typed", "completion"),
    [
        ("pa", "pause"),
        ("pause ma", "pause mail"),
        ("pause handler:sm", "pause handler:smtp.send"),
        ("pause handler:odd", None),
        ("pause mail ", "pause mail 30m "),
        ("resume mail ", None),
        ("pause ", None),
        ("write ", "write 10m "),
        ("write ma", None),
        ("tasks queue:ma", "tasks queue:mail"),
        ("tasks queue:mail sta", "tasks queue:mail state:"),
        ("views de", "views delete"),
        ("views show la", "views show late"),
        ("views show x", None),
        ("q", None),
    ],
)
def test_a_command_line_is_completed(typed: str, completion: str | None) -> None:
    assert complete_command(typed, NAMES) == completion


def test_a_filter_for_any_value_reads_back() -> None:
    text = filter_of(handler='a "b" *', error="x, y")
    (handler, error) = parse_filter(text, NOW, UTC).terms
    assert (handler.value, error.value) == ('a "b" *', "x, y")


def test_every_action_has_a_key_of_its_own_in_upper_case() -> None:
    keys = [(action.target is ActionTarget.SCHEDULE, action.key) for action in ACTIONS.values()]
    assert len(set(keys)) == len(keys)  # no screen has both schedules and tasks
    assert all(key.isupper() for _, key in keys)


def test_a_plan_skips_ineligible_tasks() -> None:
    made = plan(ACTIONS["delay"], [row(1), row(2, Shown.DEAD), row(3, Shown.SCHEDULED, version=7)])
    assert [tuple(target) for target in made.targets] == [(1, 0), (3, 7)]
    assert made.groups == {(Shown.READY, "mail"): 1, (Shown.DEAD, "mail"): 1, (Shown.SCHEDULED, "mail"): 1}
    assert made.eligible == Count(2)
    assert made.skipped == {"it is dead, not waiting": 1}


def test_a_plan_warns_of_last_attempts() -> None:
    """A retry that is tried on one task while the cause lasts is the end of that task."""
    tried = [row(1, Shown.RETRYING, attempt=3), row(2, Shown.RETRYING, attempt=2), row(3, Shown.DEAD, attempt=4)]
    assert plan(ACTIONS["retry"], tried).last == 1
    assert plan(ACTIONS["delay"], tried).last == 0
    assert "Caution          1  with one attempt left" in plain(
        plan_rows(plan(ACTIONS["retry"], tried), "here", 80, "", low=False)
    )


def test_the_figures_of_a_capped_plan_are_of_its_first_tasks() -> None:
    made = plan(ACTIONS["retry"], [row(1, Shown.DEAD), row(2, Shown.DEAD)])
    shown = (
        plain(plan_rows(replace(made, eligible=Count(2, more)), "here", 80, "", low=False)) for more in (False, True)
    )
    assert ["2 dead   of the first 2" in text for text in shown] == [False, True]


def test_a_plan_names_its_obstacles_in_full() -> None:
    sentence = "The breaker of payments.charge is open: its tasks wait for the next probe."
    made = replace(plan(ACTIONS["retry"], [row(1, Shown.DEAD)]), obstacles=(sentence,))
    _, *rows = plain(plan_rows(made, "here", 40, "", low=False)).splitlines()
    assert " ".join(line.strip() for line in rows[:2]) == sentence
    assert max(map(len, rows[:2])) <= 40


@pytest.mark.parametrize(("typed", "limit"), [("", None), ("all", None), ("1", 1), ("4,120", 4120)])
def test_a_limit_is_a_number_or_all(typed: str, limit: int | None) -> None:
    assert parse_limit(typed) == limit


@pytest.mark.parametrize("typed", ["0", "-1", "some", "1.5", "9" * 20])
def test_another_amount_is_refused(typed: str) -> None:
    with pytest.raises(InvalidInput, match="number of tasks"):
        parse_limit(typed)


def test_work_tells_how_far_it_has_come() -> None:
    work = Job("Retry", 4_120, began=100.0)
    assert work.label(100.0) == "Retry: 0 of 4,120 (0 %); ctrl+x stops it"
    work.done = 1_030
    assert work.label(102.0) == "Retry: 1,030 of 4,120 (25 %), 515 a second, 6s left; ctrl+x stops it"
    work.note = "waiting for 10 of them"
    assert work.label(102.0) == "Retry: 1,030 of 4,120 (25 %); waiting for 10 of them; ctrl+x stops it"
    work.stop()
    assert Job("Retry", None, 0.0, 500, stopping=True).label(1.0) == "Retry: 500, 500 a second; stopping"


def test_what_was_taken_back_is_not_taken_back_again() -> None:
    assert undoable([entry(3, undo_of=2), entry(2), entry(1)]) == entry(1)
    assert undoable([entry(2, undo_of=1), entry(1)]) is None


def test_only_edited_entries_change() -> None:
    shown = {line.name: line.value for line in entries(story(row()))}
    assert changes(shown, story(row()), UTC).edited() == {}
    typed = shown | {"run_at": "+15m", "timeout": "1m30s", "retry": "none", "priority": "9"}
    assert changes(typed, story(row()), UTC).edited() == {
        "run_at": NOW + timedelta(minutes=15),
        "timeout": 90.0,
        "retry": None,
        "priority": 9,
    }


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [("priority", "high", InvalidEdit), ("max_attempts", "-1", InvalidEdit), ("run_at", "25:00", InvalidMoment)],
)
def test_an_invalid_entry_is_rejected_with_its_reason(name: str, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        changes({name: text}, story(row()), UTC)
    (lines,) = preview({name: text}, story(row()), UTC)
    assert text in lines


def test_a_preview_lists_the_next_runs_to_the_end_of_the_plan() -> None:
    lines = preview({"run_at": "+10m", "max_attempts": "3"}, story(row()), UTC)
    assert lines == [
        "runs if every attempt fails immediately: 13:10:00, 13:11:00, 13:16:00, then dead",
        "times in UTC (+00:00)",
    ]


def test_each_text_of_an_edit_has_its_meaning() -> None:
    typed = {"run_at": "+10m", "max_attempts": "6", "retry": "none", "priority": "12", "timeout": "30s"}
    texts = {name: f"{sign}{text}" for name, (sign, text, _) in meanings(typed, story(row()), UTC).items()}
    assert texts == {
        "run_at": "✓13:10:00 UTC, in 10m; was 13:00:00",
        "max_attempts": "✓was 4; 0 used, 6 left",
        "retry": "✓was 1m,5m",
        "priority": "✗priorities range from 1 to 9",
        "timeout": "✓was handler's",
        "expires_at": "never",
        "hosts": "unchanged",
        "key": "unchanged",
        "payload": "unchanged, ctrl+e opens $EDITOR",
    }


def test_the_plan_of_the_handler_is_not_called_none() -> None:
    task = replace(story(row(max_attempts=None), retry=None), handler_retry="2m,8m\x1b")
    values = {entry.name: entry.value for entry in entries(task)}
    assert [values[name] for name in ("retry", "max_attempts", "timeout")] == ["handler's"] * 3
    assert changes(values | {"retry": "none", "timeout": "handler's"}, task, UTC).edited() == {}
    texts = {name: text for name, (_, text, _) in meanings({"timeout": "5s"}, task, UTC).items()}
    assert texts["retry"] == "2m,8m␛, from the handler"
    assert (texts["max_attempts"], texts["timeout"]) == ("the handler's own; 0 used", "was handler's")
    assert meanings({"retry": "5m"}, task, UTC)["retry"].text == "was 2m,8m␛, from the handler"
    own = story(row(), retry="1h")
    assert changes({"retry": "handler's", "max_attempts": "none"}, own, UTC).edited() == {
        "retry": None,
        "max_attempts": None,
    }
    assert meanings({}, story(row(), retry=None), UTC)["retry"].text == "the handler's own"


def test_the_values_of_the_handler_are_shown_in_force() -> None:
    task = replace(story(row(max_attempts=None, attempt=2)), handler_max_attempts=5, handler_timeout=0.0)
    shown = {name: text for name, (_, text, _) in meanings({}, task, UTC).items()}
    assert shown["max_attempts"] == "5, from the handler; 2 used"
    assert shown["timeout"] == "none, from the handler"
    changed = meanings({"max_attempts": "6", "timeout": "9s"}, replace(task, handler_timeout=90.0), UTC)
    assert changed["max_attempts"].text == "was 5, from the handler; 2 used, 4 left"
    assert changed["timeout"].text == "was 1m30s, from the handler"
    assert meanings({}, story(row(attempt=1)), UTC)["max_attempts"].text == "unchanged; 1 used"


def test_the_runs_before_and_after_an_edit_are_on_one_ruler() -> None:
    runs = outlook({"run_at": "+10m", "max_attempts": "3", "retry": "1m,5m"}, story(row(), retry="1h"), UTC)
    before, after, axis = ("".join(text for text, _ in line) for line in ruler(runs, NOW, UTC, 70))
    assert re.fullmatch(r"before   ◇1─+ 2 at 14:00 >", before)
    assert re.fullmatch(r"after    ─+◆1◆2─+◆3─+ then dead", after)
    assert " 13:10 " in axis
    assert len(axis) == 9 + 47
    assert len(ruler(outlook({}, story(row()), UTC), NOW, UTC, 70)) == 2


@pytest.mark.parametrize("most", [None, 5])
def test_the_old_time_of_a_task_without_its_own_attempts_stays_on_the_ruler(most: int | None) -> None:
    old = NOW + timedelta(days=2, hours=3, minutes=50, seconds=24)
    unclaimed = row(shown=Shown.SCHEDULED, run_at=old, max_attempts=None)
    task = replace(story(unclaimed, retry=None), handler_max_attempts=most)
    before, after, axis = (plain([line]) for line in ruler(outlook({"run_at": "+15m"}, task, UTC), NOW, UTC, 70))
    assert re.fullmatch(r"before   ─+ 1 at 22 Nov 16:50 >", before)
    assert len(before) <= 70
    assert "◆1" in after
    assert len(axis) < len(after)
    assert meanings({"run_at": "+15m"}, task, UTC)["run_at"].text == "13:15:00 UTC, in 15m; was 22 Nov 16:50:24"


def test_a_preview_lists_one_run_if_the_handler_has_the_plan() -> None:
    lines = preview({"run_at": "+10m"}, story(row(), retry=None), UTC)
    assert "runs if every attempt fails immediately: 13:10:00, then by the handler's retry plan" in lines
    assert "13:10:00, then dead" in preview({"run_at": "+10m", "max_attempts": "1"}, story(row(), retry=None), UTC)[0]


def test_a_preview_announces_that_a_dead_task_is_requeued() -> None:
    dead = story(row(1, Shown.DEAD, attempt=4))
    assert preview({"priority": "5"}, dead, UTC) == [
        "the task is dead: saving requeues it with all its attempts",
        "runs if every attempt fails immediately: 13:00:00, 13:01:00, 13:06:00, 13:11:00, then dead",
        "times in UTC (+00:00)",
    ]


def test_a_preview_counts_many_runs_and_shows_a_changed_offset() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    typed = {"run_at": "2027-03-27 12:00", "max_attempts": "9", "retry": "12h"}
    runs, times = preview(typed, story(row()), berlin)[-2:]
    assert runs.startswith(
        "runs if every attempt fails immediately: 27 Mar 12:00:00, 28 Mar 00:00:00, 28 Mar 13:00:00,"
    )
    assert runs.endswith("3 more until 31 Mar 13:00:00, then dead")
    assert times == "times in CET (+01:00), then CEST (+02:00)"


@pytest.mark.parametrize(
    ("text", "why"), [("2027-03-28 02:30", "skip that time"), ("2027-10-31 02:30", "have that time")]
)
def test_a_local_time_that_is_none_or_two_is_not_taken(text: str, why: str) -> None:
    (lines,) = preview({"run_at": text}, story(row()), ZoneInfo("Europe/Berlin"))
    assert why in lines
    assert "+02:00" in lines


def test_a_preview_lists_payload_differences_only() -> None:
    text = story(row(), '{"to": "ana", "n": 1, "old": true}')
    lines = preview({"payload": '{"to": "ana", "n": 2, "token": "geheim"}'}, text, UTC)
    assert lines[:3] == ["payload: n: 1 -> 2", "payload: - old: true", 'payload: + token: "***"']
    assert "geheim" not in "".join(lines)
    (refused,) = preview({"payload": "[1]"}, text, UTC)
    assert "must be a JSON object" in refused


@pytest.mark.parametrize(
    "payload",
    [
        '{"text": "\\u202e"}',
        "no JSON",
        '{"a": 1, "a": 2}',
        '{"n": 0.1000000000000000055}',
        '{"n": 1e400}',
        '{"n": 1e-99999999999999999999}',
    ],
)
def test_a_payload_that_cannot_be_shown_as_it_is_is_not_edited(payload: str) -> None:
    (line,) = [line for line in entries(story(row(), payload)) if line.name == "payload"]
    assert line.lock_reason
    assert "hunter2" not in line.value
    assert changes({"payload": '{"new": 1}'}, story(row(), payload), UTC).edited() == {}


def test_a_lock_opens_for_a_time_and_closes_by_itself() -> None:
    lock = WriteLock(-inf)
    assert lock.label(0) == "READ-ONLY"
    lock.open(100, ("10m", "mend", "it"))
    assert lock.is_open(699)
    assert lock.label(100) == "WRITE 10m00s left"
    assert not lock.is_open(700)
    assert lock.reason == "mend it"


def test_a_lock_does_not_open_for_nothing_or_for_long() -> None:
    for words in (("10m",), ("2h", "because")):
        with pytest.raises(InvalidInput):
            WriteLock(-inf).open(0, words)
    with pytest.raises(ReadOnly):
        WriteLock(barrier=ASKED).open(0, ("10m", "because"))
