"""Process handlers whose worker processes have Sentry."""

import os

import sentry_sdk

from runner import handler
from runner.contrib.sentry import RunnerIntegration

if "SENTRY_WORKER" in os.environ:
    sentry_sdk.init("http://key@127.0.0.1:9/1", integrations=[RunnerIntegration()], default_integrations=False)


@handler("sentry.process", executor="process", max_attempts=1)
def in_process(number: int, password: str = "") -> None:
    sentry_sdk.set_tag("number", number)
    sentry_sdk.add_breadcrumb(message=f"crumb {number}")
    raise ValueError(f"bad {number} {password}")
