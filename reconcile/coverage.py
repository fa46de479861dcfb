"""Source against claims: every record that is due now should have been promised, and as it is now."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec

from dispatch.aws.pool import one_ahead
from dispatch.emit import emit
from dispatch.feeders import BATCH_RECORDS_MAX, sift
from dispatch.grouping import group_records
from dispatch.items import Item
from dispatch.judging import fingerprint_of, shows_due, sighted
from ledger import evidence, findings, outbox
from ledger.canonical import members, utf8
from ledger.evidence import Difference
from ledger.facts import BadRecord, Occurrence, Record
from ledger.findings import Seen
from ledger.instants import format_ns, parse_booking_ns, parse_instant
from reconcile.causes import Evidence, cause_of_missed, detail_of
from reconcile.guard import guard_missed
from reconcile.rescan import Rescan, Sighting, occurrence_of
from reconcile.sent import was_sent_as_it_is

_REFUSED_AGAIN_AFTER = timedelta(hours=1)
# How many more claims than twice its records the range of a page may hold and still be read as a whole.
_CLAIMS_BESIDE_MAX = 1000
_NO_TEXT: dict[str, str] = {}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
T = TypeVar("T")


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), BATCH_RECORDS_MAX):
        yield items[at : at + BATCH_RECORDS_MAX]


def compare_source(rescan: Rescan) -> None:
    """Read the window once, page by page, and note what differs from the ledger; the books become the coverage."""
    run = rescan.run
    over = evidence.has_ended_receipts(run.store, run.tenure)
    for page in one_ahead(run.source.pages(run.tenure.window, run.page_size)):
        run.checkpoint()
        run.counts.pages += 1
        unchanged, rest = _set_apart(rescan, page.items)
        promised = [found for item in unchanged if (found := sighted(item, run.rules))] if over else []
        if rest:
            sifted = sift(run, msgspec.structs.replace(page, items=rest))
            promised += _look_at_due(rescan, sifted.candidates)
            _look_at_unusable(rescan, sifted.bad)
        if over:
            _look_at_over(rescan, promised)
        run.progress()
    run.counts.already_claimed = run.counts.due - rescan.unclaimed


def _set_apart(rescan: Rescan, items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Count the due records that were promised just as they are; returns them, and the items to look at closely.

    Nearly all records of a clean window are like that, so this decides how fast it is: no group, no order, no route,
    and mostly not even their booking time.
    """
    run = rescan.run
    if not run.rules.schema.projects_all:
        return [], list(items)
    marks = [fingerprint_of(item, run.rules) if shows_due(item, run.rules) else None for item in items]
    known = _fingerprints_nearby(rescan, items)
    unchanged, doubtful, rest = [], [], []
    for item, mark in zip(items, marks, strict=True):
        if mark in known:
            unchanged.append(item)
        elif mark is not None and (occurrence := sighted(item, run.rules)) is not None:
            doubtful.append((item, occurrence, mark))
        else:
            rest.append(item)
    different = evidence.compare_claims(
        run.store, run.tenure, [one for _, one, _ in doubtful], [mark for *_, mark in doubtful]
    )
    places = {one.place for one in different}
    unchanged += [item for place, (item, *_) in enumerate(doubtful) if place not in places]
    rest += [item for place, (item, *_) in enumerate(doubtful) if place in places]
    run.counts.evaluated += len(unchanged)
    run.counts.due += len(unchanged)
    return unchanged, rest


def _fingerprints_nearby(rescan: Rescan, items: Sequence[Item]) -> set[int]:
    """Return the fingerprints of the claims around these items' booking times, as far as reading them all is cheap.

    Where many records share one booking time, any number of claims may lie there, and each is looked up on its own.
    """
    run = rescan.run
    times = {item.get(run.rules.time_attribute, _NO_TEXT).get("S", "") for item in items}
    if len(times) * 2 <= len(items):
        return set()
    if len(set(map(len, times))) == 1:  # texts of one length sort as instants, so two of them have to be read
        times = {min(times), max(times)}
    try:
        instants = [parse_booking_ns(one) for one in times]
    except ValueError:
        return set()
    return evidence.fingerprints_between(
        run.store, run.tenure, min(instants), max(instants), 2 * len(items) + _CLAIMS_BESIDE_MAX
    )


def _compare(rescan: Rescan, records: Sequence[Record]) -> list[Difference]:
    run = rescan.run
    occurrences = [one.occurrence for one in records]
    return evidence.compare_claims(run.store, run.tenure, occurrences, [one.fingerprint for one in records])


def _look_at_due(rescan: Rescan, records: Sequence[Record]) -> list[Occurrence]:
    """Note which due records were never promised, or promised otherwise; returns those that were promised at all."""
    differences = _compare(rescan, records)
    unclaimed = [records[one.place] for one in differences if one.entry_id is None]
    changed = [records[one.place] for one in differences if one.entry_id is not None]
    promised = {one.occurrence for one in records} - {one.occurrence for one in unclaimed}
    if rescan.completed:
        unclaimed = _confirm_unclaimed(rescan, unclaimed)
    rescan.unclaimed += len(unclaimed)
    _note_changed(rescan, _still_due(rescan, [one.occurrence for one in changed]))
    return list(promised)


def _confirm_unclaimed(rescan: Rescan, records: Sequence[Record]) -> list[Record]:
    """Ask the base table, and the claims once more; what it does not confirm is recounted, the rest is missed."""
    run = rescan.run
    verdicts = list(run.judge_again([one.record_id for one in records]))
    due = [now for now in verdicts if isinstance(now, Record)]
    bad = [now for now in verdicts if isinstance(now, BadRecord)]
    run.counts.due -= len(records) - len(due)
    run.counts.set_aside += len(bad)
    run.counts.not_due += len(records) - len(due) - len(bad)
    _look_at_unusable(rescan, bad)
    missed = [due[one.place] for one in _compare(rescan, due) if one.entry_id is None]
    for record in missed:
        sighting = _sighting(rescan, record)
        if not rescan.is_late(sighting.changed_at):
            rescan.note_missed(sighting)
    return missed


def _sighting(rescan: Rescan, record: Record) -> Sighting:
    by_name = members(record.body)
    time = msgspec.json.decode(by_name[rescan.run.rules.time_attribute], type=str)
    return Sighting(
        record.record_id, record.booking_ns, time, _changed_at(by_name, rescan.run.rules.updated_at_attribute)
    )


def _changed_at(by_name: dict[str, msgspec.Raw], attribute: str | None) -> datetime | None:
    """Read when a record last changed; None when it does not say so, or not in a way that can be read."""
    if attribute is None or attribute not in by_name:
        return None
    try:
        seconds, fraction = parse_instant(msgspec.json.decode(by_name[attribute], type=str))
        return _EPOCH + timedelta(seconds=seconds, microseconds=int(fraction[:6].ljust(6, "0")))
    except (ValueError, OverflowError, msgspec.DecodeError):
        return None


def _still_due(rescan: Rescan, occurrences: Sequence[Occurrence]) -> list[Record]:
    """Return those that the base table has as due at the same booking time, as they are there."""
    verdicts = rescan.run.judge_again([record_id for _, record_id in occurrences])
    return [
        now
        for occurrence, now in zip(occurrences, verdicts, strict=True)
        if isinstance(now, Record) and now.occurrence == occurrence
    ]


def _note_changed(rescan: Rescan, records: Sequence[Record]) -> None:
    run = rescan.run
    seen = []
    changed = _compare(rescan, records)
    here = evidence.list_here(run.store, run.tenure, [one.entry_id for one in changed if one.entry_id is not None])
    for one in changed:
        record = records[one.place]
        if one.entry_id not in here or rescan.is_late(_sighting(rescan, record).changed_at):
            continue
        if not was_sent_as_it_is(run, one.entry_id, record):
            seen.append(_changed(record.record_id, record.booking_ns, str(record.fingerprint), one.entry_id))
    findings.record_seen(run.store, run.tenure, "changed_after_dispatch", seen)


def _changed(record_id: str, booking_ns: int, content: str, entry_id: object) -> Seen:
    """Make a finding of one content: when the record changes once more, that is another finding."""
    return Seen(
        subject=utf8(f"{record_id}@{booking_ns}#{content}"),
        cause=None,
        record_id=record_id,
        entry_id=entry_id,  # type: ignore[arg-type]
        detail={"booking_time": format_ns(booking_ns), "sent_by": str(entry_id)},
    )


def _look_at_over(rescan: Rescan, occurrences: Sequence[Occurrence]) -> None:
    """Note which records still wait although their job was worked to its end, or will never be.

    A redo replaces a job and leaves out its records that are not due. One that is due again afterwards has no job, and
    is not sent by itself: consumers that keep no receipts may have worked the job before it was replaced.
    """
    run = rescan.run
    found = {occurrences[one.place]: one for one in evidence.list_over(run.store, run.tenure, occurrences)}
    here = evidence.list_here(run.store, run.tenure, [one.entry_id for one in found.values()])
    worked, replaced = [], []
    for record in _still_due(rescan, list(found)):
        one, sighting = found[record.occurrence], _sighting(rescan, record)
        if one.state == "completed":
            detail: dict[str, object] = {"booking_time": sighting.booking_time, "worked_by": str(one.entry_id)}
            worked.append(Seen(sighting.subject, None, detail, record_id=record.record_id, entry_id=one.entry_id))
        elif one.entry_id in here and not rescan.is_late(sighting.changed_at):
            replaced.append(_replaced(record, one.entry_id))
    findings.record_seen(run.store, run.tenure, "stale_source_status", worked)
    findings.record_seen(run.store, run.tenure, "changed_after_dispatch", replaced)


def _replaced(record: Record, entry_id: UUID) -> Seen:
    seen = _changed(record.record_id, record.booking_ns, str(record.fingerprint), entry_id)
    detail = {**seen.detail, "replaced": True, "mend": "redo plan --record, then redo apply"}
    return msgspec.structs.replace(seen, detail=detail)


def _look_at_unusable(rescan: Rescan, bad: Sequence[BadRecord]) -> None:
    """Note unusable records: never promised, or made unusable after they were."""
    run = rescan.run
    readable = [(one, booking_ns) for one in bad if (booking_ns := _booking_ns(one)) is not None]
    claimed = outbox.claimed_already(
        run.store, run.tenure, [(booking_ns, one.record_id) for one, booking_ns in readable]
    )
    changed = {place: readable[place] for place in claimed}
    promised = {id(one) for one, _ in changed.values()}
    unpromised = [one for one in bad if id(one) not in promised]
    run.store.transaction(lambda connection: findings.record_bad(connection, run.tenure, unpromised))
    here = evidence.list_here(run.store, run.tenure, list(claimed.values()))
    seen = [
        _changed(one.record_id, booking_ns, one.cause, claimed[place])
        for place, (one, booking_ns) in changed.items()
        if claimed[place] in here
    ]
    findings.record_seen(run.store, run.tenure, "changed_after_dispatch", seen)


def _booking_ns(bad: BadRecord) -> int | None:
    try:
        return parse_booking_ns(bad.booking_time)
    except ValueError:
        return None


def note_missed(rescan: Rescan) -> None:
    """Note what was missed, with the cause; and make sure that it is the world that is wrong, not the ledger.

    Raises:
        GuardError: when the ledger is suspected; the window is held then, and nothing is sent.
    """
    run = rescan.run
    _leave_out_refused(rescan)
    for chunk in _chunks(_in_order(rescan)):
        run.checkpoint()
        findings.record_seen(run.store, run.tenure, "missed", _explain(rescan, chunk))
    guard_missed(rescan)


def redispatch_missed(rescan: Rescan) -> None:
    """Send what was missed, alone: each under a consistent read, through the same path as a dispatch."""
    if rescan.options.repair:
        for chunk in _chunks(_in_order(rescan)):
            emit(rescan.run, _still_due(rescan, [one.occurrence for one in chunk]))
        settle_missed(rescan)


def _in_order(rescan: Rescan) -> list[Sighting]:
    return sorted(rescan.missed.values(), key=lambda one: one.occurrence)


def _leave_out_refused(rescan: Rescan) -> None:
    """Leave out the groups that their queue has refused just as they are, a moment ago: that is a finding already.

    They are tried again after a while, in case the queue has been mended.
    """
    run = rescan.run
    for chunk in _chunks(_in_order(rescan)):
        groups = group_records(_still_due(rescan, [one.occurrence for one in chunk]), run.rules)
        by_key = {outbox.key_of(run.tenure, group): group for group in groups}
        refused = outbox.list_refused(run.store, list(by_key), _REFUSED_AGAIN_AFTER)
        for key in refused:
            for record in by_key[key].records:
                rescan.missed_n -= rescan.missed.pop(record.occurrence, None) is not None
        findings.see_again(run.store, run.tenure, "unfinished", refused)


def _explain(rescan: Rescan, sightings: Sequence[Sighting]) -> list[Seen]:
    run = rescan.run
    identities = [one.record_id for one in sightings]
    journal = evidence.find_journal(run.store, run.tenure)
    set_aside = evidence.list_set_aside(run.store, run.tenure, identities)
    elsewhen = evidence.claimed_elsewhen(run.store, run.tenure, identities, rescan.options.settings.deep_lookback)
    seen = []
    for one in sightings:
        page = evidence.find_page(run.store, journal, one.booking_time) if journal else None
        known = Evidence(
            set_aside=one.record_id in set_aside,
            page=page.number if page else None,
            read_at=page.read_at if page else None,
            finished_at=journal.finished_at if journal else None,
            changed_at=one.changed_at,
            elsewhen_ns=elsewhen.get(one.record_id),
        )
        seen.append(
            Seen(
                subject=one.subject,
                cause=cause_of_missed(known),
                record_id=one.record_id,
                detail=detail_of(known, one.booking_ns),
            )
        )
    return seen


def settle_missed(rescan: Rescan) -> None:
    """Write down which missed records have been sent by now, by this reconcile or by one that died before it could.

    One whose job is still unfinished is not: that job may become void, when the record is not due any more.
    """
    run = rescan.run
    after = 0
    while found := findings.list_unrepaired(run.store, run.tenure, "missed", after, BATCH_RECORDS_MAX):
        after = found[-1].id
        claimed = outbox.claimed_already(run.store, run.tenure, [occurrence_of(one.subject) for one in found])
        unfinished = evidence.list_unfinished(run.store, list(claimed.values()))
        sent = [found[place].id for place, entry_id in claimed.items() if entry_id not in unfinished]
        findings.mark_repaired(run.store, run.tenure, sent, "redispatched")
