"""What the ledger knows of a window, as far as a reconcile compares it with source, objects and receipts."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from ledger.canonical import idempotency_key, packed_id, unpacked_id, utf8
from ledger.facts import HoldKind, Occurrence, StoredObject
from ledger.instants import Window
from ledger.keys import parse_object_key
from ledger.leases import Tenure
from ledger.outbox import occurrence_arrays
from ledger.runs import pipeline_id
from ledger.store import Connection, Store, byte_array, number_array, sql, translate

_FETCH = 1000
_CURSORS = count()


class WindowFacts(msgspec.Struct, frozen=True):
    """How a window stands before a reconcile touches it.

    Attributes:
        held_reason, held_kind: why a person has to look first; None when nobody has to.
        leased: whether a run holds it right now.
        completed: whether a run has ever completed it.
        run_age_s: how long ago its last dispatch ended, or began if it never ended; None without any.
    """

    held_reason: str | None = None
    held_kind: HoldKind | None = None
    leased: bool = False
    completed: bool = False
    run_age_s: float | None = None


def window_facts(store: Store, pipeline: str, window: Window) -> WindowFacts:
    """Return how a window stands; one that the ledger has never heard of has nothing."""

    def work(connection: Connection) -> WindowFacts:
        parameters = {"pipeline_id": pipeline_id(connection, pipeline), "start_s": window.start_s}
        row = connection.execute(sql("window_facts"), parameters).fetchone()
        return WindowFacts(*row) if row else WindowFacts()

    return store.transaction(work)


class Difference(msgspec.Struct, frozen=True):
    """An occurrence that the ledger has not promised as it is.

    Attributes:
        place: where it stands in the list that was compared.
        entry_id: the entry that promised another content of it; None when nothing was promised.
    """

    place: int
    entry_id: UUID | None


def compare_claims(
    store: Store, tenure: Tenure, occurrences: Sequence[Occurrence], fingerprints: Sequence[int]
) -> list[Difference]:
    """Return which of these occurrences are not claimed, or were claimed with another content."""
    if not occurrences:
        return []
    parameters = {**occurrence_arrays(tenure, occurrences), "fingerprints": number_array(fingerprints)}
    rows = store.transaction(lambda connection: connection.execute(sql("compare_claims"), parameters).fetchall())
    return [Difference(place, entry_id) for place, entry_id in rows]


def fingerprints_between(store: Store, tenure: Tenure, first_ns: int, last_ns: int, limit: int) -> set[int]:
    """Return the fingerprints of what was claimed in a range of booking times, both ends included.

    A fingerprint covers the whole record, its id and booking time too: who shows one of them is claimed as it is.
    Reading a range, whose claims lie side by side, is far cheaper than looking each of them up. None at all where a
    redo repeated one, or where there are `limit` and more: most records of a range may be worked, or gone, and only
    their claims still lie there.
    """
    parameters = {"first_ns": first_ns, "last_ns": last_ns, "pipeline_id": tenure.pipeline_id, "limit": limit}

    def work(connection: Connection) -> set[int]:
        cursor = connection.cursor(binary=True)
        row = cursor.execute(sql("fingerprints_between"), parameters).fetchone()
        packed = array("q", row[0] if row and row[0] else b"")
        if sys.byteorder == "little":
            packed.byteswap()
        return set(packed)

    return store.transaction(work)


class ReadJournal(msgspec.Struct, frozen=True):
    """The last completed dispatch of a window, for whoever asks when a booking time was read."""

    run_id: UUID
    finished_at: datetime


def find_journal(store: Store, tenure: Tenure) -> ReadJournal | None:
    """Return the window's last completed dispatch, or None."""
    query = (
        "SELECT id, finished_at FROM runs "
        "WHERE window_id = %s AND outcome = 'completed' AND cause IN ('schedule', 'manual') "
        "ORDER BY finished_at DESC LIMIT 1"
    )
    row = store.transaction(lambda connection: connection.execute(query, (tenure.window_id,)).fetchone())
    return ReadJournal(*row) if row else None


class JournalPage(msgspec.Struct, frozen=True):
    """The page whose range covers a booking time, and when it was read."""

    number: int
    read_at: datetime


def find_page(store: Store, journal: ReadJournal, booking_time: str) -> JournalPage | None:
    """Return the page that read the range in which a booking time lies, given as the source spells it."""
    query = (
        "SELECT number, read_at FROM pages WHERE run_id = %(run_id)s "
        'ORDER BY last_time COLLATE "C" >= %(time)s DESC NULLS LAST, '
        'CASE WHEN last_time COLLATE "C" >= %(time)s THEN number ELSE -number END LIMIT 1'
    )
    parameters = {"run_id": journal.run_id, "time": booking_time.replace("\0", "")}
    row = store.transaction(lambda connection: connection.execute(query, parameters).fetchone())
    return JournalPage(*row) if row else None


def list_set_aside(store: Store, tenure: Tenure, record_ids: Sequence[str]) -> set[str]:
    """Return which of these records were once set aside in this window."""
    query = (
        "SELECT DISTINCT record_id FROM findings WHERE window_id = %s AND kind = 'bad_record' "
        "AND record_id = ANY(%s::bytea[])"
    )
    parameters = (tenure.window_id, byte_array(map(utf8, record_ids)))
    rows = store.transaction(lambda connection: connection.execute(query, parameters).fetchall())
    return {raw.decode("utf-8", "surrogatepass") for (raw,) in rows}


def claimed_elsewhen(store: Store, tenure: Tenure, record_ids: Sequence[str], within: timedelta) -> dict[str, int]:
    """Return where else in time these records were claimed: one other booking time each, nanoseconds since 1970.

    Args:
        within: how far before and after the window to look.
    """
    query = (
        "SELECT record_id, max(booking_ns) FROM claims WHERE pipeline_id = %s AND booking_ns BETWEEN %s AND %s "
        "AND record_id = ANY(%s::bytea[]) GROUP BY record_id"
    )
    margin_ns = int(within.total_seconds()) * 10**9
    bounds = (tenure.window.start_ns - margin_ns, tenure.window.end_ns + margin_ns)
    parameters = (tenure.pipeline_id, *bounds, byte_array(map(packed_id, record_ids)))
    rows = store.whole.transaction(lambda connection: connection.execute(query, parameters).fetchall())
    return {unpacked_id(raw): booking_ns for raw, booking_ns in rows}


def list_unfinished(store: Store, entry_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these entries are not sent yet, or not known to be."""
    query = (
        "SELECT id FROM entries WHERE id = ANY(%s::uuid[]) AND EXISTS (SELECT 1 FROM payload_parts "
        "WHERE payload_parts.window_id = entries.window_id AND payload_parts.entry_id = entries.id)"
    )
    if not entry_ids:
        return set()
    rows = store.transaction(lambda connection: connection.execute(query, (list(entry_ids),)).fetchall())
    return {entry_id for (entry_id,) in rows}


class Over(msgspec.Struct, frozen=True):
    """An occurrence, by its place among those asked for, whose last job will not be worked any more.

    Attributes:
        state: of that job's receipt: `completed`, or `superseded` by a redo that did not take this record along.
    """

    place: int
    entry_id: UUID
    state: str


def list_over(store: Store, tenure: Tenure, occurrences: Sequence[Occurrence]) -> list[Over]:
    """Return which of these occurrences' last jobs will not be worked any more."""
    parameters = occurrence_arrays(tenure, occurrences)
    rows = store.transaction(lambda connection: connection.execute(sql("stale_receipts"), parameters).fetchall())
    return [Over(*row) for row in rows]


def has_ended_receipts(store: Store, tenure: Tenure) -> bool:
    """Say whether any job of the window was worked to its end, or replaced by a redo."""
    query = "SELECT EXISTS (SELECT 1 FROM receipts WHERE window_id = %s AND state IN ('completed', 'superseded'))"
    row = store.transaction(lambda connection: connection.execute(query, (tenure.window_id,)).fetchone())
    return bool(row and row[0])


class PromisedObject(msgspec.Struct, frozen=True):
    """An object that an entry refers to.

    Attributes:
        sent: what the store answered to its upload; None while the entry is unfinished, or when it is void.
    """

    entry_id: UUID
    group_digest: bytes
    content_hash: bytes
    generation: int
    sent: StoredObject | None


def places_of(store: Store, tenure: Tenure) -> set[tuple[str, str]]:
    """Return the buckets and prefixes that the window's entries refer to."""
    query = (
        "SELECT bucket, prefix FROM destinations "
        "WHERE id IN (SELECT DISTINCT destination_id FROM entries WHERE window_id = %s)"
    )
    rows = store.transaction(lambda connection: connection.execute(query, (tenure.window_id,)).fetchall())
    return set(rows)


def promised_objects(store: Store, tenure: Tenure, bucket: str, prefix: str) -> Iterator[PromisedObject]:
    """Yield what the window's entries refer to in one place, in the byte order of the keys, on a connection of its own.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    try:
        with store.reading() as connection:
            at = psycopg.sql.Identifier(f"promised_{next(_CURSORS)}")
            declare = psycopg.sql.SQL(sql("promised_objects")).format(
                cursor=at,
                window_id=tenure.window_id,
                bucket=psycopg.sql.Literal(bucket),
                prefix=psycopg.sql.Literal(prefix),
            )
            connection.execute(declare)
            cursor = connection.cursor(binary=True)
            fetch = psycopg.sql.SQL("FETCH {} FROM {}").format(psycopg.sql.Literal(_FETCH), at)
            while rows := cursor.execute(fetch).fetchall():
                for entry_id, group, content, generation, size, etag in rows:
                    sent = None if etag is None else StoredObject(size, etag)
                    yield PromisedObject(entry_id, group, content, generation, sent)
    except psycopg.Error as error:
        raise translate(error) from error


def occurrences_of(store: Store, tenure: Tenure, entry_ids: Sequence[UUID]) -> dict[UUID, list[Occurrence]]:
    """Return what these entries have claimed, by entry; in no order."""
    query = (
        "SELECT entry_id, booking_ns, record_id FROM claims WHERE pipeline_id = %s AND booking_ns BETWEEN %s AND %s "
        "AND entry_id = ANY(%s::uuid[])"
    )
    window = tenure.window
    parameters = (tenure.pipeline_id, window.start_ns, window.end_ns, list(entry_ids))
    found: dict[UUID, list[Occurrence]] = {entry_id: [] for entry_id in entry_ids}
    for entry_id, booking_ns, raw in store.transaction(
        lambda connection: connection.execute(query, parameters).fetchall()
    ):
        found[entry_id].append((booking_ns, unpacked_id(raw)))
    return found


def rows_of(store: Store, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a statement that only reads, and whose number it bounds itself."""
    return store.transaction(lambda connection: connection.execute(sql(name), parameters).fetchall())


def stream_rows(store: Store, name: str, parameters: dict[str, Any]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a statement that only reads, a bounded number at a time, on a connection of its own.

    Raises:
        UnavailableError: when the database cannot be reached.
    """
    try:
        with store.reading() as connection, connection.cursor("streamed", withhold=True) as cursor:
            cursor.execute(sql(name), parameters)
            while rows := cursor.fetchmany(_FETCH):
                yield rows
    except psycopg.Error as error:
        raise translate(error) from error


def has_promise(store: Store, key: bytes) -> bool:
    """Say whether any entry, void or not, has this idempotency key."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM entries WHERE idempotency_key = %(key)s AND void_reason IS NULL) "
        "OR EXISTS (SELECT 1 FROM entries WHERE idempotency_key = %(key)s AND void_reason IS NOT NULL)"
    )

    def work(connection: Connection) -> bool:
        row = connection.execute(query, {"key": key}).fetchone()
        return bool(row and row[0])

    return any(one.transaction(work) for one in {store, store.whole})


def is_promised(store: Store, tenure: Tenure, key: str) -> bool:
    """Say whether any entry of the window refers to the object with this key."""
    promise = promise_of(tenure, key)
    return bool(promise) and has_promise(store, promise)


def promise_of(tenure: Tenure, key: str) -> bytes:
    """Return the idempotency key of the entry that would store an object of the window here; empty when none would."""
    parts = parse_object_key(key)
    return idempotency_key(tenure.pipeline, tenure.window.name, *parts) if parts else b""


def list_unpromised(
    store: Store, tenure: Tenure, bucket: str, keys: Sequence[str], *, even_noted: bool = False
) -> list[str]:
    """Return those of these object keys that no entry of the window refers to, in order.

    Args:
        even_noted: also those that a finding tells of.
    """
    parameters = {
        "keys": list(keys),
        "promises": byte_array(promise_of(tenure, key) for key in keys),
        "pipeline_id": tenure.pipeline_id,
        "bucket": bucket,
        "even_noted": even_noted,
    }
    return [key for (key,) in rows_of(store, "unpromised_objects", parameters)]


def count_unfinished(store: Store, pipeline: str, window: Window) -> int:
    """Count the entries of a window that are not sent yet, or not known to be."""
    query = (
        "SELECT count(DISTINCT entry_id) FROM payload_parts JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE pipelines.name = %s AND start_s = %s"
    )
    row = store.transaction(lambda connection: connection.execute(query, (pipeline, window.start_s)).fetchone())
    return int(row[0]) if row else 0


def list_here(store: Store, tenure: Tenure, entry_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these entries belong to this window; a record on the hour may be promised by its neighbour."""
    query = "SELECT id FROM entries WHERE id = ANY(%s::uuid[]) AND window_id = %s"
    parameters = (list(entry_ids), tenure.window_id)
    rows = store.transaction(lambda connection: connection.execute(query, parameters).fetchall())
    return {entry_id for (entry_id,) in rows}


def find_updated_at_attribute(store: Store, entry_id: UUID) -> str | None:
    """Return which attribute was said to tell when a record last changed, when an entry was opened."""
    query = "SELECT config FROM runs JOIN entries ON entries.run_id = runs.id WHERE entries.id = %s"
    row = store.transaction(lambda connection: connection.execute(query, (entry_id,)).fetchone())
    source = msgspec.json.decode(row[0]).get("source", {}) if row else {}
    name = source.get("updated_at_attribute")
    return name if isinstance(name, str) else None
