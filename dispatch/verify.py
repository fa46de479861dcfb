"""The index says where to look, the table says what is true: every record is read again right before it is claimed."""

from collections.abc import Sequence

import msgspec

from dispatch.run import Run
from ledger import findings
from ledger.canonical import members
from ledger.facts import BadRecord, Entry, Record
from ledger.instants import parse_booking_ns
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
    claimed = dict(
        _occurrence(run, bytes(body)) for body in msgspec.json.decode(b"[" + part + b"]", type=list[msgspec.Raw])
    )
    verdicts = zip(claimed.values(), run.judge_again(list(claimed)), strict=True)
    return all(isinstance(now, Record) and now.booking_ns == booking_ns for booking_ns, now in verdicts)


def _occurrence(run: Run, body: bytes) -> tuple[str, int]:
    """Read back which occurrence a body belongs to."""
    by_name = members(body)
    schema = run.rules.schema
    if schema.text_key is not None:
        identity = msgspec.json.decode(by_name[schema.text_key], type=str)
    else:
        names = sorted(schema.key_types, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        identity = (
            "{"
            + ",".join(f"{msgspec.json.encode(name).decode()}:{bytes(by_name[name]).decode()}" for name in names)
            + "}"
        )
    return identity, parse_booking_ns(msgspec.json.decode(by_name[run.rules.time_attribute], type=str))
