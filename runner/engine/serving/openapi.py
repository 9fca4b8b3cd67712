"""OpenAPI document of a server for HTTP executors, from its endpoints and the messages of the protocol."""

from functools import cache
from inspect import cleandoc, getdoc
from typing import Any

from pydantic.json_schema import models_json_schema

from runner.engine.serving.endpoints import COMMON_ERRORS, ENDPOINTS, Endpoint
from runner.engine.serving.protocol import Problem, WireMessage

PATH = "/openapi.json"
"""Its path in a URL, which needs no token."""

SCHEMAS = "#/components/schemas/"

DESCRIPTION = """
An executor pulls tasks, runs them, renews their leases with heartbeats, and settles them.
The page about HTTP executors in the documentation of tasktui explains each step.
"""


@cache
def openapi_document() -> dict[str, Any]:
    """Return the document."""
    messages: dict[type[WireMessage], None] = {Problem: None}
    for endpoint in ENDPOINTS:
        messages |= dict.fromkeys((endpoint.request, endpoint.reply))
    _, definitions = models_json_schema([(each, "validation") for each in messages], ref_template=SCHEMAS + "{model}")
    return {
        "openapi": "3.1.0",
        "info": {"title": "runner serve", "version": "1", "description": cleandoc(DESCRIPTION)},
        "security": [{"token": []}],
        "paths": {endpoint.path: {"post": _operation(endpoint)} for endpoint in ENDPOINTS},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(definitions["$defs"].items())),
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    errors = dict(sorted((COMMON_ERRORS | endpoint.errors).items()))
    replies = {"200": {"description": _summary(endpoint.reply), "content": _content(endpoint.reply)}}
    replies |= {str(status): {"description": text, "content": _content(Problem)} for status, text in errors.items()}
    return {
        "operationId": endpoint.name,
        "summary": _summary(endpoint.request),
        "requestBody": {"required": True, "content": _content(endpoint.request)},
        "responses": replies,
    }


def _content(model: type[WireMessage]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": SCHEMAS + model.__name__}}}


def _summary(model: type[WireMessage]) -> str:
    return (getdoc(model) or "").partition("\n")[0]
