"""Entries left half-way: noted, then brought to their end from the ledger alone."""

from dispatch.emit import recover
from ledger import findings, outbox
from ledger.facts import Entry
from ledger.findings import Seen
from reconcile.rescan import Rescan

_LISTED_AT_ONCE = 200


def finish_unfinished(rescan: Rescan) -> None:
    """Note the entries that nobody works on any more, and finish them; young ones are left alone."""
    run, quiet = rescan.run, rescan.options.grace
    after = outbox.FIRST_ID
    while unfinished := outbox.list_unfinished(run.store, run.tenure, after, _LISTED_AT_ONCE, quiet):
        after = unfinished[-1].id
        findings.record_seen(run.store, run.tenure, "unfinished", [_seen(entry) for entry in unfinished])
    if rescan.options.repair:
        recover(run, quiet)
    findings.settle_unfinished(run.store, run.tenure)


def _seen(entry: Entry) -> Seen:
    return Seen(
        subject=entry.idempotency_key,
        cause="send_unknown" if entry.unproven else "not_sent",
        entry_id=entry.id,
        detail={"records": entry.records_n, "queue": entry.destination.queue, "attempts": entry.attempts},
    )
