"""Settings, merged from arguments, environment, configuration file and defaults."""

from runner.settings.loading import load
from runner.settings.settings import DESCRIPTIONS, Row, Settings

__all__ = ["DESCRIPTIONS", "Row", "Settings", "load"]
