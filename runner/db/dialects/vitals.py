"""vitals: statements about the health of each database, by name; unavailable ones are missing."""

from collections.abc import Mapping

import sqlalchemy as sa

from runner.db.schema import Tables

Statements = Mapping[str, sa.Executable]

# Other logins' transactions are visible to members of pg_read_all_stats; for all others they are NULL.
_OLDEST = """
SELECT extract(epoch FROM statement_timestamp() - xact_start)::float8, pid, application_name, state
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
ORDER BY xact_start LIMIT 1
"""
_CONNECTIONS = """
SELECT count(*) FILTER (WHERE backend_type = 'client backend' OR backend_type IS NULL),
       current_setting('max_connections')::int,
       count(*) FILTER (WHERE datname = current_database() AND query = '<insufficient privilege>')
FROM pg_stat_activity
"""
# Our tables, and their partitions at every level.
_OWN = """
WITH named AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = coalesce(CAST(:schema AS text), current_schema()) AND c.relname = ANY(CAST(:names AS text[]))
), own AS (
    SELECT oid FROM named UNION SELECT tree.relid FROM named, pg_partition_tree(oid) AS tree
)
"""
_DEAD = """
SELECT relname::text, n_live_tup, n_dead_tup,
       extract(epoch FROM statement_timestamp() - greatest(last_vacuum, last_autovacuum))::float8
FROM pg_stat_user_tables JOIN own ON oid = relid
ORDER BY n_dead_tup DESC, relname
"""
_SIZE = """
SELECT sum(pg_total_relation_size(oid))::bigint, CAST(NULL AS bigint), CAST(NULL AS text) FROM own
"""
_PAGES = """
SELECT page_count * page_size, freelist_count * page_size,
       (SELECT file FROM pragma_database_list WHERE name = 'main')
FROM pragma_page_count, pragma_page_size, pragma_freelist_count
"""


def of_postgresql(tables: Tables) -> Statements:
    """Return the statements of PostgreSQL."""
    own = {
        "names": [table.name for table in tables.metadata.sorted_tables],
        "schema": tables.metadata.schema,
    }
    return {
        "version": sa.text("SELECT current_setting('server_version')"),
        "oldest": sa.text(_OLDEST),
        "connections": sa.text(_CONNECTIONS),
        "bloat": sa.text(_OWN + _DEAD).bindparams(**own),
        "size": sa.text(_OWN + _SIZE).bindparams(**own),
    }


def of_sqlite() -> Statements:
    """Return the statements of SQLite."""
    return {"version": sa.text("SELECT sqlite_version()"), "size": sa.text(_PAGES)}
