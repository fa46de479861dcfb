"""The servers of a benchmark: a PostgreSQL with a database per measurement, and stand-ins for AWS, one per latency."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from ledger import schema
from ledger.embedded import embedded_postgres
from ledger.store import connect_arguments

TEMPLATE = "template_ledger"
_NUMBERS = itertools.count(1)


class Database:
    """A PostgreSQL server of the benchmark's own, with a migrated database to copy from."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.tell(f"CREATE DATABASE {TEMPLATE}")
        schema.upgrade(self.named(TEMPLATE))
        self.tell("VACUUM", self.named(TEMPLATE))

    def named(self, name: str) -> str:
        return make_url(self._url).set(database=name).render_as_string(hide_password=False)

    def tell(self, statement: str, url: str | None = None) -> None:
        with psycopg.connect(**connect_arguments(url or self._url), autocommit=True) as connection:
            connection.execute(statement)

    def ask(self, query: str, url: str | None = None) -> Any:
        """Ask for one value."""
        with psycopg.connect(**connect_arguments(url or self._url), autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None, "a query for one value answers one row"
        return row[0]

    @contextmanager
    def fresh(self, template: str = TEMPLATE) -> Iterator[str]:
        """Make a database for one measurement; the server has nothing left to write when it begins."""
        name = f"bench_{next(_NUMBERS)}"
        self.tell(f"CREATE DATABASE {name} TEMPLATE {template}")
        self.tell("CHECKPOINT")
        try:
            yield self.named(name)
        finally:
            self.tell(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgres() -> Iterator[Database]:
    """Start a server in a folder of its own, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="dl-bench-", dir="/tmp")).resolve()
    folder.chmod(0o755)  # the server's user must get in when root runs the benchmark
    try:
        with embedded_postgres(folder) as url:
            yield Database(url)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class StandIn:
    """The stand-in's address, and its counters."""

    def __init__(self, url: str) -> None:
        self.url = url

    def warm(self, table: str) -> None:
        """Have the pages of a table made."""
        with urllib.request.urlopen(f"{self.url}/_bench/warm/{table}", timeout=60) as answer:
            answer.read()

    def counts(self, *, reset: bool = False) -> dict[str, float]:
        request = urllib.request.Request(f"{self.url}/_bench/stats", method="DELETE" if reset else "GET")
        with urllib.request.urlopen(request, timeout=10) as answer:
            counted: dict[str, float] = json.load(answer)
        return counted


@contextmanager
def stand_in(latency_ms: float) -> Iterator[StandIn]:
    """Run a stand-in in a process of its own."""
    command = [sys.executable, "-m", "bench.standin", "--latency-ms", str(latency_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        yield StandIn(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()
