"""What was sent, or worked, more often than once: told apart, never mended."""

from typing import Any
from uuid import UUID

from ledger import evidence, findings
from ledger.findings import FIFO_DEDUPLICATION_S, Seen
from reconcile.rescan import Rescan

_LISTED_MAX = 10_000


def look_at_duplicates(rescan: Rescan) -> None:
    """Note the entries that were sent more than once, by accident or on a person's wish."""
    run, tenure = rescan.run, rescan.run.tenure
    parameters = {
        "pipeline_id": tenure.pipeline_id,
        "window_id": tenure.window_id,
        "start_ns": tenure.window.start_ns,
        "end_ns": tenure.window.end_ns,
        "limit": _LISTED_MAX,
    }
    repeated = evidence.rows_of(run.store, "repeated_in_window", parameters)
    findings.record_seen(run.store, tenure, "duplicate", [_repeated(*row) for row in repeated])
    for redone in evidence.stream_rows(run.store, "redone_entries", parameters):
        run.checkpoint()
        seen = [_redone(*row) for row in redone]
        findings.record_seen(run.store, tenure, "duplicate", seen, "a person wanted it sent again")


def _repeated(entry_id: UUID, key: bytes, queue: str, accepted: int, apart_s: float, receipts: int) -> Seen:
    """Judge an entry that more than one try may have carried to its queue.

    A FIFO queue drops a repeat within its de-duplication interval; otherwise nobody knows but the consumers.
    """
    prevented = queue.endswith(".fifo") and apart_s < FIFO_DEDUPLICATION_S
    return Seen(
        subject=key,
        cause="resent",
        state="acknowledged" if prevented else "open",
        entry_id=entry_id,
        detail={
            "verdict": "prevented" if prevented else "sent_twice",
            "proven": prevented or accepted > 1,
            "accepted": accepted,
            "receipts": receipts,
            "queue": queue,
        },
    )


def _redone(entry_id: UUID, key: bytes, generation: int, records_n: int, receipts: int) -> Seen:
    detail: dict[str, Any] = {
        "verdict": "worked_twice" if receipts > 1 else "sent_twice",
        "generation": generation,
        "records": records_n,
        "receipts": receipts,
    }
    # A subject of its own: the same entry may also have been sent twice by accident.
    return Seen(subject=key + b"#redo", cause="redo", state="acknowledged", entry_id=entry_id, detail=detail)
