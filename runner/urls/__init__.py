"""Database URLs: what people write, what may be printed, what SQLAlchemy is given, and whether the way is safe."""

from runner.urls.database_url import DatabaseUrl, async_url, parse_url, redacted, refuse_password, sync_url
from runner.urls.libpq import Host
from runner.urls.tls import Tls

__all__ = ["DatabaseUrl", "Host", "Tls", "async_url", "parse_url", "redacted", "refuse_password", "sync_url"]
