"""Commands: the line that starts with a colon."""
