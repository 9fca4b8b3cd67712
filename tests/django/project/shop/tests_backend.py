"""`django.tasks`: the backend of Django 6."""

import dataclasses
from typing import Any
from unittest import mock

import django
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from runner import disconnect

if django.VERSION >= (6, 0):
    from datetime import timedelta

    from django.tasks import TaskResultStatus, default_task_backend
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started

    from runner.django import inline
    from runner.django.models import LiveTask
    from shop.background import block_too_long, count_orders, flaky, give_a_function, leave, sleep_too_long, total
    from shop.models import Order
    from shop.tasks import ship

    class BackendTests(TransactionTestCase):
        def tearDown(self) -> None:
            disconnect()
            connections.close_all()

        def work(self) -> None:
            call_command("runner", "work", "--until-idle")

        def test_a_task_returns_its_result(self) -> None:
            result = total.enqueue(5, 6, tax=0.5)
            self.assertEqual((result.status, result.args, result.kwargs), ("READY", [5, 6], {"tax": 0.5}))
            self.assertEqual(total.get_result(result.id).status, TaskResultStatus.READY)
            self.work()
            result.refresh()
            self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 16.5, 1))
            self.assertLessEqual(result.enqueued_at, result.started_at)
            self.assertLessEqual(result.started_at, result.finished_at)
            again = total.get_result(result.id)
            self.assertEqual((again.args, again.kwargs, again.backend), ([5, 6], {"tax": 0.5}, "default"))

        def test_a_coroutine_is_enqueued_and_executed(self) -> None:
            Order.objects.create(cents=5)
            result = async_to_sync(count_orders.aenqueue)()
            row = LiveTask.objects.get(pk=result.id)
            self.assertEqual((row.handler, row.queue, row.priority), ("shop.background.count_orders", "mail", 6))
            self.work()
            result = async_to_sync(count_orders.aget_result)(result.id)
            self.assertEqual((result.return_value, result.task.priority), (1, 10))

        def test_a_failure_is_retried_and_recorded(self) -> None:
            result = flaky.enqueue("no luck")
            self.work()
            result.refresh()
            self.assertEqual((result.status, result.attempts, len(result.errors)), ("SUCCESSFUL", 2, 1))
            self.assertEqual(result.return_value, {"id": result.id, "attempt": 2})
            self.assertIs(result.errors[0].exception_class, ValueError)
            self.assertIn("no luck", result.errors[0].traceback)
            self.assertEqual(len(result.worker_ids), 2)

        def test_a_dead_task_has_failed(self) -> None:
            result = total.enqueue("x")
            self.work()
            result.refresh()
            self.assertEqual((result.status, result.is_finished, result.attempts), ("FAILED", True, 2))
            self.assertIs(result.errors[-1].exception_class, TypeError)
            with self.assertRaises(ValueError):
                _ = result.return_value

        def test_a_task_is_part_of_the_transaction(self) -> None:
            with self.assertRaises(LookupError), transaction.atomic():
                total.enqueue(1)
                raise LookupError
            self.assertEqual(LiveTask.objects.count(), 0)

        def test_time_queue_and_priority_of_a_call(self) -> None:
            later = timezone.now() + timedelta(hours=1)
            for level, priority in ((-100, 1), (-1, 4), (0, 5), (1, 6), (25, 6), (26, 7), (100, 9)):
                result = total.using(run_after=later, queue_name="mail", priority=level).enqueue(1)
                row = LiveTask.objects.get(pk=result.id)
                self.assertEqual((row.priority, row.queue, row.shown()), (priority, "mail", "scheduled"))
            self.assertEqual(total.get_result(result.id).task, result.task)

        def test_what_is_not_valid_is_refused(self) -> None:
            with self.assertRaises(InvalidTask):
                total.using(queue_name="unknown")
            for id in ("4711", "x", str(ship.submit(order=1))):
                with self.assertRaises(TaskResultDoesNotExist):
                    default_task_backend.get_result(id)
            with self.assertRaises(TaskResultMismatch):
                count_orders.get_result(total.enqueue(1).id)
            for value in ({1, 2}, timezone.now()):
                with self.assertRaisesMessage(TypeError, "Unsupported type"):
                    total.enqueue(value)
            with self.settings(INSTALLED_APPS=["shop"]):
                self.assertIn("runner.django", default_task_backend.check()[0].msg)

        def test_a_stored_result_equals_that_of_enqueue(self) -> None:
            later = timezone.now() + timedelta(hours=1)
            for task in (total, total.using(priority=10), total.using(run_after=later, queue_name="mail")):
                result = task.enqueue(1, tax=0.5)
                self.assertEqual(total.get_result(result.id), result)
                before = dataclasses.asdict(result)
                result.refresh()
                self.assertEqual(dataclasses.asdict(result), before)

        def test_every_failure_has_its_class_and_sends_task_finished(self) -> None:
            finished: dict[str, Any] = {}

            def receive(task_result: Any, **_: object) -> None:
                finished[task_result.id] = (task_result.status, task_result.errors[-1].exception_class)

            task_finished.connect(receive)
            self.addCleanup(task_finished.disconnect, receive)
            failures: dict[Any, type[BaseException]] = {
                leave: SystemExit,
                give_a_function: TypeError,
                sleep_too_long: TimeoutError,
            }
            failures |= {block_too_long: TimeoutError, total: TypeError}
            results = [(task.enqueue(*("x" if task is total else "")), kind) for task, kind in failures.items()]
            with mock.patch.dict("os.environ", {"TASKTUI_TIMEOUT": "500ms"}), self.assertLogs("django.tasks", "ERROR"):
                self.work()
            for result, kind in results:
                self.assertEqual(finished[result.id], ("FAILED", kind))
                result.refresh()
                self.assertEqual((result.status, result.attempts), ("FAILED", 2))

        def test_signals_are_sent(self) -> None:
            events: list[tuple[str, str, str]] = []
            receivers = {}
            for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):

                def receive(task_result: object, name: str = name, **_: object) -> None:
                    events.append((name, task_result.task.name, task_result.status))

                receivers[name] = receive
                signal.connect(receive)
            total.enqueue(1)
            count_orders.enqueue()
            self.work()
            self.assertEqual(
                sorted(events)[:2], [("enqueued", "count_orders", "READY"), ("enqueued", "total", "READY")]
            )
            self.assertEqual([event[0] for event in sorted(events)].count("finished"), 2)
            self.assertEqual({event[2] for event in events if event[0] == "finished"}, {"SUCCESSFUL"})

    class InlineBackendTests(TestCase):
        def setUp(self) -> None:
            self.enterContext(inline())

        def test_the_result_of_enqueue_has_finished(self) -> None:
            result = total.enqueue(5, tax=0.5)
            self.assertEqual((result.status, result.return_value, result.attempts), ("SUCCESSFUL", 7.5, 1))
            self.assertLessEqual(result.enqueued_at, result.started_at)
            self.assertLessEqual(result.started_at, result.finished_at)
            self.assertEqual(total.get_result(result.id), result)
            Order.objects.create(cents=5)
            self.assertEqual(count_orders.enqueue().return_value, 1)

        async def test_an_async_test_gets_it_from_aenqueue(self) -> None:
            await Order.objects.acreate(cents=5)
            for task, arguments, value in ((total, (5,), 5.0), (count_orders, (), 1)):
                self.assertEqual((await task.aenqueue(*arguments)).return_value, value)

        def test_a_failure_is_retried_if_it_is_due(self) -> None:
            with self.assertLogs("django.tasks", "ERROR") as logs:
                for task, kind in ((leave, SystemExit), (give_a_function, TypeError)):
                    result = task.enqueue()
                    self.assertEqual((result.status, result.attempts), ("FAILED", 2))
                    self.assertIs(result.errors[-1].exception_class, kind)
            self.assertEqual(len(logs.output), 2)
            self.assertEqual(flaky.enqueue("no luck").return_value["attempt"], 2)

        def test_a_later_task_is_ready(self) -> None:
            result = total.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
            self.assertEqual((result.status, result.attempts), ("READY", 0))

        def test_signals_are_sent_in_order(self) -> None:
            states: list[str] = []

            def receive(task_result: Any, **_: object) -> None:
                states.append(task_result.status)

            for signal in (task_enqueued, task_started, task_finished):
                signal.connect(receive)
                self.addCleanup(signal.disconnect, receive)
            with self.assertLogs("django.tasks", "DEBUG") as logs:
                total.enqueue(1)
            self.assertEqual(states, ["READY", "RUNNING", "SUCCESSFUL"])
            self.assertEqual([text for text in logs.output if "None" in text], [])
