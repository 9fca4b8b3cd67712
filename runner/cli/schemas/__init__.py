"""The JSON Schemas of the documents that commands print with --json, one file per command."""

from pathlib import Path

SCHEMAS = Path(__file__).parent
"""The folder of the files."""
