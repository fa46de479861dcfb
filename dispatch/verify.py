"""The index says where to look, the table says what is true: every record is read again right before it is claimed."""

from collections.abc import Sequence

import msgspec

from dispatch.judging import promised
from dispatch.run import Run
from ledger import findings
from ledger.facts import BadRecord, Entry, Record
from ledger.outbox import iter_parts


def verify(run: Run, candidates: Sequence[Record]) -> list[Record]:
    """Return what is really due of these candidates, as the base table has it now; the rest is recounted."""
    return [now for _, now in verify_each(run, candidates)]


def verify_each(run: Run, candidates: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return each candidate that is really due, with what the base table has now; the rest is recounted.

    With `verify_due` off the candidates are believed. A record that is due at another time of this window is due at
    that time; its later sighting there counts as already claimed.
    """
    if not run.verify_due:
        return [(one, one) for one in candidates]
    due: list[tuple[Record, Record]] = []
    bad: list[BadRecord] = []
    for before, now in zip(candidates, run.judge_again([one.record_id for one in candidates]), strict=True):
        if isinstance(now, Record):
            due.append((before, now))
        elif isinstance(now, BadRecord):
            bad.append(now)
    run.counts.set_aside += len(bad)
    run.counts.not_due += len(candidates) - len(due) - len(bad)
    run.counts.due -= len(candidates) - len(due)
    if bad:
        run.store.transaction(lambda connection: findings.record_bad(connection, run.tenure, bad))
    return due


def still_due(run: Run, entry: Entry) -> bool:
    """Say whether every record of an entry that was never sent is still due, at the booking time it was claimed for."""
    return all(_part_is_due(run, part) for part in iter_parts(run.store, run.tenure, entry))


def _part_is_due(run: Run, part: bytes) -> bool:
    bodies = msgspec.json.decode(b"[" + part + b"]", type=list[msgspec.Raw])
    claimed = {identity: booking_ns for booking_ns, identity in (promised(bytes(one), run.rules) for one in bodies)}
    verdicts = zip(claimed.values(), run.judge_again(list(claimed)), strict=True)
    return all(isinstance(now, Record) and now.booking_ns == booking_ns for booking_ns, now in verdicts)
