"""The session: one console at one database."""
