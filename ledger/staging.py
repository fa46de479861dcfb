"""The external sort of a staged run: records go in page by page, and come back in group and payload order."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from uuid import UUID

import msgspec
import psycopg

from ledger.canonical import utf8
from ledger.errors import CorruptError
from ledger.facts import BadRecord, PageFacts, Record
from ledger.leases import Tenure
from ledger.runs import write_page
from ledger.store import Connection, Store, byte_array, number_array, sql, translate

_COPY = (
    "COPY staged_records (run_id, booking_ns, record_id, group_key, order_key, body, fingerprint) "
    "FROM STDIN (FORMAT BINARY)"
)
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
            copy.set_types(["uuid", "int8", "bytea", "bytea", "bytea", "bytea", "int8"])
            for one in records:
                key = (run_id, one.booking_ns, utf8(one.record_id))
                copy.write_row((*key, one.group_key, one.order_key, one.body, one.fingerprint))
        return len(records)
    except psycopg.errors.UniqueViolation:
        parameters = {
            "run_id": run_id,
            "booking_ns": number_array(one.booking_ns for one in records),
            "record_ids": byte_array(utf8(one.record_id) for one in records),
            "group_keys": byte_array(one.group_key for one in records),
            "order_keys": byte_array(one.order_key for one in records),
            "bodies": byte_array(one.body for one in records),
            "fingerprints": number_array(one.fingerprint for one in records),
        }
        return connection.execute(sql("stage_slowly"), parameters).rowcount


class StagedRecords:
    """Reads a run's staged records back, a bounded number at a time, on a connection of its own.

    Args:
        expected: how many were staged; the staging table does not survive a crash of the database, so that is checked.
        largest_bytes: the size of the largest body, which bounds how many are fetched at once.

    Raises:
        UnavailableError: when the database cannot be reached.
    """

    def __init__(self, store: Store, tenure: Tenure, expected: int, largest_bytes: int) -> None:
        self._tenure = tenure
        self._expected = expected
        self._rows = min(_ROWS_MAX, max(1, _FETCH_BYTES_MAX // max(1, largest_bytes)))
        self._cursors = count()
        self._open = ExitStack()
        try:
            self._connection = self._open.enter_context(store.reading())
        except psycopg.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        """Close the connection."""
        self._open.close()

    def in_order(self) -> Iterator[Record]:
        """Yield all of them in group and payload order.

        Raises:
            CorruptError: when fewer or more come back than were staged.
            UnavailableError: when the connection is lost.
        """
        got = 0
        for got, record in enumerate(self._fetch("staged_in_order"), 1):  # noqa: B007 - the last number is the count
            yield record
        if got != self._expected:
            raise CorruptError(
                f"window {self._tenure.window}: {self._expected} records were staged, {got} came back; the database "
                "has lost them (it restarted in the middle?). Nothing wrong was sent; run the window again",
            )

    def of_group(self, group_key: bytes) -> Iterator[Record]:
        """Yield those of one group in payload order, while `in_order` waits; one group at a time.

        Raises:
            UnavailableError: when the connection is lost.
        """
        return self._fetch("staged_group", group_key)

    def _fetch(self, name: str, group_key: bytes = b"") -> Iterator[Record]:
        at = psycopg.sql.Identifier(f"{name}_{next(self._cursors)}")  # one left open by a broken-off reading is no harm
        fetch = psycopg.sql.SQL("FETCH {} FROM {}").format(psycopg.sql.Literal(self._rows), at)
        declare = psycopg.sql.SQL(sql(name)).format(cursor=at, run_id=self._tenure.run_id, group_key=group_key)
        try:
            self._connection.execute(declare)
            cursor = self._connection.cursor(binary=True)
            while fetched := cursor.execute(fetch).fetchall():
                for identity, *rest in fetched:
                    yield Record(identity.decode("utf-8", "surrogatepass"), *rest)
            self._connection.execute(psycopg.sql.SQL("CLOSE {}").format(at))
        except psycopg.Error as error:
            raise translate(error) from error
