"""What was sent of a record, read back from its entry's object."""

from uuid import UUID

from dispatch.judging import promised
from dispatch.payload import object_key
from dispatch.run import Run
from ledger import evidence, outbox
from ledger.canonical import fingerprint
from ledger.facts import Record
from reconcile.documents import DocumentReader


def was_sent_as_it_is(run: Run, entry_id: UUID, record: Record) -> bool:
    """Say whether a record whose fingerprint differs from its claim's was sent as it is all the same.

    A fingerprint leaves out the attribute that tells when a record last changed. When another one was configured at the
    time, fingerprints do not compare, and the object itself has to tell.
    """
    attribute = run.rules.updated_at_attribute
    if evidence.find_updated_at_attribute(run.store, entry_id) == attribute:
        return False
    for entry in outbox.load_sent(run.store, run.tenure, [entry_id]):
        for body in DocumentReader(run.objects.read(entry.destination.bucket, object_key(entry))):
            try:
                if promised(body, run.rules) == (record.booking_ns, record.record_id):
                    return fingerprint(body, attribute) == record.fingerprint
            except ValueError:
                return False
    return False
