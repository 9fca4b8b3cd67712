"""What operators did: all that was done together is one deed."""

import sys

import pytest

from runner.store import intervene
from runner.store.database import Database
from runner.store.intervene import By, Kind, Place, Target
from runner.store.observe import Count, deeds
from tests.store.table import put, put_many

BY = By("ana", "web-1", "restore of db-2")


async def test_what_was_done_together_is_one_deed(database: Database) -> None:
    ids = await put_many(database, 3, delay=3600.0)
    by = intervene.together(BY)
    await database.write(intervene.terminate, [Target(ids[0])], by)
    await database.write(intervene.pause, Place(Kind.QUEUE, "mail"), BY)
    await database.write(intervene.terminate, [Target(id) for id in ids[1:]], by)
    await database.write(intervene.delay, [Target(await put(database))], seconds=60.0, by=BY)
    found = await database.read(deeds)
    assert [(deed.entry.verb, deed.number) for deed in found] == [
        ("delay", Count(1)),
        ("terminate", Count(3)),
        ("pause", Count(1)),
    ]
    assert [deed.entry.verb for deed in await database.read(deeds, 2)] == ["delay", "terminate"]
    one_by_one = await database.read(deeds, 50, by.batch)
    assert sorted(deed.entry.task_id or 0 for deed in one_by_one) == ids


async def test_what_is_counted_stops_and_says_so(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = await put_many(database, 3, delay=3600.0)
    await database.write(intervene.terminate, [Target(id) for id in ids], intervene.together(BY))
    monkeypatch.setattr(sys.modules[deeds.__module__], "CAP", 2)
    (deed,) = await database.read(deeds)
    assert deed.number == Count(2, more=True)
