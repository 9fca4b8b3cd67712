"""The bench: throughput of this machine with its database and settings."""
