"""Bugs planted on purpose, each of which the tests must catch: what is never seen to fail proves nothing."""
