"""The HTTP API: it checks, writes down, reads and answers; it never waits for work."""
