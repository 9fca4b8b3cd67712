"""The bench: how fast this machine, this database and these settings submit, run and settle tasks."""

from runner.bench.bench import bench
from runner.bench.plan import PARTS, Plan
from runner.bench.report import Report

__all__ = ["PARTS", "Plan", "Report", "bench"]
