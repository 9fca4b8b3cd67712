"""Endpoints of a server for HTTP executors: a path, a request and a reply each."""

from typing import NamedTuple

from runner.engine.serving.protocol import (
    CheckpointRequest,
    LeaseReply,
    LeaseRequest,
    LogRequest,
    NoteReply,
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
