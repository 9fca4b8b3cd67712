"""The admin: read-only lists of tasks, with links to those of the same handler or key."""

import json
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from runner.django.models import JsonTextField, LiveTask, TaskAttempt, TaskColumns, TaskHistory
from runner.text.redact import mask, redact
from runner.text.sanitize import clean

MOST_COUNTED = 10_000
"""Maximum number of tasks in a list. Counting all rows of a large table would take seconds."""

MOST_ATTEMPTS = 20
"""Maximum number of attempts on the page of a task, the latest ones."""

UNFORMATTED = ("payload", "result", "error", "state", "handler", "key")
"""Columns that the page of a task displays in a form of their own."""


class BoundedPaginator(Paginator):
    """Pages of the first tasks of a list."""

    @cached_property
    def count(self) -> int:
        """The number of tasks, at most MOST_COUNTED."""
        return int(self.object_list[:MOST_COUNTED].count())


class ReadOnlyTasks(admin.ModelAdmin):
    """The parts that both lists share. The console and `manage.py runner` change tasks, with a preview and an audit."""

    list_display = ("id", "state_shown", "handler_link", "queue", "key_link", "attempts", "run_at", "reason")
    ordering = ("-id",)
    paginator = BoundedPaginator
    list_per_page = 50
    show_full_result_count = False
    list_filter = ("state",)
    search_fields = ("id",)
    actions = None
    searched: ClassVar[tuple[str, ...]] = ("key",)
    """Columns to search in, each of them indexed."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - Django's signature
        """Return False: handlers submit tasks."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - as above
        """Return False: tasks are read-only here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - as above
        """Return False: tasks are read-only here."""
        return False

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the tasks without their large columns, which only the page of a task reads."""
        large = [field.name for field in self.opts.fields if isinstance(field, JsonTextField)]
        return super().get_queryset(request).defer(*large)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:  # noqa: ARG002 - as above
        """Find tasks by id or by the exact text of an indexed column."""
        term = search_term.strip()
        if not term:
            return queryset, False
        condition = Q(pk=int(term)) if term.isdecimal() and len(term) < len(str(1 << 63)) else Q()
        for column in self.searched:
            condition |= Q(**{column: term})
        return queryset.filter(condition), False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:  # noqa: ARG002 - as above
        """Return the fields of the page of a task."""
        columns = [field.name for field in self.opts.fields if field.name not in UNFORMATTED]
        return ["state_shown", "handler_link", "key_link", *columns, "arguments", "outcome", "reason", "failures"]

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """Show a task, or redirect to its page in the other list: it may have finished since the list was read."""
        other = TaskHistory if self.model is LiveTask else LiveTask
        if object_id.isdecimal() and not self._exists(self.model, object_id) and self._exists(other, object_id):
            return HttpResponseRedirect(reverse(f"admin:tasktui_{other._meta.model_name}_change", args=[object_id]))  # noqa: SLF001 - Django's documented name
        page: HttpResponse = super().change_view(request, object_id, *args, **kwargs)
        return page

    @staticmethod
    def _exists(model: Any, id: str) -> bool:
        return bool(model.objects.filter(pk=id).exists())

    @admin.display(description="state", ordering="state")
    def state_shown(self, task: TaskColumns) -> str:
        """The displayed state."""
        return str(task.shown() if isinstance(task, LiveTask) else task.state)

    @admin.display(description="handler")
    def handler_link(self, task: TaskColumns) -> SafeString:
        """The handler, with a link to its live tasks."""
        return _link("livetask", task.handler)

    @admin.display(description="key")
    def key_link(self, task: TaskColumns) -> SafeString | str:
        """The business key, with a link to the tasks of this list that have it too."""
        return "-" if task.key is None else _link(self.opts.model_name, task.key)

    @admin.display
    def attempts(self, task: TaskColumns) -> str:
        """The attempts used, and their maximum."""
        return f"{task.attempt}/{task.max_attempts or '-'}"

    @admin.display
    def arguments(self, task: TaskColumns) -> SafeString:
        """The payload, with likely secrets masked."""
        return _json(task.payload)

    @admin.display(description="result")
    def outcome(self, task: TaskColumns) -> SafeString:
        """The result, with likely secrets masked."""
        return _json(getattr(task, "result", None))

    @admin.display
    def reason(self, task: TaskColumns) -> str:
        """The last error."""
        return clean(mask(task.error or "-"))

    @admin.display
    def failures(self, task: TaskColumns) -> SafeString | str:
        """The failed attempts, latest first, with their tracebacks."""
        attempts: QuerySet[Any] = TaskAttempt.objects.filter(task_id=task.pk).order_by("-fence")[:MOST_ATTEMPTS]
        rows = [(item.attempt, item.ended_at, item.error_type, _traceback(item)) for item in attempts]
        return format_html_join("", "<p>attempt {}, {}: {}</p><pre>{}</pre>", rows) or "-"


@admin.register(LiveTask)
class LiveTaskAdmin(ReadOnlyTasks):
    """Tasks that wait, are blocked or run."""

    searched = ("key", "handler")  # the live table is small


@admin.register(TaskHistory)
class HistoryAdmin(ReadOnlyTasks):
    """Tasks that succeeded, are dead or were cancelled."""

    list_display = (*ReadOnlyTasks.list_display[:-2], "finished_at", "reason")


def _link(model: str, text: str) -> SafeString:
    page = reverse(f"admin:tasktui_{model}_changelist")
    return format_html('<a href="{}?{}">{}</a>', page, urlencode({"q": text}), clean(text))


def _json(value: Any) -> SafeString:
    return format_html("<pre>{}</pre>", json.dumps(redact(value), indent=2, ensure_ascii=False))


def _traceback(attempt: TaskAttempt) -> str:
    return clean(mask(attempt.traceback or attempt.message), newlines=True)
