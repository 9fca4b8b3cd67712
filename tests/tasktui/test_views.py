"""Saved filters, and the palette that lists them."""

from pathlib import Path

import pytest

from runner.db.database import Database
from runner.errors import InvalidInput
from runner.filter import saved
from tests.store.rows import add_live, ahead, stored
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, Watch
from tests.tasktui.test_actions import confirm


def test_a_view_is_saved_replaced_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "new" / "views.json"
    assert saved.load(path) == {}
    saved.save(path, "late mail", "queue:mail due<-5m")
    saved.save(path, "dead", "state:dead since:1h")
    saved.save(path, "dead", "state:dead")
    assert saved.load(path) == {"late mail": "queue:mail due<-5m", "dead": "state:dead"}
    assert saved.get(saved.load(path), "dead") == "state:dead"
    saved.delete(path, "dead")
    assert list(saved.load(path)) == ["late mail"]
    assert [file.name for file in path.parent.iterdir()] == ["views.json"]


def test_a_view_that_is_not_there_is_asked_for_in_vain(tmp_path: Path) -> None:
    path = tmp_path / "views.json"
    with pytest.raises(InvalidInput, match="saved views: none"):
        saved.delete(path, "dead")
    saved.save(path, "dead", "state:dead")
    with pytest.raises(InvalidInput, match="did you mean 'dead'"):
        saved.get(saved.load(path), "daed")


def test_a_view_is_part_of_a_filter_also_with_spaces_in_its_name(tmp_path: Path) -> None:
    path = tmp_path / "views.json"
    saved.save(path, "late mail", "queue:mail due<-5m")
    saved.save(path, "dead", "state:dead")
    names = [saved.reference(name) for name in saved.load(path)]
    assert names == ['@"late mail"', "@dead"]
    assert saved.expand_text(f"{names[0]} key:a@b {names[1]}", path) == "queue:mail due<-5m key:a@b state:dead"
    with pytest.raises(InvalidInput, match="unknown view 'late'"):
        saved.expand_text("@late mail", path)


@pytest.mark.parametrize("name", ["", "x" * 41, "a\x1b[31m", "two\nlines"])
def test_a_name_that_cannot_be_typed_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="printable characters"):
        saved.save(tmp_path / "views.json", name, "state:dead")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "\xff"])
def test_a_file_that_holds_no_views_is_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "views.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidInput, match=r"views\.json"):
        saved.save(path, "dead", "state:dead")
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_filter_of_the_list_is_saved_and_comes_back(database: Database, watch: Watch) -> None:
    await add_live(database, queue="mail", key="this-one")
    await add_live(database, queue="other", key="that-one")
    async with watch("tasks", filter_text="queue:mail") as operator:
        await operator.sees("this-one")
        await operator.command("views save mail")
        await operator.sees_notice("Saved mail: queue:mail; in filters: @mail")
        await operator.command("tasks")
        await operator.sees("that-one")
        await operator.command("views")
        await operator.sees_notice("mail: queue:mail")
        await operator.command("views show mail")
        await operator.until(lambda: "that-one" not in operator.text and "this-one" in operator.text)
        await operator.command("views delete mail")
        await operator.command("views show mail")
        await operator.sees_notice("unknown view 'mail'")
        await operator.command("views mail")
        await operator.sees_notice("'mail' is not show, save or delete")


@pytest.mark.slow
@ON_ONE_DATABASE
async def test_the_palette_offers_actions_screens_commands_and_views(database: Database, watch: Watch) -> None:
    id = await add_live(database, run_at=ahead(3600))
    async with watch("tasks", NARROW) as operator:
        saved.save(operator.console.session.views, "[bold]late[/x]", "due<-5m")
        await operator.sees("◔ scheduled")
        await operator.press("ctrl+p")
        await operator.sees("Retry ", " R    for tasks", " T    for tasks")
        await operator.press(*"late")
        await operator.sees("View [bold]late[/x]")
        await operator.press("escape", "ctrl+p")
        await operator.press(*"retry")
        await operator.sees("▌ Retry ")
        await operator.press("enter")
        await confirm(operator)
        await operator.sees_notice("1 changed")
        await operator.press("ctrl+p")
        await operator.press(*"audit")
        await operator.sees("▌ Audit ")
        await operator.press("enter")
        await operator.sees("retry     task 1")
        await operator.press("ctrl+p")
        await operator.press(*":pause")
        await operator.sees(":pause QUEUE [TIME] [REASON]")
        await operator.press("enter")
        await operator.until(lambda: type(operator.screen).__name__ == "CommandScreen")
        assert operator.screen.focused.value == "pause "
    assert (await stored(database, id)).version == 1


@ON_ONE_DATABASE
async def test_the_palette_offers_no_change_while_read_only(database: Database, watch: Watch) -> None:
    await add_live(database)
    async with watch("tasks", NARROW, writable=False) as operator:
        await operator.sees("○ ready")
        await operator.press("ctrl+p")
        await operator.sees("Overview ", " 1    go to this screen")
        assert "Retry" not in operator.text
        assert "for tasks" not in operator.text


def test_a_file_of_views_that_cannot_be_written_is_named_with_its_errno(tmp_path: Path) -> None:
    (tmp_path / "views.draft").mkdir()
    with pytest.raises(InvalidInput, match=rf"{tmp_path}/views.json cannot be written: Is a directory \(errno 21\)"):
        saved.save(tmp_path / "views.json", "dead", "state:dead")
