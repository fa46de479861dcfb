"""Jobs that were sent, but that no consumer has worked to the end within the time that was promised."""

from datetime import datetime
from typing import Any
from uuid import UUID

from ledger import evidence, findings, outbox
from ledger.findings import Seen
from ledger.instants import format_time
from reconcile.rescan import Rescan

_LISTED_AT_ONCE = 500


def look_at_overdue(rescan: Rescan) -> None:
    """Note the sent entries without a completed receipt after `reconcile.receipt_within`; nothing where it is unset."""
    run, within = rescan.run, rescan.options.settings.receipt_within
    if within is None:
        return
    dead: dict[str, set[str] | None] = {}
    parameters: dict[str, Any] = {
        "pipeline_id": run.tenure.pipeline_id,
        "window_id": run.tenure.window_id,
        "within": within,
        "limit": _LISTED_AT_ONCE,
        "after": outbox.FIRST_ID,
    }
    while rows := evidence.rows_of(run.store, "overdue_receipts", parameters):
        run.checkpoint()
        parameters["after"] = rows[-1][0]
        for queue in {row[2] for row in rows} - set(dead):
            dead[queue] = run.sqs.peek_dead_letters(run.queue(queue))
        findings.record_seen(
            run.store, run.tenure, "overdue_receipt", [_seen(*row, dead_letters=dead[row[2]]) for row in rows]
        )


def _seen(
    entry_id: UUID,
    key: bytes,
    queue: str,
    state: str | None,
    attempts: int | None,
    sent_at: datetime,
    *,
    dead_letters: set[str] | None,
) -> Seen:
    return Seen(
        subject=key,
        cause=None,
        entry_id=entry_id,
        detail={
            "queue": queue,
            "sent_at": format_time(sent_at),
            "receipt": state or "none",
            "attempts": attempts or 0,
            "in_dead_letter_queue": None if dead_letters is None else key.hex() in dead_letters,
        },
    )
