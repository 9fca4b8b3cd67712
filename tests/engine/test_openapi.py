"""The OpenAPI document of a server for HTTP executors: valid, recorded, and in step with the routes and the page."""

import json
import os
import re

import httpx
from openapi_spec_validator import validate
from starlette.routing import Route

from runner.engine.serving.dispatch import Dispatch
from runner.engine.serving.endpoints import ENDPOINTS, openapi_document
from runner.engine.serving.http_server import HttpServer
from tests.pages import DOCS

RECORDED = DOCS / "openapi.json"


def server() -> HttpServer:
    return HttpServer(Dispatch([], 15.0), [])


def test_the_document_is_valid_and_recorded() -> None:
    """Run with SCHEMAS=write to write the file anew; executors of other people follow it."""
    text = json.dumps(openapi_document(), indent=1) + "\n"
    if os.environ.get("SCHEMAS") == "write":
        RECORDED.write_text(text)
    validate(json.loads(text))
    advice = "the protocol changed; to accept it: SCHEMAS=write uv run pytest tests/engine/test_openapi.py"
    assert RECORDED.read_text() == text, advice


async def test_a_server_serves_the_document_without_a_token() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server().app), base_url="http://x") as client:
        answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.json() == openapi_document()


def test_the_document_has_each_route_and_its_messages() -> None:
    routes = {
        route.path for route in server().app.routes if isinstance(route, Route) and "POST" in (route.methods or ())
    }
    paths = openapi_document()["paths"]
    assert routes == paths.keys() == {endpoint.path for endpoint in ENDPOINTS}
    for endpoint in ENDPOINTS:
        operation = paths[endpoint.path]["post"]
        for content, model in (
            (operation["requestBody"], endpoint.request),
            (operation["responses"]["200"], endpoint.reply),
        ):
            schema = content["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{model.__name__}"}


def test_the_page_and_the_document_have_the_same_paths_and_errors() -> None:
    page = (DOCS / "http-executors.md").read_text()
    paths = openapi_document()["paths"]
    assert set(re.findall(r"/v1/\w+", page)) == paths.keys()
    listed = {status for cell in re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE) for status in cell.split(", ")}
    for path in paths.values():
        assert path["post"]["responses"].keys() - {"200", "403"} == listed - {"403"}
