"""The whole history of one thing, in order of time: a window, an entry, a record."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, LiteralString
from uuid import UUID

import msgspec

from ledger.canonical import packed_id, unpacked_id, utf8
from ledger.documents import FINDINGS, Document, Row, finding_document, one_snapshot, plain, rows
from ledger.instants import Window, format_ns, format_s, parse_window
from ledger.keys import object_key, window_prefix
from ledger.plans import plan_facts, plans_of_window
from ledger.reports import COUNTS, only, window_numbers
from ledger.standing import Claimed, RecordFacts, find_standings
from ledger.store import Connection, Store

ROWS_MAX = 200

_ENTRY = (
    "SELECT entry_states.*, windows.start_s, pipelines.name AS pipeline, destinations.route, destinations.job, "
    "destinations.queue, destinations.bucket, destinations.prefix FROM entry_states "
    "JOIN windows ON windows.id = entry_states.window_id JOIN pipelines ON pipelines.id = windows.pipeline_id "
    "JOIN destinations ON destinations.id = entry_states.destination_id "
)


def _event(at: Any, event: str, **details: Any) -> Row:
    return {"at": plain(at), "event": event} | {name: plain(value) for name, value in details.items()}


def _in_time(events: Iterable[Row | None]) -> list[Row]:
    return sorted((event for event in events if event is not None and event["at"]), key=lambda event: event["at"])


def window_history(store: Store, pipeline: str, window: Window) -> Document:
    """Return the story of a window: its state, its runs and pages, what its entries amount to, its findings.

    Pages and entries are listed up to `ROWS_MAX`, newest first; the totals count all of them.
    """

    def work(connection: Connection) -> Document:
        one_snapshot(connection)
        document: Document = {"window": window.name, "end": window.end_name, "pipeline": pipeline}
        found = window_numbers(connection, pipeline, only(window))
        if not found:
            return document | _NOTHING
        here = {"pipeline": pipeline, "window_id": found[0]["id"], "limit": ROWS_MAX}
        runs = rows(connection, "SELECT * FROM runs WHERE window_id = %(window_id)s ORDER BY started_at", here)
        pages = rows(
            connection,
            "SELECT pages.* FROM pages JOIN runs ON runs.id = run_id WHERE window_id = %(window_id)s "
            "ORDER BY runs.started_at DESC, number LIMIT %(limit)s",
            here,
        )
        query = _ENTRY + "WHERE window_id = %(window_id)s ORDER BY entry_states.id DESC LIMIT %(limit)s"
        entries = rows(connection, query, here)
        findings = rows(connection, FINDINGS + "AND window_id = %(window_id)s ORDER BY findings.id", here)
        plans = plans_of_window(connection, here)
        decided = rows(connection, "SELECT * FROM events WHERE window_id = %(window_id)s ORDER BY id", here)
        story = (
            _run_events(runs),
            _page_events(pages),
            _finding_events(findings),
            _plan_events(plans),
            _decision_events(decided),
        )
        return document | {
            "state": found[0]["state"],
            "held": found[0]["held_reason"],
            "held_kind": found[0]["held_kind"],
            "held_at": plain(found[0]["held_at"]),
            "seq": found[0]["seq"],
            "completed_at": plain(found[0]["completed_at"]),
            "verified_at": plain(found[0]["verified_at"]),
            "coverage": found[0]["coverage"],
            "open_findings": found[0]["open_findings"],
            "totals": {name: found[0][name] for name in COUNTS},
            "runs": [_run_document(run) for run in runs],
            "pages": [_page_document(page) for page in pages],
            "entries": [_entry_document(entry) for entry in entries],
            "findings": [finding_document(finding) for finding in findings],
            "plans": [plan_facts(plan) for plan in plans],
            "events": _in_time(chain.from_iterable(story)),
        }

    return store.transaction(work)


_NOTHING: Document = {
    "state": "not_dispatched",
    "held": None,
    "held_kind": None,
    "held_at": None,
    "seq": 0,
    "open_findings": 0,
    "totals": dict.fromkeys(COUNTS, 0),
    **{name: [] for name in ("runs", "pages", "entries", "findings", "plans", "events")},
}


def _run_document(run: Row) -> Row:
    hidden = {"window_id", "config", "id"}
    return {"run_id": str(run["id"])} | {name: plain(value) for name, value in run.items() if name not in hidden}


def _page_document(page: Row) -> Row:
    return {name: plain(value) for name, value in page.items()}


def _entry_document(entry: Row) -> Row:
    place = window_prefix(entry["prefix"], entry["pipeline"], Window(entry["start_s"]))
    return {
        "entry_id": str(entry["id"]),
        "window": format_s(entry["start_s"]),
        "state": entry["state"],
        "void_reason": entry["void_reason"],
        "group": msgspec.Raw(entry["group_json"].encode()),
        "route": entry["route"],
        "job": entry["job"],
        "queue": entry["queue"],
        "records": entry["records_n"],
        "generation": entry["generation"],
        "attempts": entry["attempts"],
        "content_hash": entry["content_hash"].hex(),
        "idempotency_key": entry["idempotency_key"].hex(),
        "object": {
            "bucket": entry["bucket"],
            "key": object_key(place, entry["group_digest"], entry["content_hash"], entry["generation"]),
            "bytes": entry["object_bytes"],
            "etag": entry["object_etag"],
        },
        "run_id": str(entry["run_id"]),
        "opened_at": plain(entry["opened_at"]),
        "confirmed_at": plain(entry["confirmed_at"]),
    }


def _run_events(runs: Iterable[Row]) -> Iterable[Row | None]:
    for run in runs:
        yield _event(run["started_at"], "run started", run_id=run["id"], flow=run["flow"], holder=run["holder"])
        if run["finished_at"] is not None:
            outcome = f"run {run['outcome']}"
            yield _event(run["finished_at"], outcome, run_id=run["id"], claimed=run["claimed"], error=run["error"])


def _page_events(pages: Iterable[Row]) -> Iterable[Row | None]:
    for page in pages:
        yield _event(
            page["read_at"],
            "page read",
            run_id=page["run_id"],
            page=page["number"],
            evaluated=page["evaluated"],
            first_time=page["first_time"],
            last_time=page["last_time"],
        )


def _finding_events(findings: Iterable[Row]) -> Iterable[Row | None]:
    for finding in findings:
        name = f"{finding['kind']} found"
        yield _event(finding["first_seen_at"], name, finding=finding["id"], cause=finding["cause"])
        if finding["closed_at"] is not None:
            yield _event(finding["closed_at"], f"{finding['kind']} closed", finding=finding["id"])


def _plan_events(plans: Iterable[Row]) -> Iterable[Row | None]:
    for plan in plans:
        amount = {"jobs": plan["jobs"], "records": plan["records"]}
        yield _event(plan["planned_at"], "redo planned", plan=plan["id"], by=plan["planned_by"], **amount)
        if plan["applying_at"] is not None:
            yield _event(plan["applying_at"], "redo begun", plan=plan["id"], by=plan["applied_by"])
        if plan["ended_at"] is not None:
            yield _event(plan["ended_at"], f"redo {plan['state']}", plan=plan["id"], reason=plan["stale_reason"])


_DECISIONS = {
    "held": "window held",
    "adopted": "objects adopted",
    "vouched": "adopted jobs vouched for",
    "released": "window released",
}


def _decision_events(events: Iterable[Row]) -> Iterable[Row | None]:
    for event in events:
        yield _event(
            event["at"], _DECISIONS[event["event"]], by=event["by"], reason=event["reason"], run_id=event["run_id"]
        )


def _entry_events(entries: Iterable[Row], attempts: Iterable[Row]) -> Iterable[Row | None]:
    for entry in entries:
        yield _event(entry["opened_at"], "entry opened", entry_id=entry["id"], records=entry["records_n"])
        if entry["confirmed_at"] is not None:
            yield _event(entry["confirmed_at"], "entry confirmed", entry_id=entry["id"])
    for attempt in attempts:
        number = attempt["number"]
        yield _event(attempt["marked_at"], "attempt marked", entry_id=attempt["entry_id"], attempt=number)
        if attempt["answered_at"] is not None:
            yield _event(
                attempt["answered_at"],
                f"attempt {attempt['outcome']}",
                entry_id=attempt["entry_id"],
                attempt=number,
                message_id=attempt["message_id"],
                error=attempt["error"],
            )


def _attempts(connection: Connection, ids: list[UUID]) -> list[Row]:
    query = "SELECT * FROM all_attempts WHERE entry_id = ANY(%(ids)s::uuid[]) ORDER BY entry_id, number"
    return rows(connection, query, {"ids": ids})


def entry_history(store: Store, pipeline: str, entry_id: UUID) -> Document | None:
    """Return the story of an entry: its group, object, records, attempts and findings; None when there is none.

    Its records are listed up to `ROWS_MAX`, in order of booking time.
    """
    parameters = {"pipeline": pipeline, "id": entry_id, "limit": ROWS_MAX}

    def work(connection: Connection) -> Document | None:
        query = _ENTRY + "WHERE entry_states.id = %(id)s AND pipelines.name = %(pipeline)s"
        entries = rows(connection, query, parameters)
        if not entries:
            return None
        window = Window(entries[0]["start_s"])
        claims = rows(
            connection,
            "SELECT record_id, booking_ns FROM claims JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE name = %(pipeline)s AND booking_ns BETWEEN %(first)s AND %(last)s AND entry_id = %(id)s "
            "ORDER BY booking_ns, record_id LIMIT %(limit)s",
            parameters | {"first": window.start_ns, "last": window.end_ns},
        )
        attempts = _attempts(connection, [entry_id])
        findings = rows(connection, FINDINGS + "AND entry_id = %(id)s ORDER BY findings.id", parameters)
        events = [*_entry_events(entries, attempts), *_finding_events(findings)]
        return _entry_document(entries[0]) | {
            "occurrences": [
                {"record_id": unpacked_id(claim["record_id"]), "booking_time": format_ns(claim["booking_ns"])}
                for claim in claims
            ],
            "sends": [{name: plain(value) for name, value in attempt.items()} for attempt in attempts],
            "findings": [finding_document(finding) for finding in findings],
            "events": _in_time(events),
        }

    return store.transaction(work)


_OTHER_SCANS: tuple[LiteralString, ...] = ("seqscan", "indexscan", "indexonlyscan")
_ONLY_BY_BITMAP: LiteralString = "; ".join(f"SET LOCAL enable_{one} = off" for one in _OTHER_SCANS)
_BY_ANY_SCAN: LiteralString = "; ".join(f"SET LOCAL enable_{one} TO DEFAULT" for one in _OTHER_SCANS)
_CLAIMS_OF_RECORD: LiteralString = (
    "SELECT booking_ns, generation, entry_id FROM claims "
    "WHERE record_id = %(packed_id)s AND pipeline_id = (SELECT id FROM pipelines WHERE name = %(pipeline)s) "
    "ORDER BY booking_ns DESC, generation DESC LIMIT %(limit)s"
)
_RECEIPTS = (
    "SELECT entries.id AS entry_id, receipts.* FROM entries JOIN windows ON windows.id = entries.window_id "
    "JOIN receipts ON receipts.pipeline_id = windows.pipeline_id "
    "AND receipts.idempotency_key = entries.idempotency_key WHERE entries.id = ANY(%(ids)s::uuid[])"
)
# Findings that name the record, and those about its entries; these by their windows, for which there is an index.
_FINDINGS_OF_RECORD = FINDINGS + (  # noqa: S608 - constants only
    "AND findings.id IN (SELECT id FROM findings WHERE record_id = %(record_id)s UNION "
    "SELECT id FROM findings WHERE window_id = ANY(%(windows)s) AND entry_id = ANY(%(ids)s::uuid[]) "
    "AND record_id IS NULL) ORDER BY findings.id DESC LIMIT %(limit)s"
)


def record_history(
    store: Store, pipeline: str, record_id: str, waits_in: Sequence[Window] = (), group_digest: bytes | None = None
) -> tuple[Document, RecordFacts]:
    """Return the story of a record, and what of it bears on why it was dispatched or not, as of one moment.

    The story has every occurrence that was ever claimed, each generation of it, with its entry, attempts and receipt,
    and the findings that name the record or one of its entries; the newest `ROWS_MAX` claims and findings.

    Args:
        waits_in: the windows that read the record where it stands now; how they stand is told.
        group_digest: the group that the record belongs to now.
    """
    key = {
        "pipeline": pipeline,
        "record_id": utf8(record_id),
        "packed_id": packed_id(record_id),
        "limit": ROWS_MAX,
    }

    def work(connection: Connection) -> tuple[Document, RecordFacts]:
        one_snapshot(connection)
        claims = _claims_of(connection, key)
        ids = [claim["entry_id"] for claim in claims]
        entries = rows(connection, _ENTRY + "WHERE entry_states.id = ANY(%(ids)s::uuid[])", {"ids": ids})
        attempts = _attempts(connection, ids)
        receipts = {one["entry_id"]: one for one in rows(connection, _RECEIPTS, {"ids": ids})}
        windows = {entry["window_id"] for entry in entries}
        findings = rows(connection, _FINDINGS_OF_RECORD, key | {"ids": ids, "windows": list(windows)})[::-1]
        by_id = {entry["id"]: _entry_document(entry) for entry in entries}
        for entry_id, document in by_id.items():
            document["receipt"] = _receipt_document(receipts.get(entry_id))
            document["sends"] = [_attempt_document(one) for one in attempts if one["entry_id"] == entry_id]
        events = [*_entry_events(entries, attempts), *_receipt_events(receipts), *_finding_events(findings)]
        story = {
            "record_id": record_id,
            "pipeline": pipeline,
            "occurrences": [
                {
                    "booking_time": format_ns(claim["booking_ns"]),
                    "generation": claim["generation"],
                    "entry": by_id.get(claim["entry_id"]),
                }
                for claim in claims
            ],
            "findings": [finding_document(finding) for finding in findings],
            "events": _in_time(events),
        }
        unfinished = {Window(one["start_s"]) for one in entries if one["state"] in {"pending", "sending"}}
        now, standings = find_standings(connection, pipeline, sorted({*waits_in, *unfinished}), group_digest)
        claimed = [_claimed(claim, by_id.get(claim["entry_id"])) for claim in claims]
        is_open = [(one["kind"], one["cause"]) for one in findings if one["state"] == "open"]
        return story, RecordFacts(now, claimed, standings, is_open)

    return store.transaction(work)


def _claims_of(connection: Connection, key: Row) -> list[Row]:
    """List a record's claims by booking time and generation, through the index on record ids.

    The planner judges that index by how well ids agree with the order of the rows, which says nothing of Bloom filters;
    left alone, it may read the whole table.
    """
    connection.execute(_ONLY_BY_BITMAP)
    found = rows(connection, _CLAIMS_OF_RECORD, key)
    connection.execute(_BY_ANY_SCAN)
    return found[::-1]


def _claimed(claim: Row, entry: Document | None) -> Claimed:
    known = entry or {}
    return Claimed(
        booking_ns=claim["booking_ns"],
        generation=claim["generation"],
        entry_id=str(claim["entry_id"]),
        window=None if entry is None else parse_window(entry["window"]),
        state=known.get("state"),
        job=known.get("job"),
        confirmed_at=known.get("confirmed_at"),
        receipt=None if known.get("receipt") is None else known["receipt"]["state"],
    )


def _attempt_document(attempt: Row) -> Row:
    return {name: plain(value) for name, value in attempt.items() if name != "entry_id"}


def _receipt_document(receipt: Row | None) -> Document | None:
    if receipt is None:
        return None
    shown = ("state", "worker", "attempts", "claimed_at", "expires_at", "finished_at", "reason")
    result = receipt["result"]
    return {name: plain(receipt[name]) for name in shown} | {
        "result": None if result is None else msgspec.Raw(result.encode())
    }


def _receipt_events(receipts: dict[UUID, Row]) -> Iterable[Row | None]:
    for entry_id, receipt in receipts.items():
        key = {"entry_id": entry_id, "worker": receipt["worker"]}
        yield _event(receipt["claimed_at"], "receipt claimed", **key, attempt=receipt["attempts"])
        if receipt["finished_at"] is not None:
            yield _event(receipt["finished_at"], f"receipt {receipt['state']}", **key, reason=receipt["reason"])


def findings_of_pass(store: Store, pipeline: str, window: Window, run_id: UUID | None, limit: int) -> list[Document]:
    """List a window's findings that are open, or that this run has seen or repaired, oldest first, up to `limit`."""
    query = FINDINGS + (
        "AND windows.start_s = %(start_s)s AND (findings.state = 'open' OR findings.last_run_id = %(run_id)s) "
        "ORDER BY findings.id LIMIT %(limit)s"
    )
    parameters = {"pipeline": pipeline, "start_s": window.start_s, "run_id": run_id, "limit": limit}
    found = store.transaction(lambda connection: rows(connection, query, parameters))
    return [finding_document(row) for row in found]
