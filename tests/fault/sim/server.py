"""The simulation's PostgreSQL: a server of its own that forgets everything in a crash, and a database a process."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

import psycopg

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.store import connect_arguments
from tests.scratch import short_folder

TEMPLATE = "simulated"
_QUICK = ("fsync", "synchronous_commit", "full_page_writes")


@contextmanager
def quick_postgres() -> Iterator[str]:
    """Start a server; yields the URL of a database nobody works in."""
    folder = short_folder()
    try:
        with embedded_postgres(folder) as url:
            for name in _QUICK:
                tell(url, f"ALTER SYSTEM SET {name} = off")
            tell(url, "SELECT pg_reload_conf()")
            tell(url, f"CREATE DATABASE {TEMPLATE}")
            schema.upgrade(named(url, TEMPLATE))
            yield url
    finally:
        shutil.rmtree(folder)


def named(url: str, database: str) -> str:
    """Return the URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def tell(url: str, statement: str) -> None:
    """Execute one statement outside a transaction."""
    with psycopg.connect(**connect_arguments(url), autocommit=True) as connection:
        connection.execute(statement)
