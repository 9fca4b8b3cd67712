"""Settings, and `load`, which collects them from arguments, environment, configuration file and defaults."""

from runner.settings.loading import load
from runner.settings.values import Row, Settings

__all__ = ["Row", "Settings", "load"]
