"""Submitting from Django: every submit is part of the transaction that is open in the thread."""

from functools import partial

from django.db import OperationalError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase

from runner import batch, find, find_async, unfinished
from runner.django.connection import migrate_tables
from runner.django.models import LiveTask
from runner.errors import DuplicateTask
from shop.models import Order
from shop.tasks import ship, weigh


def keys() -> list[str]:
    return list(LiveTask.objects.order_by("id").values_list("key", flat=True))


def place_order(key: str, *, fails: bool = False) -> None:
    with transaction.atomic():
        order = Order.objects.create(cents=5)
        ship.options(key=key).submit(order=order.pk)
        if fails:
            raise LookupError


class SubmitTests(TestCase):
    def test_a_submit_commits_and_rolls_back_with_the_atomic_block_around_it(self) -> None:
        with self.assertRaises(LookupError):
            place_order("lost", fails=True)
        place_order("kept")
        self.assertEqual(keys(), ["kept"])
        self.assertEqual(Order.objects.count(), 1)

    def test_a_refused_submit_leaves_the_transaction_usable(self) -> None:
        once = ship.options(unique_key="one", on_duplicate="error", key="one")
        with transaction.atomic():
            once.submit(order=1)
            with self.assertRaises(DuplicateTask):
                once.submit(order=1)
            Order.objects.create(cents=5)
        self.assertEqual((keys(), Order.objects.count()), (["one"], 1))

    def test_a_submit_in_a_broken_transaction_is_refused(self) -> None:
        with transaction.atomic():
            transaction.set_rollback(True)
            with self.assertRaises(TransactionManagementError):
                ship.submit(order=1)

    def test_on_commit_submits_after_the_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            transaction.on_commit(partial(ship.options(key="after").submit, order=1))
            self.assertEqual(keys(), [])
        self.assertEqual(keys(), ["after"])

    def test_a_batch_is_part_of_the_transaction_too(self) -> None:
        tasks = batch([ship.new(order=1), weigh.new(order=2)], callback=ship.new(order=3))
        stored = dict(LiveTask.objects.values_list("id", "state"))
        self.assertEqual([stored[id] for id in (*tasks.members, tasks.callback)], ["waiting", "waiting", "blocked"])

    async def test_an_asynchronous_submit_is_part_of_the_transaction_of_the_test(self) -> None:
        await weigh.options(key="async").submit_async(order=1)
        self.assertEqual([task.key async for task in LiveTask.objects.all()], ["async"])

    def test_a_change_of_a_task_is_part_of_the_transaction(self) -> None:
        task = ship.options(key="seven").submit(order=7)
        with self.assertRaises(LookupError), transaction.atomic():
            task.cancel("no stock", by="ana")
            self.assertEqual(task.status().state, "cancelled")
            raise LookupError
        self.assertEqual(
            (find(ship, "seven"), unfinished(ship, "seven"), task.status().state), (task, [task], "waiting")
        )

    async def test_an_asynchronous_change_is_part_of_the_transaction_of_the_test(self) -> None:
        task = await weigh.options(key="async").submit_async(order=1)
        await task.reschedule_async("1h")
        status = await task.status_async()
        self.assertGreater(status.run_at, status.submitted_at)
        self.assertEqual(await find_async(weigh, "async"), task)

    def test_a_database_without_the_tables_names_the_command_that_creates_them(self) -> None:
        with self.assertRaises(Exception) as caught, transaction.atomic(), self.settings(TASKTUI={}):
            LiveTask.objects.all().delete()
            with connection.cursor() as cursor:
                cursor.execute(f"ALTER TABLE {connection.ops.quote_name(LiveTask._meta.db_table)} RENAME TO gone")
            ship.submit(order=1)
        notes = getattr(caught.exception.__cause__, "__notes__", [])
        self.assertIn("manage.py migrate", " ".join(notes))

    def test_migrating_again_changes_nothing(self) -> None:
        place_order("kept")
        migrate_tables("default", verbosity=0)
        self.assertEqual(keys(), ["kept"])


class FlushTests(TransactionTestCase):
    """The tasks of one test are gone in the next one, whichever is first."""

    def test_the_first(self) -> None:
        self.submit_in_an_empty_store()

    def test_the_second(self) -> None:
        self.submit_in_an_empty_store()

    def submit_in_an_empty_store(self) -> None:
        self.assertFalse(ship.options(unique_key="only", unique="forever").submit(order=1).duplicate)
        self.assertEqual(LiveTask.objects.count(), 1)


class BrokenConnectionTests(TransactionTestCase):
    def test_a_submit_on_a_broken_connection_raises_the_error_of_django(self) -> None:
        connection.ensure_connection()
        connection.connection.close()
        with self.assertRaises(Exception) as caught:
            ship.submit(order=1)
        self.assertEqual(type(caught.exception).__module__, OperationalError.__module__)
        connection.close()
        ship.submit(order=1)
