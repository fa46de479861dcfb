"""A PostgreSQL server of the soak's own, as safe as PostgreSQL can be, which is stopped at once and started again."""

import random
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg

from ledger import schema
from ledger.embedded import embedded_postgres, end_postgres_at_once
from ledger.errors import UnavailableError
from ledger.store import connect_arguments
from tests.quick_postgres import named, tell
from tests.soak.hands import Notes
from tests.soak.worker import EFFECTS

_TEMPLATE = "template_soak"
_AGAIN_ODDS = 0.25


class OwnPostgres:
    """The server, as a context manager. Nothing of it is switched off: fsync is on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._url = ""
        self.is_up = threading.Event()

    def __enter__(self) -> Self:
        self._url = self._stack.enter_context(embedded_postgres(self.folder))
        assert query(self._url, "SHOW fsync") == [("on",)]
        tell(self._url, f"CREATE DATABASE {_TEMPLATE}")
        template = named(self._url, _TEMPLATE)
        schema.upgrade(template)
        tell(template, EFFECTS)
        self.is_up.set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def create(self, name: str) -> str:
        """Make a fresh ledger; gives its URL."""
        tell(self._url, f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return named(self._url, name)

    def drop(self, name: str) -> None:
        tell(self._url, f"DROP DATABASE {name} WITH (FORCE)")

    def crash(self, dice: random.Random, notes: Notes) -> None:
        """Stop it at once, as `pg_ctl stop -m immediate` does, and start it; now and then again while it recovers."""
        self.is_up.clear()
        end_postgres_at_once(self.folder)
        notes.count("immediate stops of PostgreSQL")
        starting = threading.Thread(target=self.start, name="postgres-start")
        starting.start()
        if dice.random() < _AGAIN_ODDS:
            threading.Event().wait(dice.uniform(0.02, 0.3))
            if starting.is_alive():
                end_postgres_at_once(self.folder)
                notes.count("immediate stops of PostgreSQL")
                notes.count("stops of PostgreSQL in its recovery")
        starting.join()
        self.start()

    def start(self) -> None:
        """Make sure that it runs."""
        with suppress(UnavailableError), embedded_postgres(self.folder):
            self.is_up.set()  # and it stays so, since the soak uses it, too


def query(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Ask a ledger, over a connection of its own."""
    with closing(psycopg.connect(**connect_arguments(url), autocommit=True)) as connection:
        return connection.execute(statement, parameters or None).fetchall()  # type: ignore[arg-type]


def dump(url: str, table: str, columns: str = "*") -> list[str]:
    """Write down a table, one line a row, sorted."""
    statement: Any = f"COPY (SELECT {columns} FROM {table}) TO STDOUT"
    with (
        closing(psycopg.connect(**connect_arguments(url), autocommit=True)) as connection,
        connection.cursor().copy(statement) as copy,
    ):
        text = b"".join(map(bytes, copy)).decode("utf-8", "replace")
    return sorted(text.splitlines())


def tables(url: str) -> list[str]:
    """List all tables, the soak's own included."""
    listed = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('public', 'soak') ORDER BY 1"
    return [name for (name,) in query(url, listed)]
