"""What must be true after a round. Each check gives what it found wrong, one line each.

They read the tables by SQL, the emulator's contents, and what was seen on the wires; nothing of the product is called.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from tests.aws_servers import World
from tests.soak.hands import Notes
from tests.soak.ledger import dump, query
from tests.soak.source import GROUP, ROUTES, Occurrence, Source, Version, instant_ns, occurrence_of, plain

_SLACK = timedelta(milliseconds=50)
_IN_ONE_TRANSACTION = timedelta(seconds=20)
_FIFO = ".fifo"


@dataclass(frozen=True)
class Entry:
    """An entry as the tables have it."""

    id: str
    window_s: int
    opened_at: datetime
    digest: str
    content: str
    key: str
    generation: int
    records_n: int
    group: str
    void: str | None
    run_id: str
    run_started_at: datetime
    job: str
    queue: str
    place: str

    @property
    def object_key(self) -> str:
        return f"{self.place}{self.digest}/{self.content}-{self.generation}.json"


_ENTRIES = """
SELECT entries.id::text, start_s, opened_at, encode(group_digest, 'hex'), encode(content_hash, 'hex'),
       encode(idempotency_key, 'hex'), generation, records_n, group_json, void_reason, run_id::text, runs.started_at,
       job, queue,
       prefix || pipelines.name || to_char(to_timestamp(start_s) AT TIME ZONE 'UTC', '/YYYY/MM/DD/HH24/')
FROM entries
JOIN windows ON windows.id = entries.window_id
JOIN pipelines ON pipelines.id = windows.pipeline_id
JOIN runs ON runs.id = run_id
JOIN destinations ON destinations.id = destination_id
"""
_TRIES = """
SELECT entry_id::text, outcome FROM attempts UNION ALL SELECT entry_id::text, 'unknown' FROM open_attempts
"""
# When each entry was first marked to be sent, and when the run began that did so.
_FIRST_MARKS = """
SELECT DISTINCT ON (entry_id) entry_id::text, marked_at, runs.started_at
FROM (SELECT entry_id, number, fence, marked_at FROM attempts
      UNION ALL SELECT entry_id, number, fence, marked_at FROM open_attempts) AS tries
JOIN entries ON entries.id = entry_id
JOIN runs ON runs.window_id = entries.window_id AND runs.fence = tries.fence
ORDER BY entry_id, number
"""
_PLANS = """
SELECT start_s, applying_at, scope FROM plans JOIN windows ON windows.id = window_id
WHERE applying_at IS NOT NULL ORDER BY applying_at
"""
_FINDINGS = """
SELECT kind, cause, state, record_id, entry_id::text, object_key, encode(subject, 'hex') FROM findings
"""
_UNSETTLED = {
    "payload_parts": "SELECT count(*) FROM payload_parts",
    "staged_records": "SELECT count(*) FROM staged_records",
    "windows with a lease": "SELECT count(*) FROM windows WHERE lease_until > ledger_now()",
    "held windows": "SELECT count(*) FROM windows WHERE held_at IS NOT NULL",
    "plans half applied": "SELECT count(*) FROM plans WHERE state = 'applying'",
    "runs without an end": "SELECT count(*) FROM runs WHERE outcome IS NULL",
    "receipts in work": "SELECT count(*) FROM receipts WHERE state = 'in_work'",
    "windows that were verified and have more due than claimed": (
        "SELECT count(*) FROM windows WHERE verified_due <> verified_claimed"
    ),
    "runs whose books do not balance": (
        "SELECT count(*) FROM runs WHERE outcome = 'completed' AND (evaluated <> outside + not_due + set_aside + due "
        "OR (due <> already_claimed + claimed AND cause <> 'reconcile'))"
    ),
    "entries whose claims are not as many as their records": (
        "SELECT count(*) FROM entries WHERE (CASE WHEN void_reason IS NULL THEN records_n ELSE 0 END) <> "
        "(SELECT count(*) FROM claims WHERE entry_id = entries.id)"
    ),
}


@dataclass
class Evidence:
    """All that the judgement rests on."""

    url: str
    world: World
    source: Source
    notes: Notes
    windows: Sequence[str]

    @cached_property
    def entries(self) -> dict[str, Entry]:
        return {row[0]: Entry(*row) for row in query(self.url, _ENTRIES)}

    @cached_property
    def live(self) -> dict[str, Entry]:
        """The entries that are not void, by idempotency key."""
        return {one.key: one for one in self.entries.values() if one.void is None}

    @cached_property
    def claims(self) -> dict[Occurrence, dict[int, Entry]]:
        """The entries of each claimed occurrence, by generation."""
        found: dict[Occurrence, dict[int, Entry]] = defaultdict(dict)
        claims = "SELECT booking_ns, record_id, generation, entry_id::text FROM claims"
        for booking_ns, raw, generation, entry in query(self.url, claims):
            found[_unpacked(raw), booking_ns][generation] = self.entries[entry]
        return dict(found)

    @cached_property
    def tries(self) -> dict[str, list[str]]:
        """The outcomes of all tries under each idempotency key, void entries included."""
        found: dict[str, list[str]] = defaultdict(list)
        for entry, outcome in query(self.url, _TRIES):
            found[self.entries[entry].key].append(outcome)
        return found

    @cached_property
    def first_marks(self) -> dict[str, tuple[datetime, datetime]]:
        return {entry: (marked_at, began_at) for entry, marked_at, began_at in query(self.url, _FIRST_MARKS)}

    @cached_property
    def objects(self) -> dict[str, Any]:
        return {key: json.loads(body, parse_float=Decimal, parse_int=Decimal) for key, body in self.stored.items()}

    @cached_property
    def stored(self) -> dict[str, bytes]:
        return self.world.objects()

    @cached_property
    def receipts(self) -> dict[str, tuple[str, datetime]]:
        rows = query(self.url, "SELECT encode(idempotency_key, 'hex'), state, finished_at FROM receipts")
        return {key: (state, finished_at) for key, state, finished_at in rows}

    @cached_property
    def effects(self) -> dict[str, list[list[str]]]:
        """The effects under each key."""
        found: dict[str, list[list[str]]] = defaultdict(list)
        for key, records in query(self.url, "SELECT key, records FROM soak.effects"):
            found[key].append(records)
        return found

    @cached_property
    def findings(self) -> list[tuple[Any, ...]]:
        return query(self.url, _FINDINGS)

    @cached_property
    def plans(self) -> list[tuple[int, datetime, bool]]:
        """The plans that were begun, in order of time: window, when, and whether worked records were wanted, too."""
        rows = query(self.url, _PLANS)
        return [(window_s, at, json.loads(scope)["include_worked"]) for window_s, at, scope in rows]

    def plan_of(self, entry: Entry) -> tuple[datetime, bool] | None:
        """The plan that has opened an entry: it is begun right after, in the same transaction."""
        begun = [(at, also) for window_s, at, also in self.plans if window_s == entry.window_s and at > entry.opened_at]
        return begun[0] if begun and begun[0][0] - entry.opened_at < _IN_ONE_TRANSACTION else None

    def records_of(self, entry: Entry) -> list[dict[str, Any]]:
        """The records in an entry's object."""
        document = self.objects.get(entry.object_key)
        return [] if document is None else document["records"]

    def state_of(self, entry: Entry) -> str:
        """The state of an entry's receipt."""
        return self.receipts[entry.key][0] if entry.key in self.receipts else "none"

    def open(self, kind: str) -> Counter[str]:
        """Count the open findings of a kind by record."""
        return Counter(
            bytes(record).decode("utf-8", "surrogatepass")
            for of, _, state, record, *_ in self.findings
            if (of, state) == (kind, "open")
        )


def _unpacked(raw: bytes) -> str:
    if raw[:1] != b"\xff":
        return bytes(raw).decode("utf-8", "surrogatepass")
    digits = bytes(raw[1:]).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def everything_is_settled(evidence: Evidence) -> Iterator[str]:
    """Check that nothing is unfinished, and the books balance."""
    for what, counted in _UNSETTLED.items():
        ((number,),) = query(evidence.url, counted)
        if number:
            yield f"{number} {what}"
    done = {start for (start,) in query(evidence.url, "SELECT start_s FROM windows WHERE completed_at IS NOT NULL")}
    for hour in evidence.source.hours:
        if int(hour.timestamp()) not in done:
            yield f"window {hour} was never completed"
    for key, entry in evidence.live.items():
        if not {"accepted", "received"} & set(evidence.tries[key]):
            yield f"entry {entry.id} is finished, but no try of it was proven: {evidence.tries[key]}"
        if entry.generation and evidence.plan_of(entry) is None:
            yield f"entry {entry.id} has generation {entry.generation}, and no plan"


def nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """Check that whatever is due in the end was sent."""
    for version in evidence.source.final():
        occurrence = version.occurrence
        if version.is_due and version.is_usable and occurrence and evidence.source.concerns(occurrence):
            generations = evidence.claims.get(occurrence, {})
            if set(generations) != set(range(len(generations))) or not generations:
                yield f"lost: {occurrence} is due, and has claims of generations {sorted(generations)}"


def what_was_sent_was_true(evidence: Evidence) -> Iterator[str]:
    """Check each promise against what the records have been, and were while the run that made it worked."""
    for entry in evidence.live.values():
        document = evidence.objects.get(entry.object_key)
        if document is None:
            yield f"lost: entry {entry.id} has no object {entry.object_key}"
            continue
        records = document["records"]
        held = sorted(one for one, generations in evidence.claims.items() if entry in generations.values())
        if sorted(map(occurrence_of, records)) != held:
            yield f"entry {entry.id}: its object holds {sorted(map(occurrence_of, records))}, its claims are {held}"
        if (document["idempotency_key"], document["job"], document["generation"]) != (
            entry.key,
            entry.job,
            entry.generation,
        ):
            yield f"entry {entry.id}: its object says {document['idempotency_key']}, {document['job']}"
        yield from _was_so(evidence, entry, records)
        groups = {tuple(str(one[name]) for name in (*GROUP, "RewardType")) for one in records}
        if len(groups) != 1 or ROUTES[records[0]["RewardType"]] != entry.job:
            yield f"entry {entry.id} for {entry.job} mixes {groups}"
        order = [(one["OrderTime"], instant_ns(one["BookingTimeUTC"]), one["Id"]) for one in records]
        if order != sorted(order, key=lambda one: (one[0], one[1], one[2].encode())):
            yield f"entry {entry.id} is not in order: {order}"


def _was_so(evidence: Evidence, entry: Entry, records: Sequence[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        versions = [one for one in evidence.source.histories.get(record["Id"], ()) if _is(one, record)]
        if not versions:
            yield f"unexpected: entry {entry.id} holds what never was: {record}"
        elif not any(_was_between(one, entry.run_started_at, entry.opened_at) for one in versions):
            yield f"unexpected: entry {entry.id}, opened {entry.opened_at}, holds what was so at another time: {record}"
        if not entry.generation and not _was_due_when_marked(evidence, entry, record):
            yield f"unexpected: entry {entry.id} was sent when this was not due any more: {record}"


def _is(version: Version, record: dict[str, Any]) -> bool:
    return version.is_due and version.is_usable and version.item is not None and plain(version.item) == record


def _was_between(version: Version, began: datetime, ended: datetime) -> bool:
    over = version.until is not None and version.until + _SLACK < began
    return not over and version.since - _SLACK <= ended


def _was_due_when_marked(evidence: Evidence, entry: Entry, record: dict[str, Any]) -> bool:
    """Say whether a record was due, at its time, while the run worked that first set out to send it."""
    marked_at, began = evidence.first_marks[entry.id]
    return any(
        one.is_due and one.is_usable and one.occurrence == occurrence_of(record) and _was_between(one, began, marked_at)
        for one in evidence.source.histories.get(record["Id"], ())
    )


def messages_are_as_promised(evidence: Evidence) -> Iterator[str]:
    """Check that each confirmed entry was heard of, and each message is of one; a second one is reported."""
    heard = Counter(one["idempotency_key"] for one in evidence.notes.messages.values())
    for body in evidence.notes.messages.values():
        key = body["idempotency_key"]
        entry = evidence.live.get(key)
        if entry is None:
            yield f"unexpected: a message with key {key}, which is no confirmed entry's"
        elif (body["entry_id"], body["object"]["key"], body["records"], body["generation"], body["job"]) != (
            entry.id,
            entry.object_key,
            entry.records_n,
            entry.generation,
            entry.job,
        ):
            yield f"unexpected: a message that is not as entry {entry.id}: {body}"
    for key, entry in evidence.live.items():
        if not heard[key]:
            yield f"lost: no message of entry {entry.id} ever arrived"
        if max(heard[key], evidence.notes.accepted[key]) > len(evidence.tries[key]):
            yield f"unexpected: {heard[key]} messages of entry {entry.id} in {len(evidence.tries[key])} tries"
    yield from _repeats_are_reported(evidence, heard)


def _repeats_are_reported(evidence: Evidence, heard: Counter[str]) -> Iterator[str]:
    reported = {
        evidence.entries[entry].key: state
        for kind, cause, state, _, entry, *_ in evidence.findings
        if (kind, cause) == ("duplicate", "resent") and state != "closed"
    }
    for key, entry in evidence.live.items():
        possible = sum(outcome in {"unknown", "accepted", "received"} for outcome in evidence.tries[key])
        if heard[key] > 1 and key not in reported:
            yield f"{heard[key]} messages of entry {entry.id}, and no finding says so"
        if (possible > 1) != (key in reported):
            yield f"entry {entry.id}: tries {evidence.tries[key]}, reported: {reported.get(key)}"
        wanted = "acknowledged" if entry.queue.endswith(_FIFO) else "open"
        if reported.get(key, wanted) != wanted:
            yield f"entry {entry.id} was sent again, and its finding is {reported[key]}, not {wanted}"
    if unknown := set(reported) - set(evidence.live):
        yield f"findings of duplicates of no confirmed entry: {sorted(unknown)}"


def effects_are_made_once(evidence: Evidence) -> Iterator[str]:
    """Check that each job that was worked has one effect, and what was replaced has none."""
    for key, entry in evidence.live.items():
        state, effects = evidence.state_of(entry), evidence.effects.get(key, [])
        if state == "completed" and len(effects) != 1:
            yield f"{'worked twice' if effects else 'lost'}: entry {entry.id} has {len(effects)} effects"
        if state == "superseded" and effects:
            yield f"worked twice: entry {entry.id} was replaced, and has {len(effects)} effects"
        if state not in {"completed", "superseded"}:
            yield f"lost: entry {entry.id} has the receipt {state}"
        sent = [f"{one['Id']}@{one['BookingTimeUTC']}" for one in evidence.records_of(entry)]
        if any(sent != effect for effect in effects):
            yield f"unexpected: entry {entry.id} holds {sent}, its effect {effects}"
    if strange := (set(evidence.effects) | set(evidence.receipts)) - set(evidence.live):
        yield f"unexpected: effects or receipts of no entry: {sorted(strange)}"
    for occurrence, generations in evidence.claims.items():
        yield from _worked_once(evidence, occurrence, generations)


def _worked_once(evidence: Evidence, occurrence: Occurrence, generations: dict[int, Entry]) -> Iterator[str]:
    """Check one occurrence: its last generation is worked; an earlier one only when a person allowed it."""
    last = generations[max(generations)]
    if evidence.state_of(last) == "superseded" and not _was_given_up(evidence, occurrence):
        yield f"lost: {occurrence} was replaced, and by nothing"
    for generation, entry in generations.items():
        later = generations.get(generation + 1)
        state, finished_at = evidence.receipts.get(entry.key, ("none", None))
        plan = None if later is None else evidence.plan_of(later)
        if plan is None or state != "completed" or finished_at is None:
            continue
        applying_at, include_worked = plan
        if finished_at < applying_at and not include_worked:
            yield f"worked twice: {occurrence} had been worked, and the plan of {applying_at} sent it again"
        if finished_at >= applying_at and not _owes(evidence, entry):
            yield f"worked twice: {occurrence} was worked after a redo had replaced its job {entry.id}"


def _was_given_up(evidence: Evidence, occurrence: Occurrence) -> bool:
    """Say whether a redo could replace a job without sending this again: it was not due then.

    If it is due again by now, a finding must say so.
    """
    versions = evidence.source.histories[occurrence[0]]
    is_due = [one.is_due and one.is_usable and one.occurrence == occurrence for one in versions]
    begun = [at for _, at, _ in evidence.plans]
    return any(
        not due and _was_between(one, at - _IN_ONE_TRANSACTION, at)
        for one, due in zip(versions, is_due, strict=True)
        for at in begun
    )


def _owes(evidence: Evidence, entry: Entry) -> bool:
    """Say whether a job holds a record that no later one does, and so may not be replaced."""
    held = [generations for generations in evidence.claims.values() if entry in generations.values()]
    return any(max(generations) == entry.generation for generations in held)


def objects_are_known(evidence: Evidence) -> Iterator[str]:
    """Check that each object is of an entry, or was found to be of none; nothing else ever writes here."""
    known = {one.object_key for one in evidence.entries.values()}
    orphans = {key for kind, _, _, _, _, key, _ in evidence.findings if kind == "orphan_object"}
    for key in evidence.stored:
        if key not in known | orphans:
            yield f"object {key} is of no entry, and no finding says so"


def findings_of_records_are_true(evidence: Evidence) -> Iterator[str]:
    """Check that what is open of records in the end is exactly what the source, the sends and the effects come to."""
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    for version in evidence.source.final():
        occurrence = version.occurrence
        if version.is_due and (occurrence is None or evidence.source.concerns(occurrence)):
            assert version.item is not None
            for kind in _wanted(evidence, version):
                wanted[kind][version.item["Id"]["S"]] += 1
    for kind in ("bad_record", "stale_source_status", "changed_after_dispatch"):
        found = evidence.open(kind)
        if more := found - wanted[kind]:
            yield f"open findings {kind} that are not true: {dict(more)}"
        if less := wanted[kind] - found:
            yield f"no finding {kind} of {dict(less)}"


def _wanted(evidence: Evidence, version: Version) -> Iterator[str]:
    """Give which findings a record that is due in the end must have."""
    generations = evidence.claims.get(version.occurrence, {}) if version.occurrence else {}
    if not generations:
        if not version.is_usable:
            yield "bad_record"
        return
    assert version.item is not None
    sent = [one for one in evidence.records_of(generations[max(generations)]) if one["Id"] == version.item["Id"]["S"]]
    state = evidence.state_of(generations[max(generations)])
    if not version.is_usable or sent != [plain(version.item)]:
        yield "changed_after_dispatch"
    if version.is_usable and state == "superseded":
        yield "changed_after_dispatch"  # it was not due when its job was replaced, and is again: a person decides
    if version.is_usable and state == "completed":
        yield "stale_source_status"


def nothing_else_is_open(evidence: Evidence) -> Iterator[str]:
    """Check that no other finding is open, and what a redo repeats was a person's wish."""
    known = {"bad_record", "stale_source_status", "changed_after_dispatch", "duplicate"}
    for kind, cause, state, _, entry, key, _ in evidence.findings:
        if state == "open" and kind not in known:
            yield f"open finding {kind}, {cause}, of {entry or key}"
        if (kind, cause) == ("duplicate", "redo") and state != "acknowledged":
            yield f"a redo's finding is {state}"
    redone = {evidence.entries[entry].id for _, cause, _, _, entry, *_ in evidence.findings if cause == "redo"}
    wished = {one.id for one in evidence.live.values() if one.generation}
    if redone != wished:
        yield f"entries of redos {sorted(wished)}, reported {sorted(redone)}"


CHECKS = (
    everything_is_settled,
    nothing_is_lost,
    what_was_sent_was_true,
    messages_are_as_promised,
    effects_are_made_once,
    objects_are_known,
    findings_of_records_are_true,
    nothing_else_is_open,
)


def all_wrong(evidence: Evidence) -> list[str]:
    """Check everything, and add to the notes what was done in all."""
    notes, heard = evidence.notes, Counter(one["idempotency_key"] for one in evidence.notes.messages.values())
    notes.count("windows", len(evidence.windows))
    notes.count("records", len(evidence.source.histories))
    notes.count("occurrences sent", len(evidence.claims))
    notes.count("entries", len(evidence.live))
    notes.count("void entries", len(evidence.entries) - len(evidence.live))
    notes.count("entries of redos", sum(one.generation > 0 for one in evidence.live.values()))
    notes.count("effects", sum(map(len, evidence.effects.values())))
    notes.count("entries sent twice", sum(heard[key] > 1 for key in evidence.live))
    notes.count("repeats that did no harm", sum(heard[key] - 1 for key in evidence.live if heard[key]))
    notes.count("repeats dropped by FIFO", sum(max(0, notes.accepted[key] - heard[key]) for key in evidence.live))
    ((crashes,),) = query(evidence.url, _CRASHED_AGAIN)
    notes.count("runs that died while finishing for the dead", crashes)
    return [line for check in CHECKS for line in check(evidence)]


_CRASHED_AGAIN = """
SELECT count(*) FROM (
    SELECT outcome, error, lag(error) OVER (PARTITION BY window_id ORDER BY fence) AS before
    FROM runs WHERE fence IS NOT NULL
) AS ordered
WHERE error LIKE 'abandoned%' AND before LIKE 'abandoned%'
"""


def settled_dump(url: str) -> list[str]:
    """Write down all tables, without what a look at them may change: the runs, and when something was seen last."""
    columns = {
        "pipelines": "*",
        "destinations": "*",
        "windows": "id, pipeline_id, start_s, objects_checked_at, held_at, held_reason, completed_at, "
        "verified_evaluated, verified_due, verified_claimed",
        "pages": "*",
        "claims": "*",
        "entries": "*",
        "payload_parts": "*",
        "open_attempts": "*",
        "attempts": "*",
        "receipts": "*",
        "plans": "*",
        "plan_entries": "*",
        "staged_records": "*",
        "findings": "id, window_id, kind, cause, subject, record_id, entry_id, object_key, state, repair, detail, "
        "first_seen_at, closed_at, acknowledged_by, acknowledged_reason",
    }
    return [f"{table}: {line}" for table, wanted in columns.items() for line in dump(url, table, wanted)]
