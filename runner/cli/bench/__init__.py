"""The bench: submit, run and settle rates of this machine, database and settings."""

from runner.cli.bench.bench import bench
from runner.cli.bench.plan import PARTS, BenchPlan
from runner.cli.bench.report import BenchReport

__all__ = ["PARTS", "BenchPlan", "BenchReport", "bench"]
