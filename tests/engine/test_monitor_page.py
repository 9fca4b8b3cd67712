"""docs/monitor.md: Prometheus accepts its files, and each metric is described."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from runner.engine.database_collector import DatabaseCollector
from runner.engine.exposition import MetricKind, exposition_text
from runner.engine.runner_collector import collect_runner
from tests.engine.harness import Harness

PAGE = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text()
FILES = {
    name: re.search(rf"`{name}`[^`]*```yaml\n(.*?)```", PAGE, re.DOTALL) for name in ("prometheus.yml", "rules.yml")
}


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of the package prometheus")
def test_prometheus_accepts_the_configuration_and_the_rules(tmp_path: Path) -> None:
    for name in FILES:
        block = re.search(rf"`{name}`[^`]*```yaml\n(.*?)```", PAGE, re.DOTALL)
        assert block is not None, name
        (tmp_path / name).write_text(block[1])
    command = ["promtool", "check", "config", "prometheus.yml"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


async def test_the_tables_have_each_metric_of_a_runner_and_of_the_database(
    harness: Harness,
) -> None:
    collector = DatabaseCollector()
    await collector.read(harness.database)
    families = [*collector.collect(), *collect_runner(harness.runner(listen="127.0.0.1:0"))]
    names = {
        f"{family.name}_total" if family.kind is MetricKind.COUNTER else family.name
        for family in families
        if not family.name.endswith("_left_out")
    }
    described = set(re.findall(r"`(tasktui_[a-z_]+)[{`]", PAGE))
    assert names <= described


@pytest.mark.skipif(not shutil.which("promtool"), reason="needs promtool, of the package prometheus")
async def test_promtool_has_no_complaint_about_a_scrape(harness: Harness) -> None:
    collector = DatabaseCollector()
    await collector.read(harness.database)
    text = exposition_text(collector.collect())
    ran = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
