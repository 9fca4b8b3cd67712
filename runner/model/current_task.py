"""Current task: the task that the current context executes."""

import contextvars

from runner.model.task import Claimed

CURRENT_TASK: contextvars.ContextVar[Claimed | None] = contextvars.ContextVar("runner_task", default=None)
"""The task that the current context executes; threads of a runner and asyncio.to_thread inherit it."""
