"""Findings that a dispatch makes: one row a subject however often it is seen."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from ledger.canonical import canonical_json, utf8
from ledger.facts import BadRecord, Entry
from ledger.leases import Tenure
from ledger.store import Connection, Store, byte_array, sql

# The de-duplication interval of a FIFO queue: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/
FIFO_DEDUPLICATION_S = 300


class Seen(msgspec.Struct, frozen=True):
    """One sighting, before it is merged into its finding's row."""

    subject: bytes
    cause: str
    detail: dict[str, object]
    state: str = "open"
    record_id: str | None = None
    entry_id: UUID | None = None


def record(connection: Connection, tenure: Tenure, kind: str, seen: Sequence[Seen]) -> None:
    """Merge sightings of one kind into the findings, in the caller's transaction; safe to repeat."""
    if not seen:
        return
    by_subject = {sight.subject: sight for sight in seen}
    sights = list(by_subject.values())
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "window_id": tenure.window_id,
        "run_id": tenure.run_id,
        "kind": kind,
        "causes": [sight.cause for sight in sights],
        "subjects": byte_array(sight.subject for sight in sights),
        "record_ids": [None if sight.record_id is None else utf8(sight.record_id) for sight in sights],
        "entry_ids": [sight.entry_id for sight in sights],
        "states": [sight.state for sight in sights],
        "details": [canonical_json(sight.detail).decode() for sight in sights],
    }
    connection.execute(sql("upsert_findings"), parameters)


def record_bad(connection: Connection, tenure: Tenure, bad: Sequence[BadRecord]) -> None:
    """Record the records that were set aside."""
    record(
        connection,
        tenure,
        "bad_record",
        [
            Seen(
                subject=utf8(f"{one.record_id}@{one.booking_time}"),
                cause=one.cause,
                record_id=one.record_id,
                detail={"booking_time": one.booking_time, "reason": one.detail},
            )
            for one in bad
        ],
    )


def record_refused(connection: Connection, tenure: Tenure, refused: Sequence[tuple[Entry, str]]) -> None:
    """Record the entries that their queue will never take; the same content is the same finding in a later run."""
    sights = [
        Seen(
            subject=entry.idempotency_key,
            cause="refused",
            entry_id=entry.id,
            detail={"queue": entry.destination.queue, "reason": reason, "records": entry.records_n},
        )
        for entry, reason in refused
    ]
    record(connection, tenure, "unfinished", sights)


class Repeated(msgspec.Struct, frozen=True):
    """An entry of which more than one try may have reached the queue."""

    entry: Entry
    accepted: int
    first_age_s: float


def judge_repeated(repeated: Repeated) -> Seen:
    """Decide what a repeated send is: prevented where a FIFO queue must have dropped it, else a possible duplicate."""
    fifo = repeated.entry.destination.queue.endswith(".fifo")
    prevented = fifo and repeated.first_age_s < FIFO_DEDUPLICATION_S
    return Seen(
        subject=repeated.entry.idempotency_key,
        cause="resent",
        state="acknowledged" if prevented else "open",
        entry_id=repeated.entry.id,
        detail={
            "verdict": "prevented" if prevented else "sent_twice",
            "proven": prevented or repeated.accepted > 1,
            "accepted": repeated.accepted,
            "receipts": 0,
            "queue": repeated.entry.destination.queue,
        },
    )


def count_open(store: Store, tenure: Tenure) -> int:
    """Count the open findings of a window."""
    query = "SELECT count(*) FROM findings WHERE window_id = %s AND state = 'open'"

    def work(connection: Connection) -> int:
        row = connection.execute(query, (tenure.window_id,)).fetchone()
        return int(row[0]) if row else 0

    return store.transaction(work)
