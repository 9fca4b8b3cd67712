"""Running: `manage.py runner work` executes handlers with the models of the project."""

from concurrent.futures import ThreadPoolExecutor
from unittest import mock, skipUnless

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections
from django.test import TransactionTestCase

from runner import disconnect
from runner.django.models import TaskAttempt, TaskHistory
from shop.models import Order
from shop.tasks import break_connection, break_connection_async, ship, weigh


class WorkTests(TransactionTestCase):
    def tearDown(self) -> None:
        disconnect()
        connections.close_all()

    def work(self) -> list[tuple[str, str, object]]:
        call_command("runner", "work", "--until-idle")
        return list(TaskHistory.objects.order_by("id").values_list("handler", "state", "result"))

    def test_a_runner_executes_the_handlers_of_all_apps(self) -> None:
        order = Order.objects.create(cents=5)
        tasks = [ship.submit(order=order.pk), weigh.submit(order=order.pk)]
        self.assertEqual(self.work(), [("shop.ship", "succeeded", "shipped for 5"), ("shop.weigh", "succeeded", 5)])
        self.assertEqual([task.result(timeout="1m") for task in tasks], ["shipped for 5", 5])
        self.assertTrue(Order.objects.get().shipped)

    def test_a_runner_works_in_another_thread_than_the_main_one(self) -> None:
        order = Order.objects.create(cents=5)
        ship.submit(order=order.pk)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(call_command, "runner", "work", "--until-none-due").result()
            threads.submit(connections.close_all).result()
        self.assertTrue(Order.objects.get().shipped)

    @skipUnless(connection.vendor == "postgresql", "a file has no server that restarts")
    def test_a_lost_connection_fails_one_attempt_and_no_other(self) -> None:
        order = Order.objects.create(cents=5)
        for handler in (break_connection, ship, break_connection_async, weigh):
            handler.submit(**({} if "break" in handler.name else {"order": order.pk}))
            self.work()
        states = TaskHistory.objects.order_by("id").values_list("state", flat=True)
        self.assertEqual(list(states), ["dead", "succeeded", "dead", "succeeded"])

    def test_a_traceback_begins_in_the_handler(self) -> None:
        for handler in (ship, weigh):
            handler.submit(order=4711)
        self.work()
        tracebacks = TaskAttempt.objects.values_list("traceback", flat=True)
        self.assertEqual(["tasks.py" in text.splitlines()[1] for text in tracebacks], [True, True])
        self.assertEqual(["runner/django" in text for text in tracebacks], [False, False])

    def test_a_database_in_memory_is_refused_before_the_command_runs(self) -> None:
        if connection.vendor == "sqlite":
            with mock.patch.dict(connection.settings_dict, NAME=":memory:"), self.assertRaises(CommandError) as caught:
                call_command("runner", "work")
            self.assertEqual(caught.exception.returncode, 3)

    def test_a_failing_command_raises_with_its_exit_code(self) -> None:
        with self.assertRaises(CommandError) as caught:
            call_command("runner", "show", "4711")
        self.assertEqual(caught.exception.returncode, 5)
