"""Terms: what a handler gives to tasks that do not say it themselves, filled up from the settings."""

from runner.handlers import Handler
from runner.policy.retry import parse_plan
from runner.settings import Settings
from runner.store.claim import Terms


def terms(handler: Handler, settings: Settings) -> Terms:
    """The terms of a handler's tasks.

    Raises:
        InvalidRetryPlan: when the plan in force is none: now rather than at the first failure.
    """
    given = handler.defaults
    default = settings.timeout.total_seconds() if settings.timeout else None
    parse_plan(given.retry or settings.retry)
    return Terms(given.max_attempts or settings.max_attempts, given.timeout if given.timeout is not None else default)
