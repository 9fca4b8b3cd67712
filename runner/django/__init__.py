"""The Django app: add "runner.django" to INSTALLED_APPS. Importing this package loads neither Django nor SQLAlchemy.

Tasks are submitted through Django's own connection, so that they join the open transaction; `manage.py migrate` creates
the tables; `manage.py runner` is the command line; the admin shows the tasks; and `runner.django.TaskBackend` runs the
tasks of `django.tasks`.
"""

from typing import TYPE_CHECKING

from runner.lazy_imports import lazy_names

if TYPE_CHECKING:
    from runner.django.backend import TaskBackend

__all__ = ["TaskBackend"]

__getattr__ = lazy_names(__name__, {"TaskBackend": "runner.django.backend"})
