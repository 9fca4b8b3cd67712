"""deploy/: Prometheus accepts the rules and the dashboard, and both use metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.cli.app import CLI_COMMANDS
from runner.engine.database_collector import DatabaseCollector
from runner.engine.exposition import MetricKind
from runner.engine.runner_collector import collect_runner
from tests.engine.harness import Harness

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tasktui.json").read_text())
MONITOR = (DEPLOY.parent / "docs" / "monitor.md").read_text()

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of the package prometheus")


@pytest.fixture
def harness(database: object, migrated_url: str) -> Harness:
    return Harness(database, migrated_url)  # type: ignore[arg-type]


def expressions() -> Iterator[str]:
    """The queries of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def promtool(*arguments: str, folder: Path) -> str:
    ran = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@needs_promtool
def test_prometheus_accepts_the_rules_and_they_fire_as_their_test_describes() -> None:
    promtool("check", "rules", RULES.name, folder=RULES.parent)
    promtool("test", "rules", "rules_test.yml", folder=RULES.parent)


@needs_promtool
def test_prometheus_accepts_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    rules = []
    for number, query in enumerate(expressions()):
        plain = query.replace("$__rate_interval", "5m").replace("$queue", ".*").replace("$handler", ".*")
        rules.append({"record": f"query:{number}", "expr": plain})
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", "queries.yml", folder=tmp_path)


async def test_rules_and_dashboard_use_metrics_that_are_exported(harness: Harness) -> None:
    collector = DatabaseCollector()
    await collector.read(harness.database)
    exported = set()
    for family in [*collector.collect(), *collect_runner(harness.runner(listen="127.0.0.1:0"))]:
        name, kind = family.name, family.kind
        exported |= {f"{name}_total"} if kind is MetricKind.COUNTER else {name}
        exported |= {f"{name}_bucket", f"{name}_count"} if kind is MetricKind.HISTOGRAM else set()
    described = set(re.findall(r"`(tasktui_[a-z_]+)[{`]", MONITOR))
    used = set(re.findall(r"tasktui_[a-z_]+", "\n".join([RULES.read_text(), *expressions()])))
    assert used - exported <= described, "those of the other database are described"


def test_each_command_of_a_rule_exists() -> None:
    commands = re.findall(r"command: \"?runner ([a-z]+)", RULES.read_text())
    assert len(commands) == RULES.read_text().count("- alert:")
    assert set(commands) <= {each.name for each in CLI_COMMANDS}


def test_the_page_has_rules_of_the_file() -> None:
    rules = " ".join(RULES.read_text().split())
    block = re.search(r"`rules.yml`[^`]*```yaml\n(.*?)```", MONITOR, re.DOTALL)
    assert block is not None
    for query in re.findall(r"expr: ['\"]?(.*?)['\"]?, for", block[1]):
        assert query in rules, query


def test_panels_do_not_overlap_and_have_a_unit() -> None:
    taken = set[tuple[int, int]]()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]
