"""Findings: one row a subject however often it is seen; open, then repaired, acknowledged, or closed by itself."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from ledger.canonical import canonical_json, utf8
from ledger.facts import BadRecord, Entry, FindingState, Repair
from ledger.leases import Tenure, check_fence, execute_fenced
from ledger.store import Connection, Store, byte_array, sql

# The de-duplication interval of a FIFO queue: https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/
FIFO_DEDUPLICATION_S = 300
PREVENTED = "proven prevented"


class Seen(msgspec.Struct, frozen=True):
    """One sighting, before it is merged into its finding's row."""

    subject: bytes
    cause: str | None
    detail: dict[str, object]
    state: FindingState = "open"
    repair: Repair | None = None
    record_id: str | None = None
    entry_id: UUID | None = None
    object_key: str | None = None


def record(
    connection: Connection,
    tenure: Tenure,
    kind: str,
    seen: Sequence[Seen],
    acknowledged_reason: str = PREVENTED,
) -> dict[bytes, int]:
    """Merge sightings of one kind into the findings, in the caller's transaction; safe to repeat.

    Args:
        acknowledged_reason: why those that are born acknowledged need nobody's look.

    Returns:
        The id of each finding, by its subject.
    """
    if not seen:
        return {}
    by_subject = {sight.subject: sight for sight in seen}
    sights = list(by_subject.values())
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "window_id": tenure.window_id,
        "run_id": tenure.run_id,
        "kind": kind,
        "acknowledged_reason": acknowledged_reason,
        "causes": [sight.cause for sight in sights],
        "subjects": byte_array(sight.subject for sight in sights),
        "record_ids": [None if sight.record_id is None else utf8(sight.record_id) for sight in sights],
        "entry_ids": [sight.entry_id for sight in sights],
        "states": [sight.state for sight in sights],
        "repairs": [sight.repair for sight in sights],
        "object_keys": [sight.object_key for sight in sights],
        "details": [canonical_json(sight.detail).decode() for sight in sights],
    }
    return dict(connection.execute(sql("upsert_findings"), parameters).fetchall())


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


def record_seen(
    store: Store, tenure: Tenure, kind: str, seen: Sequence[Seen], acknowledged_reason: str = PREVENTED
) -> dict[bytes, int]:
    """Merge sightings of one kind, under the fence, in a transaction of their own; safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """

    def work(connection: Connection) -> dict[bytes, int]:
        check_fence(connection, tenure)
        return record(connection, tenure, kind, seen, acknowledged_reason)

    return store.transaction(work) if seen else {}


class Unrepaired(msgspec.Struct, frozen=True):
    """A finding that is open or acknowledged, as far as it takes to see whether it has been mended meanwhile."""

    id: int
    subject: bytes


def list_unrepaired(store: Store, tenure: Tenure, kind: str, after: int, limit: int) -> list[Unrepaired]:
    """List up to `limit` open or acknowledged findings of one kind in the window, by id, after the one given."""
    query = (
        "SELECT id, subject FROM findings WHERE window_id = %s AND kind = %s AND state IN ('open', 'acknowledged') "
        "AND id > %s ORDER BY id LIMIT %s"
    )

    def work(connection: Connection) -> list[Unrepaired]:
        rows = connection.execute(query, (tenure.window_id, kind, after, limit)).fetchall()
        return [Unrepaired(*row) for row in rows]

    return store.transaction(work)


def mark_repaired(store: Store, tenure: Tenure, ids: Sequence[int], repair: Repair) -> None:
    """Write down that findings were repaired, and how; those that were repaired or closed before stay as they are.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    update = (
        "UPDATE findings SET state = 'repaired', repair = %s, last_run_id = %s, last_seen_at = ledger_now() "
        "WHERE id = ANY(%s::bigint[]) AND state IN ('open', 'acknowledged')"
    )
    if ids:
        execute_fenced(store, tenure, update, (repair, tenure.run_id, list(ids)))


def settle_unfinished(store: Store, tenure: Tenure) -> None:
    """Write down which unfinished entries are finished by now; safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    execute_fenced(store, tenure, sql("settle_unfinished"), tenure.key())


Handled = dict[bytes, tuple[int, datetime]]


def handled_orphans(store: Store, tenure: Tenure, subjects: Sequence[bytes]) -> Handled:
    """Return which of these orphans were tagged or removed before: the finding's id, and when that was."""
    query = (
        "SELECT subject, id, last_seen_at FROM findings WHERE pipeline_id = %s AND kind = 'orphan_object' "
        "AND state = 'repaired' AND subject = ANY(%s::bytea[])"
    )
    parameters = (tenure.pipeline_id, byte_array(subjects))
    rows = store.transaction(lambda connection: connection.execute(query, parameters).fetchall())
    return {subject: (identity, seen_at) for subject, identity, seen_at in rows}


def see_again(store: Store, tenure: Tenure, kind: str, subjects: Sequence[bytes]) -> None:
    """Write down that findings are still true, without saying anything new of them.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """
    update = (
        "UPDATE findings SET last_seen_at = ledger_now(), last_run_id = %s "
        "WHERE pipeline_id = %s AND kind = %s AND subject = ANY(%s::bytea[]) AND state IN ('open', 'acknowledged')"
    )
    if subjects:
        execute_fenced(store, tenure, update, (tenure.run_id, tenure.pipeline_id, kind, byte_array(subjects)))
