"""What a redo looks at, gathered in a temporary table: sorted by the database, gone with the transaction."""

from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec

from ledger.canonical import packed_id, unpacked_id
from ledger.facts import Occurrence, Record
from ledger.instants import HOUR_S, NS_PER_S, Window
from ledger.leases import Tenure
from ledger.store import Connection, byte_array, sql

_READ_AT_ONCE = 1000
_FETCH = 500
_CREATE = (
    "CREATE TEMPORARY TABLE gathered (booking_ns bigint NOT NULL, record_id bytea NOT NULL, wanted boolean NOT NULL, "
    "generation smallint NOT NULL, worked boolean NOT NULL, fingerprint bigint, group_key bytea, order_key bytea, "
    "body bytea, PRIMARY KEY (booking_ns, record_id)) ON COMMIT DROP"
)
_COPY = (
    "COPY gathered (booking_ns, record_id, wanted, generation, worked, fingerprint, group_key, order_key, body) "
    "FROM STDIN (FORMAT BINARY)"
)


class Promised(msgspec.Struct, frozen=True):
    """An occurrence that is claimed, as the ledger knows it.

    Attributes:
        generation: the highest of its claims.
        entry_id, group_digest: the entry that holds that claim.
        here: whether that is an entry of this window; on the hour it may be a neighbour's.
        unfinished: whether that entry is not sent yet.
        receipts: the states of the receipts of all its jobs, in order of generation, joined by commas.
        forgotten: whether one of its jobs was sent before this ledger was put back to an earlier state, and has no
            receipt that ended: it may have been worked since, and forgotten.
    """

    booking_ns: int
    record_id: str
    generation: int
    entry_id: UUID
    group_digest: bytes
    here: bool
    unfinished: bool
    receipts: str
    forgotten: bool = False

    @property
    def occurrence(self) -> Occurrence:
        """The key by which the ledger knows it."""
        return self.booking_ns, self.record_id

    @property
    def worked(self) -> bool:
        """Whether one of its jobs was worked to its end, or may have been as far as this ledger remembers."""
        return self.forgotten or "completed" in self.receipts.split(",")


def iter_promised(
    connection: Connection, pipeline_id: int, window: Window, record_ids: Sequence[str] | None
) -> Iterator[list[Promised]]:
    """Yield the claimed occurrences of a window in the order of the key, a bounded number at a time.

    Args:
        record_ids: only those of these records; None for all.
    """
    parameters = {
        "pipeline_id": pipeline_id,
        "start_s": window.start_s,
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "after_ns": window.start_ns - 1,
        "after_id": b"",
        "any_record": record_ids is None,
        "record_ids": byte_array(map(packed_id, record_ids or [])),
        "limit": _READ_AT_ONCE,
    }
    cursor = connection.cursor(binary=True)
    while rows := cursor.execute(sql("promised_in_window"), parameters).fetchall():
        parameters |= {"after_ns": rows[-1][0], "after_id": rows[-1][1]}
        yield [Promised(row[0], unpacked_id(row[1]), *row[2:]) for row in rows]


class Gathered(msgspec.Struct, frozen=True):
    """One occurrence that a redo has looked at: to be sent again as `record`, or, without one, no longer due."""

    promised: Promised
    record: Record | None


def begin_gathering(connection: Connection) -> None:
    """Make the temporary table."""
    connection.execute(_CREATE)


def gather(connection: Connection, found: Sequence[Gathered]) -> None:
    """Put occurrences into the temporary table."""
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(["int8", "bytea", "bool", "int2", "bool", "int8", "bytea", "bytea", "bytea"])
        for one in found:
            seen, record = one.promised, one.record
            content = (record.fingerprint, record.group_key, record.order_key, record.body) if record else (None,) * 4
            key = (seen.booking_ns, packed_id(seen.record_id))
            copy.write_row((*key, record is not None, seen.generation, seen.worked, *content))


def count_groups(connection: Connection) -> int:
    """Count the groups that are to be sent again."""
    row = connection.execute("SELECT count(DISTINCT group_key) FROM gathered WHERE wanted").fetchone()
    return int(row[0]) if row else 0


class InOrder:
    """Reads what is to be sent again, in group and payload order, in flat memory.

    Attributes:
        generations: for each group read so far, the generation that it is sent with: one more than the highest of its
            records'. Whoever has used one takes it out.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.generations: dict[bytes, int] = {}

    def records(self) -> Iterator[Record]:
        """Yield all of it."""
        for generation, record in self._read("gathered_in_order", "wanted", None):
            self.generations[record.group_key] = generation
            yield record

    def of_group(self, group_key: bytes) -> Iterator[Record]:
        """Yield one group."""
        for _, record in self._read("gathered_of_group", "wanted AND group_key = %s", (group_key,)):
            yield record

    def _read(self, name: str, condition: str, parameters: tuple[bytes, ...] | None) -> Iterator[tuple[int, Record]]:
        query = (
            "SELECT max(generation) OVER (PARTITION BY group_key) + 1, record_id, booking_ns, group_key, order_key, "  # noqa: S608
            f"body, fingerprint FROM gathered WHERE {condition} ORDER BY group_key, order_key"
        )
        with self._connection.cursor(name) as cursor:
            cursor.itersize = _FETCH
            cursor.execute(query, parameters, binary=True)
            for generation, record_id, *rest in cursor:
                yield generation, Record(unpacked_id(record_id), *rest)


class Replaced(msgspec.Struct, frozen=True):
    """What became of the jobs that a redo replaces.

    Attributes:
        superseded: how many will not be worked any more.
        in_work: how many a live consumer is working on right now.
        worked_since: occurrences of which one was worked to its end since they were looked at.
    """

    superseded: int
    in_work: int
    worked_since: int


def supersede(connection: Connection, tenure: Tenure, reason: str, *, of_any_run: bool = False) -> Replaced:
    """Keep the jobs that this run's entries replace from being worked, where they owe nothing else.

    Args:
        of_any_run: the jobs that any redo of the window has replaced.
    """
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "window_id": tenure.window_id,
        "run_id": tenure.run_id,
        "start_ns": tenure.window.start_ns,
        "end_ns": tenure.window.end_ns,
        "hour_ns": HOUR_S * NS_PER_S,
        "reason": reason,
        "of_any_run": of_any_run,
    }
    connection.execute(
        "CREATE TEMPORARY TABLE replaced (entry_id uuid PRIMARY KEY, window_id bigint NOT NULL, "
        "idempotency_key bytea NOT NULL, owes boolean NOT NULL) ON COMMIT DROP"
    )
    connection.execute("INSERT INTO replaced " + sql("replaced_jobs"), parameters)
    superseded = connection.execute(sql("supersede_receipts"), parameters).rowcount
    row = connection.execute(sql("replaced_in_work"), parameters).fetchone()
    return Replaced(superseded, *row) if row else Replaced(superseded, 0, 0)
