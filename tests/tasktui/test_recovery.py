"""The end of an incident on the overview: the fate of its tasks, and the key that writes the report."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from runner.db.database import Database
from runner.model.task import State
from tests.queries.test_recovery import end_outage
from tests.store.rows import ahead
from tests.tasktui.conftest import NARROW, ON_ONE_DATABASE, WIDE, Watch

pytestmark = ON_ONE_DATABASE


@pytest.mark.representatives(2)
@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_an_incident_ends_visibly_and_a_key_writes_its_report(
    database: Database, watch: Watch, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = await end_outage(database, succeeded=4)
    if size == WIDE:  # the death is no alert any more
        async with database.writing() as tx:
            history = tx.tables.history
            died = sa.update(history).where(history.c.state == State.DEAD.value)
            await tx.execute(died.values(finished_at=ahead(-62 * 60)))
    async with watch("overview", size) as operator:
        end = "All clear since " if size == WIDE else "Works again since "
        await operator.sees(end, "payments.charge was down 55m: 6 waited, 1 d")
        if size == WIDE:
            await operator.sees("payments.charge was down 55m: 6 waited, 1 died, 4 done since.", "i  incident")
        await operator.press("i")
        await operator.sees_notice("Wrote ")
        await operator.press("i")
        await operator.sees_notice("-2.md")
    report, _ = sorted(tmp_path.glob("incident-*.md"), key=lambda path: len(path.name))
    assert "payments.charge" in report.read_text(encoding="utf-8")
    assert f"{now:%Y%m%d}" in report.name or now.hour < 2


async def test_without_an_outage_the_key_names_the_command(watch: Watch) -> None:
    async with watch("overview") as operator:
        await operator.press("i")
        await operator.sees_notice("No outage has ended in the last two hours; :incident 3:00 4:00")
