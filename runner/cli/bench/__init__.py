"""The bench: submit, run and settle rates of this machine, database and settings."""
