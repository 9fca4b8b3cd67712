"""Inline mode: tasks that run in the transaction of a test, as they are submitted."""

from unittest import mock

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import TestCase, TransactionTestCase, override_settings
from django.urls import path

from runner import Context, TaskHandle, batch, handler
from runner.django import inline
from runner.django.models import LiveTask, TaskHistory
from runner.errors import TaskFailed, TimedOut
from shop.models import Order
from shop.tasks import ship, weigh


@handler("shop.duplicate", max_attempts=1)
def duplicate(order: int, safely: bool) -> None:
    Order.objects.filter(pk=order).update(cents=7)
    if safely:
        with transaction.atomic():
            Order.objects.create(pk=order, cents=0)
    Order.objects.create(pk=order, cents=0)


@handler("shop.pack", retry="1h")
def pack(order: int) -> str:
    raise ConnectionError(f"no box for {order}")


@handler("shop.send")
def send(order: int) -> str:
    return ship.submit(order=order).result()


@handler("shop.send_async")
async def send_async(order: int) -> str:
    return await (await ship.submit_async(order=order)).wait()


@handler("shop.close")
def close(ctx: Context) -> list[object]:
    ctx.progress(1, 2)
    ctx.checkpoint("read")
    return ctx.batch.results() if ctx.batch else []


@handler("shop.leave_test")
def leave_test() -> None:
    raise KeyboardInterrupt


def buy(request: HttpRequest) -> HttpResponse:
    order = Order.objects.create(cents=5)
    return HttpResponse(ship.submit(order=order.pk).result())


async def buy_async(request: HttpRequest) -> HttpResponse:
    order = await Order.objects.acreate(cents=5)
    return HttpResponse(await (await ship.submit_async(order=order.pk)).wait())


urlpatterns = [path("buy", buy), path("buy_async", buy_async)]


class InlineTests(TestCase):
    def setUp(self) -> None:
        self.enterContext(inline())
        self.order = Order.objects.create(cents=5)

    def test_plain_functions_and_coroutines_run_in_the_transaction_of_the_test(self) -> None:
        tasks = [each.submit(order=self.order.pk) for each in (ship, weigh)]
        self.order.refresh_from_db()
        self.assertTrue(self.order.shipped)
        self.assertEqual([task.result() for task in tasks], ["shipped for 5", 5])
        self.assertEqual(TaskHistory.objects.filter(state="succeeded").count(), 2)

    async def test_an_async_test_runs_both_too(self) -> None:
        tasks = [await each.submit_async(order=self.order.pk) for each in (ship, weigh)]
        await self.order.arefresh_from_db()
        self.assertTrue(self.order.shipped)
        self.assertEqual([await task.wait() for task in tasks], ["shipped for 5", 5])
        self.assertEqual((await tasks[0].status_async()).state, "succeeded")

    def test_tasks_of_tasks_run_before_the_submit_returns(self) -> None:
        for each in (send, send_async):
            self.assertEqual(each.submit(order=self.order.pk).result(), "shipped for 5")

    def test_a_handler_uses_its_context(self) -> None:
        done = batch([ship.new(order=self.order.pk)], callback=close.new()).callback
        self.assertIsInstance(done, TaskHandle)
        self.assertEqual(done.result(), ["shipped for 5"])
        self.assertEqual(done.status().progress.done, 1)

    def test_a_failed_statement_breaks_its_attempt_alone(self) -> None:
        for safely in (True, False):
            task = duplicate.submit(order=self.order.pk, safely=safely)
            with self.assertRaises(TaskFailed) as caught:
                task.result()
            self.assertIn("IntegrityError", str(caught.exception))
            self.assertEqual(Order.objects.count(), 1)

    def test_a_failed_task_waits_for_its_retry(self) -> None:
        task = pack.submit(order=self.order.pk)
        self.assertEqual((task.status().state, LiveTask.objects.get().attempt), ("waiting", 1))
        with self.assertRaises(TimedOut):
            task.result()

    @override_settings(ROOT_URLCONF="shop.tests_inline")
    def test_a_view_runs_its_tasks_also_in_a_transaction_of_its_own(self) -> None:
        for atomic in (False, True):
            with mock.patch.dict(connection.settings_dict, ATOMIC_REQUESTS=atomic):
                self.assertEqual(self.client.get("/buy").content, b"shipped for 5")
        self.assertEqual(self.client.get("/buy_async").content, b"shipped for 5")

    @override_settings(ROOT_URLCONF="shop.tests_inline")
    async def test_an_async_view_runs_its_tasks(self) -> None:
        for url in ("/buy", "/buy_async"):
            self.assertEqual((await self.async_client.get(url)).content, b"shipped for 5")

    def test_a_submit_on_commit_runs_its_task(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: ship.submit(order=self.order.pk))
        self.order.refresh_from_db()
        self.assertTrue(self.order.shipped)

    def test_ctrl_c_in_a_task_ends_the_test(self) -> None:
        with self.assertRaises(KeyboardInterrupt):
            leave_test.submit()

    def test_a_second_block_is_refused(self) -> None:
        with self.assertRaisesMessage(RuntimeError, "is open already"), inline():
            pass


class OwnTransactionTests(TransactionTestCase):
    def test_without_an_open_transaction_each_statement_commits(self) -> None:
        order = Order.objects.create(cents=5)
        with inline():
            self.assertEqual(ship.submit(order=order.pk).result(), "shipped for 5")
            with transaction.atomic():
                self.assertEqual(weigh.submit(order=order.pk).result(), 5)
        self.assertEqual(TaskHistory.objects.count(), 2)
        self.assertEqual(LiveTask.objects.filter(pk=ship.submit(order=order.pk)).count(), 1)
