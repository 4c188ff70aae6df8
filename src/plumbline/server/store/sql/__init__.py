"""Keep records in SQLite or PostgreSQL."""
