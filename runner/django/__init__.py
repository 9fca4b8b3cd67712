"""The Django app: add "runner.django" to INSTALLED_APPS. Importing this package loads neither Django nor SQLAlchemy.

Tasks are submitted through Django's own connection, so that they join the open transaction; `manage.py migrate` creates
the tables; `manage.py runner` is the command line; the admin shows the tasks; `runner.django.TaskBackend` runs the
tasks of `django.tasks`; and `inline` runs tasks in tests as they are submitted.
"""

from typing import TYPE_CHECKING

from runner.lazy_imports import lazy_names

if TYPE_CHECKING:
    from runner.django.backend import TaskBackend
    from runner.django.inline_tasks import inline

__all__ = ["TaskBackend", "inline"]

__getattr__ = lazy_names(__name__, {"TaskBackend": "runner.django.backend", "inline": "runner.django.inline_tasks"})
