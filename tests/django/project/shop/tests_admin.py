"""The admin: lists and pages of tasks, for reading only."""

from django.contrib.auth.models import User
from django.db import connection
from django.test import TestCase
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from runner.django.models import LiveTask, TaskAttempt, TaskHistory
from runner.handlers.options import TASK_OPTIONS
from shop.tasks import ship

LIVE = reverse("admin:tasktui_livetask_changelist")
FINISHED = reverse("admin:tasktui_taskhistory_changelist")


class ModelTests(TestCase):
    def test_every_task_option_is_a_field_of_a_task(self) -> None:
        columns = {option.column for option in TASK_OPTIONS if option.column}
        for model in (LiveTask, TaskHistory):
            self.assertLessEqual(columns, {field.column for field in model._meta.fields})


class AdminTests(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.user = User.objects.create_superuser("root")
        cls.waiting = ship.options(key="<b>order-1</b>").submit(order=1)
        cls.later = ship.options(key="order-2", delay="1h").submit(order=2)
        now = timezone.now()
        cls.dead = TaskHistory.objects.create(
            id=4711,
            queue="shipping",
            handler="shop.ship",
            key="order-3",
            priority=1,
            bucket=1,
            payload='{"password": "hunter2-is-secret"}',
            run_at=now,
            submitted_at=now,
            finished_at=now,
            state="dead",
            attempt=1,
            error="ValueError: \x1b[31mno stock",
        )
        TaskAttempt.objects.create(
            task_id=4711,
            fence=1,
            attempt=1,
            ended_at=now,
            verb="die",
            error_type="ValueError",
            queue="shipping",
            handler="shop.ship",
            fingerprint="f",
            message="no stock",
            traceback="Traceback: line 7 of ship",
        )

    def setUp(self) -> None:
        self.client.force_login(self.user)

    def text(self, url: str, **query: str) -> str:
        page = self.client.get(url, query, follow=True)
        self.assertEqual(page.status_code, 200)
        return page.content.decode()

    def test_the_list_shows_states_and_links_and_escapes_foreign_text(self) -> None:
        page = self.text(LIVE)
        for expected in (">ready<", ">scheduled<", "?q=shop.ship", "&lt;b&gt;order-1&lt;/b&gt;"):
            self.assertIn(expected, page)
        self.assertNotIn("<b>order-1", page)
        self.assertIn("no stock", self.text(FINISHED, state="dead"))

    def test_a_search_finds_an_id_a_key_or_a_handler(self) -> None:
        for term, count in (("order-2", 1), (str(self.later), 1), ("shop.ship", 2), ("order", 0), ("9" * 30, 0)):
            self.assertIn(f"{count} task", self.text(LIVE, q=term))

    def test_the_page_of_a_task_has_its_attempts_and_no_secret(self) -> None:
        page = self.text(reverse("admin:tasktui_taskhistory_change", args=[4711]))
        self.assertIn("line 7 of ship", page)
        self.assertNotIn("hunter2", page)
        self.assertNotIn("\x1b", page)

    def test_the_page_of_a_task_that_has_finished_redirects(self) -> None:
        self.assertIn("line 7 of ship", self.text(reverse("admin:tasktui_livetask_change", args=[4711])))
        self.assertIn("ready", self.text(reverse("admin:tasktui_livetask_change", args=[self.waiting])))

    def test_nothing_can_be_changed(self) -> None:
        task = LiveTask.objects.get(pk=self.waiting)
        for verb in ("change", "delete"):
            url = reverse(f"admin:tasktui_livetask_{verb}", args=[task.pk])
            self.assertEqual(self.client.post(url, {"post": "yes", "priority": 9}).status_code, 403)
        self.assertEqual(self.client.get(reverse("admin:tasktui_livetask_add")).status_code, 403)
        self.assertEqual(LiveTask.objects.get(pk=self.waiting).priority, 1)

    def test_a_list_never_counts_or_reads_a_whole_table(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            self.text(FINISHED, q="order-3")
        ours = [query["sql"] for query in queries if "task_history" in query["sql"]]
        counts = [sql for sql in ours if "COUNT" in sql]
        self.assertEqual([len(counts) > 0, "LIMIT 10000" in counts[0]], [True, True])
        self.assertEqual([sql for sql in ours if "payload" in sql or sql.startswith("SELECT DISTINCT")], [])
