"""runner schedules: from adding a schedule to undoing its deletion, and every wrong input with its reason."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.cli.exit_codes import Exit
from runner.db.transaction import Transaction
from runner.db.types import db_later, db_now
from runner.handlers.options import SCHEDULE_OPTIONS
from runner.handlers.registry import REGISTRY
from runner.model.schedule import ScheduleSpec
from runner.model.task import NewTask
from runner.store.schedules.tick import tick
from tests.cli.conftest import Call, Store
from tests.conftest import on_sqlite


async def _make_due(tx: Transaction) -> None:
    await tx.execute(sa.update(tx.tables.schedule).values(next_at=db_later(db_now(), -60.0)))


@pytest.fixture
def nightly(cli: Call, store: Store) -> str:
    added = cli("schedules", "add", "nightly", "a.b", "--cron", "0 3 * * *", "--tz", "Europe/Berlin", "--priority", 5)
    assert (added.code, added.out.splitlines()[0]) == (Exit.OK, "added schedule nightly")
    assert " 03:00:00 CE" in added.out
    return "nightly"


def test_a_schedule_is_listed_shown_and_changed(cli: Call, nightly: str) -> None:
    assert "daily at 03:00 Europe/Berlin" in cli("schedules").out
    assert cli("schedules", "edit", nightly, "--every", "1h", "--queue", "mail").code == Exit.OK
    shown = cli("schedules", "show", nightly, "--json").document
    assert (shown["rule"], shown["options"]) == ("every 1h", '{"priority": 5, "queue": "mail"}')
    assert len(shown["next"]) == 10
    assert cli("schedules", "pause", nightly, "--until", "5m", "--reason", "deploy").code == Exit.OK
    assert "paused" in cli("schedules", "list").out
    assert "deploy, resumes in " in cli("schedules", "show", nightly).out
    assert cli("schedules", "resume", nightly).out.startswith("schedule nightly resumed")
    assert cli("schedules", "run", nightly).code == Exit.OK
    assert "has no unfinished run" in cli("schedules", "free", nightly).out
    assert cli("schedules", "delete", nightly).code == Exit.OK
    assert cli("schedules", "show", nightly).code == Exit.NOT_FOUND
    last = cli("audit", "--json").document["entries"][0]
    assert (last["verb"], last["target"]) == ("delete", "schedule nightly")
    assert cli("undo", last["id"]).code == Exit.OK
    assert cli("schedules", "show", nightly).code == Exit.OK


@on_sqlite
def test_the_remedy_of_a_schedule_whose_id_is_not_valid_is_its_deletion(cli: Call, store: Store) -> None:
    id = "nightly\xa0report"
    spec = ScheduleSpec("a.b", "every 1h").values()
    store.write(lambda tx: tx.execute(sa.insert(tx.tables.schedule).values(id=id, next_at=db_now(), **spec)))
    store.write(tick)
    delete = "runner schedules delete $'nightly\\U000000a0report'"  # a terminal shows a blank
    printed = [" ".join(cli(command).out.split()) for command in ("check", "alerts")]
    assert [delete in text for text in printed] == [True, True], printed
    assert "schedules edit" not in " ".join(printed)
    assert cli("schedules", "delete", id).code == Exit.OK


def test_a_schedule_takes_every_option_that_its_tasks_may_have(cli: Call) -> None:
    words = ["--key", "k", "--queue", "mail", "--priority", 5, "--max-attempts", 3, "--retry", "1m", "--timeout", "30s"]
    words += ["--expires", "1h", "--tag", "a", "--tag", "b", "--bucket", 7, "--tenant", "acme"]
    words += ["--hosts", "web-1,web-2", "--hosts-for", "10m", "--header", "request-id=a1"]
    assert cli("schedules", "add", "all", "a.b", "--every", "1h", *words).code == Exit.OK
    options = json.loads(cli("schedules", "show", "all", "--json").document["options"])
    assert options.keys() == set(SCHEDULE_OPTIONS)
    assert (options["bucket"], options["tenant"], options["hosts"], options["hosts_for"]) == (
        7,
        "acme",
        "web-1,web-2",
        600.0,
    )
    assert options["headers"] == {"request-id": "a1"}


@on_sqlite
def test_the_last_runs_of_a_schedule_are_shown(cli: Call, store: Store) -> None:
    cli("schedules", "add", "often", "a.b", "--every", "30d")  # one tick is due, and the next one is far
    store.write(_make_due)
    store.write(tick)
    answer = cli("schedules", "show", "often", "--json")
    assert not answer.err
    (run,) = answer.document["runs"]
    assert (run["task"], run["outcome"], run["state"]) == (1, "submitted", "ready")
    assert "○ ready" in cli("schedules", "show", "often").out
    assert "○" in cli("schedules").out


@on_sqlite
def test_a_handler_that_no_runner_ever_had_is_a_warning(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY, "_handlers", {})
    assert cli("schedules", "add", "first", "mail.sned", "--every", "1h").err == ""  # no runner has started yet
    store.claim("mail.send")
    wrong = cli("schedules", "add", "hourly", "mail.sned", "--every", "1h")
    why = "runner: no runner ever had handler mail.sned, did you mean 'mail.send'; its tasks wait until a runner has it"
    assert (wrong.code, wrong.err.strip()) == (Exit.OK, why)
    assert cli("schedules", "add", "daily", "mail.send", "--every", "24h").err == ""


@pytest.mark.slow
def test_a_queue_that_is_similar_to_a_known_one_is_a_warning(
    cli: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(REGISTRY, "_handlers", {})  # handlers of other tests would add a warning of their own
    store.submit(NewTask("mail.send", queue="letters"))
    similar = "runner: queue leters has never been used, did you mean 'letters'\n"
    for words in (("add", "daily", "mail.send", "--every", "24h"), ("edit", "daily")):
        assert cli("schedules", *words, "--queue", "leters").err == similar
        assert cli("schedules", "edit", "daily", "--queue", "letters").err == ""
    assert cli("schedules", "edit", "daily", "--queue", "unlike").err == ""


@on_sqlite
def test_a_rule_is_previewed_without_a_database(cli: Call) -> None:
    preview = cli("schedules", "preview", "--cron", "30 2 29 2 *", "--json")
    assert [tick[5:16] for tick in preview.document["next"]] == ["02-29T02:30"] * 10


@pytest.mark.representatives(4)
@on_sqlite
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("add", "x"), Exit.BAD_INPUT, "name the handler"),
        (("add", "x", "a.b"), Exit.BAD_INPUT, "give one of"),
        (("add", "x", "a.b", "--cron", "61 * * * *"), Exit.BAD_INPUT, "Invalid value '61 * * * *' for `rule`"),
        (("add", "x", "a.b", "--every", "1h", "--tz", "Mars"), Exit.BAD_INPUT, "no such time zone"),
        (("add", "x", "a.b", "--every", "1h", "--payload", "[1]"), Exit.BAD_INPUT, "not a JSON object"),
        (("add", "x", "a.b", "--every", "1h", "--misfire", "all"), Exit.BAD_INPUT, '"all N"'),
        (("add", "nightly", "a.b", "--every", "1h"), Exit.CONFLICT, "There is a schedule with the id 'nightly'"),
        (("add", "x", "a.b", "--every", "1h", "--broadcast"), Exit.BAD_INPUT, "See runner schedules --help."),
        (("pause",), Exit.BAD_INPUT, "name the schedule"),
        (("pause", "nigtly"), Exit.NOT_FOUND, "did you mean 'nightly'"),
        (("run", "nightly", "--every", "1h"), Exit.BAD_INPUT, "use schedules edit"),
        (("resume", "nightly", "--until", "1h"), Exit.BAD_INPUT, "--until belongs to"),
        (("preview", "nightly"), Exit.BAD_INPUT, "preview takes a rule"),
    ],
)
def test_wrong_input_is_refused_with_its_reason(
    cli: Call, nightly: str, words: tuple[str, ...], code: int, why: str
) -> None:
    refused = cli("schedules", *words)
    assert (refused.code, why in refused.err) == (code, True), refused.err


def test_a_refused_schedule_leaves_no_new_file(cli: Call, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    refused = cli("schedules", "add", "x", "a.b", "--cron", "99 *", "--url", f"sqlite:///{file}")
    assert (refused.code, file.exists()) == (Exit.BAD_INPUT, False), refused.err
    assert cli("schedules", "add", "x", "a.b", "--every", "1h", "--url", f"sqlite:///{file}").code == Exit.OK
    assert file.exists()


@pytest.mark.slow
def test_check_reports_schedules_that_cannot_run_or_do_not_run(cli: Call, nightly: str) -> None:
    def findings() -> list[tuple[str, str]]:
        checks = cli("check", "--json").document["checks"]
        return [(each["verdict"], each["found"]) for each in checks if each["topic"] == "schedules"]

    assert findings() == [("ok", "1 schedule on time")]
    cli("schedules", "pause", nightly, "--reason", "deploy")
    ((verdict, text),) = findings()
    assert (verdict, "schedule nightly" in text, "deploy" in text) == ("note", True, True)
