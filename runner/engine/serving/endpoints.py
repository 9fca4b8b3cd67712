"""Endpoints of a server for HTTP executors: a path, a request and a reply each, which OpenAPI describes."""

from functools import cache
from inspect import cleandoc, getdoc
from typing import Any, NamedTuple

from pydantic.json_schema import models_json_schema

from runner.engine.serving.protocol import (
    CheckpointRequest,
    LeaseReply,
    LeaseRequest,
    LogRequest,
    NoteReply,
    Problem,
    ProgressRequest,
    PullReply,
    PullRequest,
    SettleReply,
    SettleRequest,
    WireMessage,
)

COMMON_ERRORS = {
    401: "No valid token.",
    408: "The body is too slow.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body does not fit the protocol; `error` names the field.",
    503: "Too many connections, or the database is not available: try again.",
}
"""The causes of the errors that each endpoint can answer, by status."""


class Endpoint(NamedTuple):
    """One path, which receives POST requests.

    Args:
        errors: the causes of its own errors, by status.
    """

    name: str
    request: type[WireMessage]
    reply: type[WireMessage]
    errors: dict[int, str]

    @property
    def path(self) -> str:
        """Its path in a URL."""
        return f"/v1/{self.name}"


PULL = Endpoint("pull", PullRequest, PullReply, {403: "The token may not pull one of the handlers."})
SETTLE = Endpoint("settle", SettleRequest, SettleReply, {})
HEARTBEAT = Endpoint("heartbeat", LeaseRequest, LeaseReply, {})
PROGRESS = Endpoint("progress", ProgressRequest, NoteReply, {})
LOG = Endpoint("log", LogRequest, NoteReply, {})
CHECKPOINT = Endpoint("checkpoint", CheckpointRequest, NoteReply, {})

ENDPOINTS = (PULL, SETTLE, HEARTBEAT, PROGRESS, LOG, CHECKPOINT)


DOCUMENT_PATH = "/openapi.json"
"""The path of the OpenAPI document, which needs no token."""

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
