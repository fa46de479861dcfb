"""Stores a lost object again, where the source can still meet the hash that was promised."""

from collections.abc import Sequence
from uuid import UUID

from dispatch.emit import upload_of
from dispatch.judging import judge
from dispatch.payload import document
from ledger import evidence, outbox
from ledger.canonical import content_hash
from ledger.facts import Occurrence, Record
from reconcile.rescan import Rescan

# A larger group is not put together in memory; its object stays missing, for a person.
_RECORDS_MAX = 10_000


def rebuild_objects(rescan: Rescan, entry_ids: Sequence[UUID]) -> list[UUID]:
    """Store the objects of these sent entries again; returns those whose content is the promised one, and is stored."""
    run = rescan.run
    entries = [one for one in outbox.load_sent(run.store, run.tenure, entry_ids) if one.records_n <= _RECORDS_MAX]
    occurrences = evidence.occurrences_of(run.store, run.tenure, [one.id for one in entries])
    rebuilt = []
    for entry in entries:
        run.checkpoint()
        bodies = _bodies(rescan, occurrences[entry.id])
        if content_hash(bodies) == entry.content_hash:
            upload = upload_of(entry, document(entry, b",".join(bodies)))
            (stored,) = run.objects.put_many(entry.destination.bucket, [upload])
            outbox.record_rebuilt(run.store, run.tenure, entry, stored)
            rebuilt.append(entry.id)
    return rebuilt


def _bodies(rescan: Rescan, occurrences: Sequence[Occurrence]) -> list[bytes]:
    """Read the records again, in payload order, each with the status that it was sent with; the hash will tell."""
    run = rescan.run
    rules = run.rules
    items = run.source.read_again([record_id for _, record_id in occurrences])
    records = []
    for booking_ns, record_id in occurrences:
        item = items.get(record_id)
        if item is not None:
            verdict = judge({**item, rules.status_attribute: {"S": rules.due_status}}, rules)
            if isinstance(verdict, Record) and verdict.booking_ns == booking_ns:
                records.append(verdict)
    return [one.body for one in sorted(records, key=lambda one: one.order_key)]
