"""The applications of docs/status-and-changes.md show the progress of a task and cancel it."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import on_sqlite
from tests.pages import DOCS, run, save

WEB_PAGE = """
import asyncio, httpx, json, socket, uvicorn, export_page, reports
from runner import Runner
from runner.client.client import get_client

def listening():
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken

async def events(web, task, **headers):
    async with web.stream("GET", f"/exports/{task}/events", headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream"), response.headers
        event = {}
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            event |= {name.strip(":"): value} if name else {}
            if not line and event:
                yield event
                event = {}

async def main():
    taken = listening()
    server = uvicorn.Server(uvicorn.Config(export_page.app, log_level="error"))
    serving = asyncio.ensure_future(server.serve([taken]))
    while not server.started:
        await asyncio.sleep(0.01)
    limits, url = httpx.Limits(max_connections=None), f"http://127.0.0.1:{taken.getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as web:
        waiting = (await web.post("/exports", params={"rows": 5})).json()["task"]
        assert "new EventSource" in (await web.get(f"/exports/{waiting}")).text
        assert (await web.get("/exports/4711/events")).status_code == 404
        refused = await web.get(f"/exports/{waiting}/events", headers={"Last-Event-ID": "none"})
        assert refused.status_code == 400, refused.text
        browsers = [events(web, waiting) for _ in range(50)]
        firsts = await asyncio.gather(*(anext(browser) for browser in browsers))
        assert {json.loads(first["data"])["state"] for first in firsts} == {"waiting"}, firsts
        following = get_client().following
        while len(following._waits.get(waiting, ())) < 50:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(browser.aclose() for browser in browsers))
        while following._waits or server.server_state.tasks:
            await asyncio.sleep(0.01)
        last = events(web, waiting)
        await anext(last)
        assert (await web.post(f"/exports/{waiting}/cancel")).status_code == 200
        assert [event["event"] async for event in last] == ["state", "end"]
        again = await web.post(f"/exports/{waiting}/cancel")
        assert (again.status_code, again.json()["detail"][:16]) == (409, "it is cancelled,"), again.text
        task = (await web.post("/exports", params={"rows": 5})).json()["task"]
        async with Runner():
            seen, cursor = [], {}
            while not seen or seen[-1]["event"] != "end":  # a browser that loses its connection after each event
                stream = events(web, task, **cursor)
                seen.append(await anext(stream))
                await stream.aclose()
                cursor = {"Last-Event-ID": seen[-1].get("id", "")}
        states = [json.loads(event["data"])["state"] for event in seen if event["event"] == "state"]
        assert states[0] in ("waiting", "running") and states[-1] == "succeeded", seen
        assert len(states) == len(set(states)), seen
        [done] = [json.loads(event["data"])["done"] for event in seen if event["event"] == "progress"][-1:]
        assert done == 5, seen
    server.should_exit = True
    await serving

asyncio.run(main())
print(reports.overview(7))
import follow
"""

VIEWS = """
import types, django
from django.conf import settings
settings.configure()
django.setup()
import json, reports, views
task = int(reports.export.submit(rows=5))
assert json.loads(views.status(None, task).content) == {"state": "waiting", "finished": False, "done": 0}
import runner
request = types.SimpleNamespace(headers={})
chunks = []
for chunk in views.events(request, task):
    chunks.append(chunk.decode())
    if len(chunks) == 1:
        runner.handle(task).cancel()
assert [chunk.split("event: ")[1].split()[0] for chunk in chunks] == ["state", "state", "end"], chunks
task = int(reports.export.submit(rows=5))
request = types.SimpleNamespace(user=types.SimpleNamespace(get_username=lambda: "ana"))
assert views.cancel(request, task).status_code == 200
assert views.cancel(request, task).status_code == 409
"""

FLASK = """
import export_site, runner
web = export_site.app.test_client()
task = web.post("/exports/5").json["task"]
assert "setTimeout(show" in web.get(f"/exports/{task}").text
assert web.get("/exports/4711/status").status_code == 404
assert web.get(f"/exports/{task}/status").json == {"state": "waiting", "finished": False, "done": 0, "total": None}
with runner.Runner():
    runner.handle(task).result(timeout=60)
assert web.get(f"/exports/{task}/status").json == {"state": "succeeded", "finished": True, "done": 5, "total": 5}
task = web.post("/exports/5").json["task"]
assert web.post(f"/exports/{task}/cancel").json == {"state": "cancelled"}
assert web.post(f"/exports/{task}/cancel").status_code == 409
"""

OWN_TRANSACTION = """
import os, orders, reports, sqlalchemy as sa
orders.engine = sa.create_engine(os.environ["TASKTUI_URL"])
task = reports.export.submit(rows=5)
try:
    orders.withdraw(7, task, "ana")
except sa.exc.OperationalError:
    assert task.status().state == "waiting"
with orders.engine.begin() as connection:
    connection.execute(sa.text("CREATE TABLE customer_order (id integer, withdrawn boolean)"))
orders.withdraw(7, task, "ana")
assert task.status().error == "terminated by ana via python: order withdrawn", task.status()
"""

WITH_FLASK = (pytest.mark.slow, pytest.mark.skipif(find_spec("flask") is None, reason="needs the group frameworks"))


@pytest.mark.slow
@on_sqlite
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (WEB_PAGE, "no export yet\n"),
        (VIEWS, ""),
        pytest.param(FLASK, "", marks=WITH_FLASK),
        (OWN_TRANSACTION, ""),
    ],
    ids=["fastapi", "django", "flask", "own transaction"],
)
def test_the_pages_show_and_cancel_tasks(program: str, printed: str, migrated_url: str, tmp_path: Path) -> None:
    save(DOCS / "status-and-changes.md", tmp_path)
    assert run(tmp_path, sys.executable, "-c", program, TASKTUI_URL=migrated_url) == printed
