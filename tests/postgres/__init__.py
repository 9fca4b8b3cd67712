"""A real PostgreSQL for the tests, on any machine: found or started, and never left behind."""

from tests.postgres.databases import Cluster, Remote, create_database, drop_database, login
from tests.postgres.programs import find_programs
from tests.postgres.server import Server, ServerFailed, Standby

__all__ = [
    "Cluster",
    "Remote",
    "Server",
    "ServerFailed",
    "Standby",
    "create_database",
    "drop_database",
    "find_programs",
    "login",
]
