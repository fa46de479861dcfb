"""`python -m bench.show_record`: what it costs to find a record's claims by its id alone, and what to insert them.

Three questions, each put to no index, to BRIN indexes of bloom filters, and to a hash index:

1. How long does a lookup take among many claims, cold and warm, of an id that is there and of one that is not?
2. How many bytes a record does the index take?
3. What does it cost the product's own open step: in new pages, and in pages that were freed and are used again?

Needs about 4 GB of disk for 10 million claims, all of it removed at the end; `--claims` asks for fewer.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from bench.growth import _batch_ms
from ledger import runs, schema
from ledger.embedded import embedded_postgres
from ledger.instants import HOUR_S, NS_PER_S, Window, parse_window
from ledger.store import Store, connect_arguments

Connection = psycopg.Connection[Any]

_WINDOW_RECORDS = 10_000
_STEP = 1_000_000
_FIRST = parse_window("2025-01-01T00:00:00Z")
_LATER = parse_window("2027-01-01T00:00:00Z")
_NAME = "claims_record"
_RANGE_PAGES = (4, 8, 16, 32, 64)
_ROWS_A_PAGE = 100  # of claims whose ids are UUIDs there are 97
# Window by window, as dispatches insert them; inside a window in no order, since groups come one after another.
_FILL = """
INSERT INTO claims (pipeline_id, booking_ns, record_id, generation, fingerprint, entry_id)
SELECT %(pipeline_id)s,
       %(first_ns)s + (number / %(window)s) * 3600000000000 + ('x' || substr(md5('t' || number), 1, 9))::bit(36)::bigint
         * 52, '\\xff'::bytea || uuid_send(md5(number::text)::uuid), 0, number, md5('e' || number / 3)::uuid
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS number
"""
_LOOKUP = """
SELECT booking_ns, generation, entry_id FROM claims
WHERE record_id = '\\xff'::bytea || uuid_send(md5(%s)::uuid)
"""

# Only an index on record ids will do, as in `ledger.history`; a hash index is looked at through a bitmap then.
_AS_THE_PRODUCT = "SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off"


def brin(pages: int) -> str:
    """Return the statement for an index with a Bloom filter for every so many pages; the ledger's own has eight."""
    options = f"n_distinct_per_range = {pages * _ROWS_A_PAGE}, false_positive_rate = 0.01"
    return (
        f"CREATE INDEX {_NAME} ON claims USING brin (record_id bytea_bloom_ops({options})) "
        f"WITH (pages_per_range = {pages})"
    )


HASH = f"CREATE INDEX {_NAME} ON claims USING hash (record_id)"


class Server:
    """An embedded server of the benchmark's own that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def running(self, database: str) -> Iterator[Connection]:
        with embedded_postgres(self.folder) as url:
            with psycopg.connect(**connect_arguments(url), autocommit=True) as first:
                if not first.execute("SELECT 1 FROM pg_database WHERE datname = %s", (database,)).fetchone():
                    first.execute(f"CREATE DATABASE {database}")  # type: ignore[arg-type]
            with psycopg.connect(**connect_arguments(named(url, database)), autocommit=True) as connection:
                yield connection

    def forget(self) -> None:
        """Let the system forget what it has in memory of the data; the server must not be running."""
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)


def named(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)


def fill(connection: Connection, claims: int, windows_from: Window = _FIRST) -> None:
    for first in range(0, claims, _STEP):
        values = {
            "pipeline_id": 1,
            "first_ns": windows_from.start_ns,
            "window": _WINDOW_RECORDS,
            "first": first,
            "last": min(first + _STEP, claims) - 1,
        }
        connection.execute(_FILL, values)
    connection.execute("VACUUM ANALYZE claims")
    connection.execute("CHECKPOINT")


def lookup_ms(connection: Connection, text: str, found: int) -> float:
    began_s = time.perf_counter()
    rows = connection.execute(_LOOKUP, (text,)).fetchall()
    took_ms = (time.perf_counter() - began_s) * 1000
    assert len(rows) == found, (text, rows)
    return took_ms


def warm_ms(connection: Connection, claims: int, tries: int) -> tuple[float, float]:
    """Return the median of lookups of ids that are there, and of ids that are not; different ids each time."""
    lookup_ms(connection, "0", 1)
    there = [lookup_ms(connection, str(claims * n // tries), 1) for n in range(tries)]
    absent = [lookup_ms(connection, f"no-{n}", 0) for n in range(tries)]
    return statistics.median(there), statistics.median(absent)


def cold_ms(server: Server, claims: int, tries: int, *, as_product: bool) -> tuple[float, float]:
    there, absent = [], []
    for n in range(tries):
        for times, text, found in ((there, str(claims * (2 * n + 1) // (2 * tries)), 1), (absent, f"never-{n}", 0)):
            server.forget()
            with server.running("lookup") as connection:
                if as_product:
                    connection.execute(_AS_THE_PRODUCT)
                times.append(lookup_ms(connection, text, found))
    return statistics.median(there), statistics.median(absent)


def size_bytes(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT coalesce(pg_relation_size(to_regclass(%s)), 0)", (name,)).fetchone()
    assert row is not None
    return int(row[0])


def node(connection: Connection) -> str:
    """Return the kind of scan that the planner chooses by itself."""
    lines = [row[0] for row in connection.execute("EXPLAIN " + _LOOKUP, ("1",))]  # type: ignore[arg-type]
    return " < ".join(line.split("(cost")[0].strip(" ->") for line in lines if "(cost" in line)


def lookups(server: Server, claims: int, pages: tuple[int, ...], tries: int) -> None:
    with server.running("lookup") as connection:
        migrate(server, "lookup")
        connection.execute(f"DROP INDEX IF EXISTS {_NAME}")  # type: ignore[arg-type]
        began_s = time.monotonic()
        fill(connection, claims)
        table = size_bytes(connection, "claims") / claims
        print(f"filled {claims:,} claims in {time.monotonic() - began_s:.0f} s, {table:.1f} B/record without indexes")
    kinds = [("none", ""), *((f"brin/{one}", brin(one)) for one in pages), ("hash", HASH)]
    print(
        f"{'index':<10}{'warm there':>12}{'warm absent':>12}{'cold there':>12}{'cold absent':>12}{'B/record':>10}  ms"
    )
    for kind, statement in kinds:
        with server.running("lookup") as connection:
            connection.execute(f"DROP INDEX IF EXISTS {_NAME}")  # type: ignore[arg-type]
            if statement:
                connection.execute(statement)  # type: ignore[arg-type]
            scan, size = node(connection), size_bytes(connection, _NAME)
            if statement:
                connection.execute(_AS_THE_PRODUCT)
            warm = warm_ms(connection, claims, tries)
            connection.execute("CHECKPOINT")
        cold = cold_ms(server, claims, 3, as_product=bool(statement))
        numbers = "".join(f"{one:12.1f}" for one in (*warm, *cold))
        print(f"{kind:<10}{numbers}{size / claims:10.2f}  {scan}", flush=True)


def migrate(server: Server, database: str) -> str:
    with embedded_postgres(server.folder) as url:
        address = named(url, database)
        schema.upgrade(address)
        with Store(address) as store:
            store.transaction(lambda connection: runs.pipeline_id(connection, "bench"))
        return address


def _wal_bytes(connection: Connection) -> int:
    row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    return int(row[0])


def inserts(server: Server, existing: int, rounds: int, pages: tuple[int, ...]) -> None:
    """Compare the product's own open step, side by side, round by round, in databases that differ in the index."""
    sides = {"none": "", **{f"brin/{one}": brin(one) for one in pages}, "hash": HASH}
    medians: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with embedded_postgres(server.folder):
        urls = {}
        for kind, statement in sides.items():
            database = "insert_" + kind.replace("/", "_")
            with server.running(database) as connection:
                urls[kind] = migrate(server, database)
                connection.execute(f"DROP INDEX IF EXISTS {_NAME}")  # type: ignore[arg-type]
                fill(connection, existing)
                if statement:
                    connection.execute(statement)  # type: ignore[arg-type]
                    if "brin" in statement:  # the last range is not full; leave it unsummarised, as VACUUM does
                        last = size_bytes(connection, "claims") // 8192 - 1
                        connection.execute(f"SELECT brin_desummarize_range('{_NAME}', {last})")  # type: ignore[arg-type]
        for phase in ("new pages", "freed pages"):
            if phase == "freed pages":
                for url in urls.values():
                    _free(url, existing)
            for number in range(rounds):
                for kind, url in urls.items():
                    window = Window(_LATER.start_s + (number + (phase == "freed pages") * rounds) * HOUR_S)
                    with psycopg.connect(**connect_arguments(url), autocommit=True) as connection:
                        connection.execute("CHECKPOINT")
                        before = _wal_bytes(connection)
                        with Store(url) as store:
                            took_ms = _batch_ms(store, window)
                        wal = (_wal_bytes(connection) - before) / 100_000
                    medians.setdefault((phase, kind), []).append((took_ms, wal))
    print(f"{'':<14}{'index':<10}{'batch of 1,000, ms':>20}{'ratio (rounds)':>16}{'WAL B/record':>14}")
    for (phase, kind), each in medians.items():
        base = medians[phase, "none"]
        ratios = [mine[0] / other[0] for mine, other in zip(each, base, strict=True)]
        spread = f"{statistics.median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})"
        ms, wal = statistics.median(one[0] for one in each), statistics.median(one[1] for one in each)
        print(f"{phase:<14}{kind:<10}{ms:20.1f}{spread:>20}{wal:14.0f}", flush=True)


def _free(url: str, existing: int) -> None:
    """Delete the oldest half, as a person may who keeps no claims for years, so that its pages are used again."""
    with psycopg.connect(**connect_arguments(url), autocommit=True) as connection:
        last_ns = _FIRST.start_ns + existing // _WINDOW_RECORDS // 2 * HOUR_S * NS_PER_S
        connection.execute("DELETE FROM claims WHERE booking_ns < %s", (last_ns,))
        connection.execute("VACUUM ANALYZE claims")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.show_record", description=__doc__)
    parser.add_argument("--claims", type=int, default=10_000_000, help="among how many to look (10000000)")
    parser.add_argument("--existing", type=int, default=500_000, help="among how many to insert (500000)")
    parser.add_argument("--pages", type=int, nargs="+", default=_RANGE_PAGES, help="pages to a range")
    parser.add_argument("--tries", type=int, default=9, help="warm lookups of each kind (9)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of inserts (5)")
    parser.add_argument("--only", choices=("lookups", "inserts"))
    return parser.parse_args()


def main() -> None:
    """Run both halves in a folder of their own, and remove it."""
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="dispatch-ledger-bench-")).resolve()
    folder.chmod(0o755)
    try:
        server = Server(folder)
        if options.only != "inserts":
            lookups(server, options.claims, tuple(options.pages), options.tries)
        if options.only != "lookups":
            inserts(server, options.existing, options.rounds, tuple(options.pages))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
