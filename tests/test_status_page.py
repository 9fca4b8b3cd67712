"""The applications of docs/status-and-changes.md show the progress of a task and cancel it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import on_sqlite
from tests.test_readme import DOCS, blocks

WEB_PAGE = """
import asyncio, httpx, export_page, reports
from runner import Runner

async def main():
    web = httpx.AsyncClient(transport=httpx.ASGITransport(export_page.app), base_url="http://shop")
    async with web:
        waiting = (await web.post("/exports", params={"rows": 5})).json()["task"]
        assert "<progress" in (await web.get(f"/exports/{waiting}")).text
        assert (await web.post(f"/exports/{waiting}/cancel")).status_code == 200
        again = await web.post(f"/exports/{waiting}/cancel")
        assert (again.status_code, again.json()["detail"][:16]) == (409, "it is cancelled,"), again.text
        assert (await web.get("/exports/4711/status")).status_code == 404
        task = (await web.post("/exports", params={"rows": 5})).json()["task"]
        async with Runner():
            status = {"finished": False}
            while not status["finished"]:
                status = (await web.get(f"/exports/{task}/status")).json()
        assert (status["state"], status["finished"]) == ("succeeded", True), status

asyncio.run(main())
print(reports.overview(7))
"""

VIEWS = """
import types, django
from django.conf import settings
settings.configure()
django.setup()
import json, reports, views
task = int(reports.export.submit(rows=5))
assert json.loads(views.status(None, task).content) == {"state": "waiting", "finished": False, "done": 0}
request = types.SimpleNamespace(user=types.SimpleNamespace(get_username=lambda: "ana"))
assert views.cancel(request, task).status_code == 200
assert views.cancel(request, task).status_code == 409
"""


@on_sqlite
@pytest.mark.parametrize(("program", "printed"), [(WEB_PAGE, "no export yet\n"), (VIEWS, "")])
def test_the_pages_show_and_cancel_tasks(program: str, printed: str, migrated_url: str, tmp_path: Path) -> None:
    for block in blocks(DOCS / "status-and-changes.md", "python"):
        (tmp_path / block.first.removeprefix("# ")).write_text(block.text)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TASKTUI_", "PG"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=inherited | {"TASKTUI_URL": migrated_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, printed), done.stderr
