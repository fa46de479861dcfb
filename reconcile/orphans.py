"""Objects that no entry refers to: noted, quarantined by a tag, and removed only when a person asks for it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from dispatch.aws.objects import ListedObject
from dispatch.judging import promised
from ledger import clock, evidence, findings, outbox
from ledger.canonical import utf8
from ledger.facts import Occurrence, Repair
from ledger.findings import Seen
from ledger.instants import format_time
from reconcile.documents import DocumentReader
from reconcile.rescan import Rescan

TAG = "dispatch-ledger:orphan"
_RECORDS_LOOKED_AT_MAX = 1000


@dataclass(frozen=True)
class Orphan:
    """An object that was listed, and that no entry refers to."""

    bucket: str
    listed: ListedObject

    def is_still(self, now: ListedObject) -> bool:
        """Say whether this is what was listed. A listing may tell times more finely than a look at one object."""
        same_second = int(now.modified_at.timestamp()) == int(self.listed.modified_at.timestamp())
        return now.stored == self.listed.stored and same_second

    @property
    def subject(self) -> bytes:
        """What a finding of it is about."""
        return utf8(f"{self.bucket}/{self.listed.key}")


def handle_orphans(rescan: Rescan, orphans: Sequence[Orphan]) -> None:
    """Note the orphans that are old enough, and tag or remove them; each is looked at once more before."""
    run = rescan.run
    oldest = clock.utc_now() - rescan.options.settings.orphan_grace
    old = [one for one in orphans if one.listed.modified_at <= oldest]
    rescan.late += len(orphans) - len(old)
    if not old:
        return
    run.checkpoint()
    handled = findings.handled_orphans(run.store, run.tenure, [one.subject for one in old])
    fresh = [one for one in old if not _is_as_it_was_handled(one, handled)]
    ids = findings.record_seen(run.store, run.tenure, "orphan_object", [_seen(one) for one in fresh])
    ids |= {subject: identity for subject, (identity, _) in handled.items()}
    for one in old:  # also what was tagged before: its records may have been promised only since
        _note_outside_ledger(rescan, one)
    if rescan.options.repair:
        wanted = old if rescan.options.delete_orphans else fresh
        done = [one for one in wanted if _quarantine(rescan, one, ids[one.subject])]
        repair: Repair = "removed" if rescan.options.delete_orphans else "tagged"
        findings.record_seen(run.store, run.tenure, "orphan_object", [_seen(one, repair=repair) for one in done])


def _is_as_it_was_handled(orphan: Orphan, handled: findings.Handled) -> bool:
    """Say whether this very object was tagged before: written again since, it is another one."""
    identity_and_time = handled.get(orphan.subject)
    return identity_and_time is not None and orphan.listed.modified_at <= identity_and_time[1]


def _quarantine(rescan: Rescan, orphan: Orphan, finding_id: int) -> bool:
    """Tag or remove an object; not when it has changed, when an entry refers to it by now, or has no room for a tag."""
    run, key = rescan.run, orphan.listed.key
    run.before_send()
    now = run.objects.find(orphan.bucket, key)
    if now is None or not orphan.is_still(now) or evidence.is_promised(run.store, run.tenure, key):
        return False
    if rescan.options.delete_orphans:
        run.objects.remove(orphan.bucket, key)
        return True
    return run.objects.tag(orphan.bucket, key, TAG, str(finding_id))


def _seen(orphan: Orphan, repair: Repair | None = None) -> Seen:
    return Seen(
        subject=orphan.subject,
        cause=None,
        state="open" if repair is None else "repaired",
        repair=repair,
        object_key=orphan.listed.key,
        detail={
            "bucket": orphan.bucket,
            "bytes": orphan.listed.stored.size_bytes,
            "modified_at": format_time(orphan.listed.modified_at),
        },
    )


def _key_of(reader: DocumentReader) -> bytes:
    found = re.fullmatch(b'"([0-9a-f]{64})"', bytes(reader.opening.get("idempotency_key", b"")))
    return bytes.fromhex(found[1].decode()) if found else b""


def look_into(rescan: Rescan, orphan: Orphan) -> tuple[list[Occurrence], bytes]:
    """Read which occurrences an orphan holds, a bounded number of them, and the idempotency key of its job.

    What is no document of a group of ours holds none.
    """
    run = rescan.run
    reader = DocumentReader(run.objects.read(orphan.bucket, orphan.listed.key))
    try:
        occurrences = [promised(body, run.rules) for body in islice(reader, _RECORDS_LOOKED_AT_MAX)]
    except ValueError:
        return [], b""
    return occurrences, _key_of(reader)


def _note_outside_ledger(rescan: Rescan, orphan: Orphan) -> None:
    """Look into an orphan: when it holds records that the ledger has promised in another job, both may be worked."""
    run = rescan.run
    occurrences, key = look_into(rescan, orphan)
    claimed = outbox.claimed_already(run.store, run.tenure, occurrences)
    if not claimed or evidence.has_promise(run.store, key):
        return
    seen = Seen(
        subject=orphan.subject,
        cause="outside_ledger",
        entry_id=next(iter(claimed.values())),
        object_key=orphan.listed.key,
        detail={"verdict": "sent_twice", "proven": False, "receipts": 0, "records": len(claimed)},
    )
    findings.record_seen(run.store, run.tenure, "duplicate", [seen])
