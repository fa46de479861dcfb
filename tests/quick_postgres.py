"""PostgreSQL for tests: a server of their own that forgets everything in a crash, and databases in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.engine import make_url

from ledger.embedded import embedded_postgres
from ledger.store import connect_arguments
from tests.scratch import short_folder

_SAFE = ("fsync", "synchronous_commit", "full_page_writes")


@contextmanager
def quick_postgres() -> Iterator[str]:
    """Start a server; yields the URL of a database nobody works in.

    It may lose everything in a crash of the machine: no test needs it after that, and each commit and each new database
    take a tenth of the time.
    The product's own embedded server is as safe as PostgreSQL can be; the tests that crash one start that.
    """
    folder = short_folder()
    try:
        with embedded_postgres(folder) as url:
            for name in _SAFE:
                tell(url, f"ALTER SYSTEM SET {name} = off")
            tell(url, "SELECT pg_reload_conf()")
            yield url
    finally:
        shutil.rmtree(folder)


def named(url: str, database: str) -> str:
    """Return the URL of another database of the same server."""
    return make_url(url).set(database=database).render_as_string(hide_password=False)


def tell(url: str, statement: str) -> None:
    """Execute one statement outside a transaction."""
    with psycopg.connect(**connect_arguments(url), autocommit=True) as connection:
        connection.execute(statement)
