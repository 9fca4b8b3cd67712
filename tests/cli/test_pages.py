"""Reports as HTML pages: complete, well-formed, without anything to load, and inert for texts from the database."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from runner.cli.exit_codes import Exit
from runner.db.transaction import Transaction, clock
from runner.model.outcome import Dead, Failure
from runner.model.task import NewTask
from tests.cli.conftest import Call, Store
from tests.conftest import on_sqlite
from tests.store.minutes import Minute, write_statistics

HOSTILE = '<script>alert(1)</script>" onload="x() token=hunter-22-x'
VOID = {"meta", "rect", "line", "polyline"}


class Page(HTMLParser):
    """The elements of a page, its headings and its text; an element that is closed wrongly fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def plant_failure(store: Store) -> None:
    """One dead task with hostile texts."""
    store.submit(NewTask("mail.send"))
    store.claim("mail.send", outcome=Dead(failure=Failure("shop.Timeout", HOSTILE, f"Traceback: {HOSTILE}")))


def plant_results(store: Store) -> None:
    """A minute with results."""

    async def worked(tx: Transaction) -> None:
        minute = Minute(await clock(tx), "mail", HOSTILE)
        minute.counts |= {"succeeded": 30, "first_try": 20, "second_try": 10, "died": 10, "submitted": 40}
        minute.durations.add([4.0])
        minute.waits.add([300.0])
        await write_statistics(tx, 1, [minute], {})

    store.write(worked)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("command", "sections"),
    [
        ("reports", ["Handlers", "Queues", "Slow handlers", "Failures", "Schedules", "Incidents"]),
        ("incident", ["Timeline", "Failures", "Queues", "Changes by operators"]),
    ],
)
def test_a_page_is_complete_and_inert(cli: Call, store: Store, command: str, sections: list[str]) -> None:
    plant_failure(store)
    plant_results(store)
    text = cli(command, "--html", "-").out
    page = Page(text)
    assert page.texts["h2"] == sections
    assert "script" not in page.tags
    assert not {name for name, _ in page.attributes} & {"src", "href", "onload"}
    assert "url(" not in text
    assert "hunter" not in text
    assert any("<script>alert(1)" in each for each in page.texts["code"])


def test_a_report_has_its_figures_and_charts(cli: Call, store: Store) -> None:
    plant_results(store)
    page = Page(cli("reports", "--since", "1h", "--html", "-").out)
    figures = dict(zip(page.texts["dt"], re.findall(r"<dd>(.*?)</dd>", cli("reports", "--html", "-").out), strict=True))
    assert (figures["Succeeded"], figures["First attempt"], figures["Run time"]) == ("30", "50.0 %", "4s")
    assert {"svg", "rect", "polyline"} <= page.tags
    (tip,) = [each for each in page.texts["title"] if "succeeded at first" in each]
    assert tip.endswith(": succeeded at first 20, succeeded later 10, retried attempts 0, died 10")


@on_sqlite
def test_a_page_of_a_period_without_tasks_has_no_figures_to_divide(cli: Call, store: Store) -> None:
    store.submit()
    text = cli("reports", "--since", "30d", "--html", "-").out
    Page(text)
    assert "No tasks were submitted or finished." in text


@on_sqlite
def test_a_page_replaces_no_file(cli: Call, store: Store, tmp_path: Path) -> None:
    plant_results(store)
    file = tmp_path / "report.html"
    assert cli("reports", "--html", str(file)).out == f"Wrote {file}\n"
    assert file.read_text().startswith("<!doctype html>")
    again = cli("reports", "--html", str(file))
    assert again.code == Exit.BAD_INPUT
    assert "exists already" in again.err
    assert cli("reports", "--html", "-", "--csv").code == Exit.BAD_INPUT
