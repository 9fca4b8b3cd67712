"""Text: format, parse, sanitize, redact."""
