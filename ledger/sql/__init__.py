"""Statements with a lock, an upsert or a join of writes: one a file, its first line says what it guarantees."""
