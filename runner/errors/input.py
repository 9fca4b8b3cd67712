"""Errors: what somebody typed or passed."""

from runner.errors.root import RunnerError


class InvalidInput(RunnerError):
    """The input is not valid: {why}."""

    exit_code = 2


class InvalidDuration(InvalidInput):
    """{text!r} is not a duration: {why}. Write for example 30s, 5m, 1h30m or 2d."""


class InvalidMoment(InvalidInput):
    """
    {text!r} is not a point in time: {why}. Write for example now, +15m, 14:30, tomorrow 9:00 or
    2026-11-20T14:30+01:00.
    """


class InvalidRetryPlan(InvalidInput):
    """{plan!r} is not a retry plan: {why}. Write for example 1m,5m,20m or exp:10s*2<1h or sidekiq or 30s or never."""


class InvalidFilter(InvalidInput):
    """The filter {text!r} is not understood at character {position}: {why}."""


class InvalidSort(InvalidInput):
    """Tasks cannot be sorted by {sort}: {why}."""


class NoScript(InvalidInput):
    """There is no SQL for this: {why}."""


class InvalidPayload(InvalidInput):
    """The payload does not fit handler {handler!r}: {why}."""


class PayloadTooLarge(InvalidInput):
    """
    The payload for handler {handler!r} has {size} bytes, more than the {limit} allowed. Store the data elsewhere and
    submit a reference to it, or raise the setting payload_limit.
    """


class InvalidTask(InvalidInput):
    """A task's {field} may not be {value!r}: {why}."""


class InvalidEdit(InvalidInput):
    """Cannot set {field} to {value!r}: {why}."""
