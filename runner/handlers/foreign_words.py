"""Foreign words: calls and options of other task systems, each with the one to write here."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from runner.errors import InvalidHandler

F = TypeVar("F", bound=Callable[..., Any])

SUBMIT = "submit(...) with the arguments of the function"
LATER = 'options(delay="10m").submit(...)'
PART = "new(...), for batch([...])"

CALLS: Mapping[str, str] = {
    "apply": "the handler itself, which runs the function without a task",
    "apply_async": LATER,
    "configure": "options(...)",
    "defer": SUBMIT,
    "defer_async": "submit_async(...) with the arguments of the function",
    "delay": SUBMIT,
    "enqueue": SUBMIT,
    "enqueue_at": LATER.replace("delay=", "run_at="),
    "enqueue_in": LATER,
    "kiq": "submit_async(...) with the arguments of the function",
    "map": "submit_many([{...}, {...}])",
    "message": PART,
    "s": PART,
    "schedule": LATER,
    "send": SUBMIT,
    "send_with_options": LATER,
    "si": PART,
    "starmap": "submit_many([{...}, {...}])",
}
"""The calls of a task, by name."""

TIMES = "max_attempts=, which counts the first attempt too"
PAUSES = 'retry="exp:10s*2<10m", or retry="1m,5m,20m"; every exception is retried, unless on_error= sets another rule'

OPTIONS: Mapping[str, str] = {
    "acks_late": "nothing: a task is finished when its outcome is stored",
    "at_front": "priority=9",
    "autoretry_for": PAUSES,
    "bind": "a parameter ctx: Context of the function",
    "countdown": 'delay="10m", or seconds',
    "default_retry_delay": PAUSES,
    "depends_on": "after=",
    "eta": "run_at=",
    "ignore_result": "nothing: a result is a column of its task",
    "job_id": "key= to search, unique_key= to deduplicate",
    "job_timeout": 'timeout="30s"',
    "lock": "order_key=",
    "max_backoff": PAUSES,
    "max_retries": TIMES,
    "meta": "headers=",
    "min_backoff": PAUSES,
    "queue_name": "queue=",
    "queueing_lock": "unique_key=",
    "rate_limit": 'rate="5/s"',
    "retries": TIMES,
    "retry_backoff": PAUSES,
    "retry_delay": PAUSES,
    "schedule_at": "run_at=",
    "schedule_in": 'delay="10m", or seconds',
    "soft_time_limit": 'timeout="30s"',
    "task_id": "key= to search, unique_key= to deduplicate",
    "time_limit": 'timeout="30s"',
}
"""The options of a task, by name."""


NAMELESS = 'use @handler("name"), with the name under which tasks store it'
"""The reason against a decorator without a name."""


def converted_call(handler: str, name: str) -> str:
    """Return the message of a missing attribute of a handler, with the call to write if it is a foreign word."""
    missing = f"handler {handler!r} has no {name}"
    return f"{missing}(): write {CALLS[name]}; see docs/porting.md" if name in CALLS else missing


def converts_options(function: F) -> F:
    """Let a function name the option to write for a foreign one that it does not have."""
    own = function.__kwdefaults__ or {}

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError:
            for name, value in options.items():
                if name not in own and name in OPTIONS:
                    text = f"{function.__name__}() has no {name}: write {_with_value(name, value)}; see docs/porting.md"
                    raise TypeError(text) from None
            if function.__name__ == "handler" and not args and "name" not in options:
                raise InvalidHandler(name="", why=NAMELESS) from None
            raise

    return call  # type: ignore[return-value] # the same signature


def _with_value(name: str, value: object) -> str:
    """The option to write, with the value that was meant."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return OPTIONS[name]
    if OPTIONS[name] is TIMES:
        return f"max_attempts={int(value) + 1}, which counts the first attempt too"
    return OPTIONS[name].replace('"10m", or seconds', f"{value}").replace('"30s"', f"{value}")
