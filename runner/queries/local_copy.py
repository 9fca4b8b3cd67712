"""local copy: a task record for another database, whose handlers run beside no runner of the first one."""

import json
from typing import Any

from runner.model.task import State
from runner.store.task_records import Record
from runner.text.redact import MASK, hide, mask, redact, secrets

UNBOUND: dict[str, Any] = {"hosts": "", "hosts_until": None, "expires_at": None, "timeout": None, "order_key": None}
"""Values with which a task starts anywhere, at any time, and for as long as a debugger takes."""

UNCLAIMED: dict[str, Any] = {
    "state": State.WAITING.value,
    "blocked_by": 0,
    "runner_id": None,
    "claimed_at": None,
    "started_at": None,
    "deadline_at": None,
    "cancel_requested": False,
}
"""Values of a live task that waits."""

JSON = {"payload", "result", "headers", "state", "before", "after", "tags"}
TEXTS = {"error", "message", "traceback", "line", "reason"}


def local_copy(record: Record) -> Record:
    """A record without the runner, hosts, expiry and parents of its database."""
    values = UNBOUND | (UNCLAIMED if "blocked_by" in record else {})
    return {**record, **values, "dependencies": []}


def redacted_record(record: Record) -> Record:
    """A record with masked secrets, also those of its payload and headers in other texts."""
    hidden = secrets(str(record["payload"]), record["headers"])
    copy: Record = {}
    for name, value in record.items():
        if isinstance(value, list):
            copy[name] = [{key: _redacted(key, each, hidden) for key, each in row.items()} for row in value]
        else:
            copy[name] = _redacted(name, value, hidden)
    return copy


def _redacted(name: str, value: Any, hidden: list[str]) -> Any:
    if not isinstance(value, str) or name not in JSON | TEXTS:
        return value
    if name in TEXTS:
        return mask(hide(value, hidden))
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value if name == "state" else json.dumps(MASK)
    return json.dumps(redact(hide(decoded, hidden)), ensure_ascii=False)
