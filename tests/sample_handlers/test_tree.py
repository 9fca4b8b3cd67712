import asyncio
from pathlib import Path

import pytest

from runner import Context
from sample_handlers import tree
from sample_handlers.tree import digest_tree


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(7):
        file = tmp_path / f"part{number % 2}" / f"{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"x = {number}\n")
    return tmp_path


async def test_an_interrupted_digest_continues_and_equals_an_undisturbed_one(
    folder: Path, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "PART", 2)
    whole = await digest_tree(ctx, folder)
    assert whole["files"] == 7
    states = []
    other = Context(1, None, 1, 3, 1, None, ctx.logger)
    save = other.notes.save

    async def interrupted(state: object) -> None:
        await save(state)
        states.append(state)
        if len(states) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(other.notes, "save", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await digest_tree(other, folder)
    assert (other.state or {})["files"] == 4
    assert await digest_tree(other, folder) == whole
    assert len(states) == 4, "it began again"


async def test_a_changed_file_changes_the_digest(folder: Path, ctx: Context) -> None:
    before = await digest_tree(ctx, folder)
    (folder / "part0" / "0.py").write_text("changed")
    ctx.notes.state = None
    assert (await digest_tree(ctx, folder))["sha256"] != before["sha256"]
