"""Database URLs: parsing, printing without passwords, conversion for SQLAlchemy, and TLS."""

from runner.urls.database_url import DatabaseUrl, async_url, parse_url, redacted, refuse_password, sync_url
from runner.urls.libpq import Host, Tls

__all__ = ["DatabaseUrl", "Host", "Tls", "async_url", "parse_url", "redacted", "refuse_password", "sync_url"]
