"""Startup: arguments, database, terminal."""
