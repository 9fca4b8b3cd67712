"""Settings: TASKTUI and DATABASES decide, and `manage.py check` and `manage.py migrate` report what they do."""

import os
from io import StringIO
from unittest import mock

from django.core.management import call_command
from django.db import connection, connections
from django.test import SimpleTestCase, TestCase

from runner.django.apps import check_settings, database_url
from runner.settings import load


class SettingsTests(SimpleTestCase):
    def reported(self, **runner: object) -> str:
        with self.settings(TASKTUI=runner):
            return " ".join(str(message.msg) for message in check_settings())

    def test_settings_come_from_runner_and_the_environment_wins(self) -> None:
        with self.settings(TASKTUI={"CONCURRENCY": 7, "THREADS": 3}), mock.patch.dict(os.environ, TASKTUI_THREADS="4"):
            settings = load(max_attempts=2)
        self.assertEqual((settings.concurrency, settings.threads, settings.max_attempts), (7, 4, 2))
        self.assertEqual(settings.url.database, str(connection.settings_dict["NAME"]))
        self.assertEqual(settings.handlers, ("shop.tasks",))

    def test_handlers_may_be_text_or_a_list(self) -> None:
        for handlers in ("shop.more, shop.tasks", ["shop.more"]):
            with self.settings(TASKTUI={"HANDLERS": handlers}):
                self.assertEqual(load().handlers, ("shop.tasks", "shop.more"))

    def test_mistakes_are_reported_by_check(self) -> None:
        self.assertEqual(self.reported(), "")
        self.assertIn("did you mean 'concurrency'?", self.reported(CONCURENCY=5))
        self.assertIn("(TASKTUI in Django's settings)", self.reported(CONCURRENCY=0))
        self.assertIn(
            "DATABASE of TASKTUI is 'other', but DATABASES defines only: default", self.reported(DATABASE="other")
        )
        with self.settings(TASKTUI=["CONCURRENCY"]):
            self.assertIn("must be a dictionary", check_settings()[0].msg)

    def test_another_kind_of_database_is_refused(self) -> None:
        with mock.patch.object(connections["default"], "vendor", "mysql"):
            self.assertIn("the task tables need SQLite or PostgreSQL", self.reported())

    def test_the_url_has_the_server_the_login_and_the_options_of_django(self) -> None:
        values = {"NAME": "shop", "USER": "app", "PASSWORD": "p@ss", "HOST": "db-1,db-2", "PORT": "5433"}
        options = {"sslmode": "require", "pool": True, "connect_timeout": 3}
        with (
            mock.patch.object(connections["default"], "vendor", "postgresql"),
            mock.patch.dict(connection.settings_dict, **values, OPTIONS=options),
        ):
            url = database_url("default")
        self.assertEqual(str(url), "postgresql://app:***@db-1:5433,db-2:5433/shop?sslmode=require&connect_timeout=3")
        self.assertEqual(url.password, "p@ss")


class TablesTests(TestCase):
    def test_the_tables_belong_to_no_migration_of_the_project(self) -> None:
        call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())

    def test_the_command_line_finds_the_tables_of_the_test_database(self) -> None:
        call_command("runner", "migrate", "--check")
