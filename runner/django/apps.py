"""TasktuiConfig: connects this package to a Django project: settings, client, connections and tables."""

from typing import Any

from asgiref.sync import sync_to_async
from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks, mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import module_has_submodule

from runner.client.client import use_client
from runner.django.connection import (
    DjangoClient,
    begin_attempt,
    clear_tables,
    database_alias,
    end_attempt,
    migrate_tables,
)
from runner.errors import RunnerError
from runner.handlers.registry import REGISTRY, Handler
from runner.settings import load
from runner.settings.loading import use_application
from runner.settings.sources import SettingLayer
from runner.urls import DatabaseUrl
from runner.urls.libpq import OPTIONS, Host

ORIGIN = "TASKTUI in Django's settings"
MODULE = "tasks"
"""The module of an app that defines handlers."""


class TasktuiConfig(AppConfig):
    """The app that "runner.django" in INSTALLED_APPS adds to a project."""

    name = "runner.django"
    label = "tasktui"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect this package to the project. No database is opened."""
        use_application(django_settings)
        use_client(DjangoClient)
        REGISTRY.wrap(between_connections, prepare="django:setup")
        pre_migrate.connect(self.before_migrate, sender=self)
        post_migrate.connect(self.after_flush, sender=self)
        checks.register(check_settings)

    def before_migrate(self, using: str, verbosity: int = 1, **_: Any) -> None:
        """Create or upgrade the tables before the migrations of the project, which may submit tasks."""
        if using == database_alias():
            migrate_tables(using, verbosity)

    def after_flush(self, using: str, plan: Any = None, **_: Any) -> None:
        """Empty the tables when a TransactionTestCase flushes the database of a test.

        Django flushes only the tables that it manages. Unlike `migrate`, `flush` has no plan. Outside of tests, which
        have an `outbox`, no task is deleted.
        """
        if plan is None and hasattr(mail, "outbox") and using == database_alias():
            clear_tables(using)


def django_settings() -> SettingLayer:
    """Return the settings of the project: its TASKTUI, the URL of its database, and the handlers of its apps.

    Raises:
        ImproperlyConfigured: TASKTUI is not a dictionary, or its DATABASE is not an alias of DATABASES.
    """
    options = getattr(settings, "TASKTUI", {})
    if not isinstance(options, dict):
        raise ImproperlyConfigured(f"TASKTUI must be a dictionary such as {{'CONCURRENCY': 20}}, not {options!r}")
    values = {name.lower(): value for name, value in options.items() if name != "DATABASE"}
    modules = [
        f"{app.name}.{MODULE}"
        for app in apps.get_app_configs()
        if app.module and module_has_submodule(app.module, MODULE)
    ]
    others = values.get("handlers", ())
    others = others.split(",") if isinstance(others, str) else others  # as in the environment
    values["handlers"] = (*modules, *(name.strip() for name in others if name.strip() not in modules))
    values.setdefault("url", database_url(database_alias()))
    return SettingLayer(values, lambda name: "DATABASES in Django's settings" if name == "url" else ORIGIN)


def database_url(alias: str) -> DatabaseUrl:
    """Return the URL of a database of the project; that of the test database while tests run.

    Args:
        alias: a key of DATABASES.

    Raises:
        ImproperlyConfigured: DATABASES does not have the alias, or it is neither SQLite nor PostgreSQL.
    """
    if alias not in connections.settings:
        aliases = ", ".join(sorted(connections.settings))
        raise ImproperlyConfigured(f"DATABASE of TASKTUI is {alias!r}, but DATABASES defines only: {aliases}")
    connection = connections[alias]
    values: dict[str, Any] = connection.settings_dict
    if connection.vendor == "sqlite":
        return DatabaseUrl("sqlite", str(values["NAME"]))
    if connection.vendor != "postgresql":
        why = f"the task tables need SQLite or PostgreSQL, but the database {alias!r} is {connection.display_name}"
        raise ImproperlyConfigured(f"{why}: set DATABASE in TASKTUI to the alias of another one")
    options = {name: str(value) for name, value in values["OPTIONS"].items() if name in OPTIONS}
    # Django connects with libpq's default, so that a runner must not demand more of the same server.
    options.setdefault("sslmode", "prefer")
    hosts = str(values["HOST"]).split(",") if values["HOST"] else []
    ports = str(values["PORT"]).split(",") if values["PORT"] else [""]
    places = [Host(host, int(ports[min(at, len(ports) - 1)] or 0) or None) for at, host in enumerate(hosts)]
    if not places and ports != [""]:
        places = [Host("", int(ports[0]))]
    login = {"user": values["USER"] or None, "password": values["PASSWORD"] or None}
    return DatabaseUrl("postgresql", str(values["NAME"]), **login, hosts=tuple(places), options=(*options.items(),))


def between_connections(handler: Handler) -> Any:
    """Wrap a handler as Django wraps a request: it closes broken and expired connections before and after."""
    if handler.is_async:
        begin = sync_to_async(begin_attempt, thread_sensitive=True)
        end = sync_to_async(end_attempt, thread_sensitive=True)

        async def on_loop(**arguments: Any) -> Any:
            savepoint, error = await begin(), None
            try:
                result = await handler.function(**arguments)
            except BaseException as raised:
                error = raised
            await end(savepoint)
            if error is not None:
                raise error
            return result

        return on_loop

    def in_thread(**arguments: Any) -> Any:
        savepoint = begin_attempt()
        try:
            return handler.function(**arguments)
        except KeyboardInterrupt as error:
            if DjangoClient.inline is not None:
                DjangoClient.inline.interrupt = error  # ctrl-c ends the test
            raise
        finally:
            end_attempt(savepoint)

    return in_thread


def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report mistakes in TASKTUI by `manage.py check`."""
    try:
        load()
    except (RunnerError, ImproperlyConfigured) as error:
        return [checks.Error(str(error), id="tasktui.E001")]
    return []
