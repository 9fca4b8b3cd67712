"""The database: connections, transactions, dialects, schema, migrations."""
