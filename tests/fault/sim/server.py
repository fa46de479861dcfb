"""The simulation's PostgreSQL: a server of its own, with a migrated database to copy for each process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ledger import schema
from tests.quick_postgres import named, quick_postgres, tell

TEMPLATE = "simulated"


@contextmanager
def simulated_postgres() -> Iterator[str]:
    """Start it; yields the URL of a database nobody works in."""
    with quick_postgres() as url:
        tell(url, f"CREATE DATABASE {TEMPLATE}")
        schema.upgrade(named(url, TEMPLATE))
        yield url
