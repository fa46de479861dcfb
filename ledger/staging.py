"""The external sort of a staged run: records go in page by page, and come back in group and payload order."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import msgspec
import psycopg

from ledger.canonical import utf8
from ledger.errors import CorruptError
from ledger.facts import BadRecord, PageFacts, Record
from ledger.leases import Tenure
from ledger.runs import write_page
from ledger.store import Connection, Store, byte_array, number_array, sql, translate

_COPY = "COPY staged_records (run_id, booking_ns, record_id, group_key, order_key, body) FROM STDIN (FORMAT BINARY)"
_ROWS_MAX = 1000
_FETCH_BYTES_MAX = 4 * 1024 * 1024


def discard_others(store: Store, tenure: Tenure) -> None:
    """Discard what dead runs of this window have staged; claimed records do not live here, so nothing is lost."""
    delete = (
        "DELETE FROM staged_records USING runs WHERE staged_records.run_id = runs.id "
        "AND runs.window_id = %(window_id)s AND runs.id <> %(run_id)s"
    )
    store.transaction(lambda connection: connection.execute(delete, tenure.key()))


def stage_page(store: Store, tenure: Tenure, page: PageFacts, records: Sequence[Record], bad: list[BadRecord]) -> int:
    """Stage a page's due records and journal the page, in one transaction; safe to repeat.

    Returns:
        How many occurrences were staged that had not been sighted before in this run.
    """

    def work(connection: Connection) -> int:
        query = "SELECT staged FROM pages WHERE run_id = %s AND number = %s"
        found = connection.execute(query, (tenure.run_id, page.number)).fetchone()
        if found is not None:  # the answer to the first commit was lost
            return int(found[0])
        staged = _stage(connection, tenure.run_id, records)
        write_page(connection, tenure, msgspec.structs.replace(page, staged=staged), bad)
        return staged

    return store.transaction(work)


def _stage(connection: Connection, run_id: UUID, records: Sequence[Record]) -> int:
    try:
        with connection.transaction(), connection.cursor() as cursor, cursor.copy(_COPY) as copy:
            copy.set_types(["uuid", "int8", "bytea", "bytea", "bytea", "bytea"])
            for one in records:
                row = (run_id, one.booking_ns, utf8(one.record_id), one.group_key, one.order_key, one.body)
                copy.write_row(row)
        return len(records)
    except psycopg.errors.UniqueViolation:
        parameters = {
            "run_id": run_id,
            "booking_ns": number_array(one.booking_ns for one in records),
            "record_ids": byte_array(utf8(one.record_id) for one in records),
            "group_keys": byte_array(one.group_key for one in records),
            "order_keys": byte_array(one.order_key for one in records),
            "bodies": byte_array(one.body for one in records),
        }
        return connection.execute(sql("stage_slowly"), parameters).rowcount


@contextmanager
def read_in_order(store: Store, tenure: Tenure, expected: int, largest_bytes: int) -> Iterator[Iterator[Record]]:
    """Read a run's staged records back in group and payload order, a bounded number at a time.

    Args:
        expected: how many were staged; the staging table does not survive a crash of the database, so that is checked.
        largest_bytes: the size of the largest body, which bounds how many are fetched at once.

    Raises:
        CorruptError: when fewer or more come back.
        UnavailableError: when the connection is lost.
    """
    connection = store.connect()
    try:
        yield _fetch_in_order(connection, tenure, expected, largest_bytes)
    except psycopg.Error as error:
        raise translate(error) from error
    finally:
        connection.close()


def _fetch_in_order(connection: Connection, tenure: Tenure, expected: int, largest_bytes: int) -> Iterator[Record]:
    rows = min(_ROWS_MAX, max(1, _FETCH_BYTES_MAX // max(1, largest_bytes)))
    query = psycopg.sql.SQL(sql("staged_in_order")).format(run_id=psycopg.sql.Literal(tenure.run_id))
    connection.execute(query)
    cursor = connection.cursor(binary=True)
    got = 0
    while True:
        fetched = cursor.execute(f"FETCH {rows:d} FROM staged_in_order").fetchall()
        for identity, booking_ns, group_key, order_key, body in fetched:
            got += 1
            yield Record(identity.decode("utf-8", "surrogatepass"), booking_ns, group_key, order_key, body)
        if not fetched:
            break
    if got != expected:
        raise CorruptError(
            f"window {tenure.window}: {expected} records were staged, {got} came back; the database has lost them "
            "(it restarted in the middle?). Nothing wrong was sent; run the window again",
        )
