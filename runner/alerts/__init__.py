"""Alerts without a person: evaluations, notices, and their delivery by ordinary tasks."""
