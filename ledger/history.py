"""The whole history of one thing, in order of time: a window, an entry, a record."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg.rows import dict_row

from ledger.canonical import utf8
from ledger.instants import Window, format_ns, format_s, format_time
from ledger.keys import object_key, window_prefix
from ledger.store import Connection, Store

ROWS_MAX = 200
Row = dict[str, Any]
Document = dict[str, Any]

_ENTRY = (
    "SELECT entries.*, windows.start_s, pipelines.name AS pipeline, destinations.route, destinations.job, "
    "destinations.queue, destinations.bucket, destinations.prefix FROM entries "
    "JOIN windows ON windows.id = entries.window_id JOIN pipelines ON pipelines.id = windows.pipeline_id "
    "JOIN destinations ON destinations.id = entries.destination_id "
)
_FINDING = (
    "SELECT findings.*, windows.start_s FROM findings JOIN windows ON windows.id = findings.window_id "
    "JOIN pipelines ON pipelines.id = findings.pipeline_id WHERE pipelines.name = %(pipeline)s "
)


def _rows(connection: Connection, query: Any, parameters: Row) -> list[Row]:
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return format_time(value) if hasattr(value, "astimezone") else value


def _event(at: Any, event: str, **details: Any) -> Row:
    return {"at": _plain(at), "event": event} | {name: _plain(value) for name, value in details.items()}


def _in_time(events: Iterable[Row | None]) -> list[Row]:
    return sorted((event for event in events if event is not None and event["at"]), key=lambda event: event["at"])


def window_history(store: Store, pipeline: str, window: Window) -> Document:
    """Return the story of a window: its state, its runs and pages, what its entries amount to, its findings.

    Pages and entries are listed up to `ROWS_MAX`, newest first; the totals count all of them.
    """
    parameters = {"pipeline": pipeline, "start_s": window.start_s, "limit": ROWS_MAX}

    def work(connection: Connection) -> Document:
        document: Document = {"window": window.name, "end": window.end_name, "pipeline": pipeline}
        found = _rows(
            connection,
            "SELECT windows.*, lease_until > ledger_now() AS running FROM windows "
            "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %(pipeline)s AND start_s = %(start_s)s",
            parameters,
        )
        if not found:
            nothing: Document = {"runs": [], "pages": [], "entries": [], "findings": [], "events": []}
            return document | {"state": "not_dispatched", "totals": _NO_ENTRIES} | nothing
        here = parameters | {"window_id": found[0]["id"]}
        runs = _rows(connection, "SELECT * FROM runs WHERE window_id = %(window_id)s ORDER BY started_at", here)
        pages = _rows(
            connection,
            "SELECT pages.* FROM pages JOIN runs ON runs.id = run_id WHERE window_id = %(window_id)s "
            "ORDER BY runs.started_at DESC, number LIMIT %(limit)s",
            here,
        )
        totals = _rows(connection, _ENTRY_TOTALS, here)[0]
        query = _ENTRY + "WHERE window_id = %(window_id)s ORDER BY entries.id DESC LIMIT %(limit)s"
        entries = _rows(connection, query, here)
        findings = _rows(connection, _FINDING + "AND window_id = %(window_id)s ORDER BY findings.id", here)
        return document | {
            "state": _window_state(found[0], runs),
            "held": found[0]["held_reason"],
            "completed_at": _plain(found[0]["completed_at"]),
            "totals": {name: int(count) for name, count in totals.items()},
            "runs": [_run_document(run) for run in runs],
            "pages": [_page_document(page) for page in pages],
            "entries": [_entry_document(entry) for entry in entries],
            "findings": [_finding_document(finding) for finding in findings],
            "events": _in_time([*_run_events(runs), *_page_events(pages), *_finding_events(findings)]),
        }

    return store.transaction(work)


_NO_ENTRIES = {"entries": 0, "pending": 0, "sending": 0, "confirmed": 0, "void": 0, "records": 0}
_ENTRY_TOTALS = (
    "SELECT count(*) AS entries, count(*) FILTER (WHERE state = 'pending') AS pending, "
    "count(*) FILTER (WHERE state = 'sending') AS sending, count(*) FILTER (WHERE state = 'confirmed') AS confirmed, "
    "count(*) FILTER (WHERE state = 'void') AS void, "
    "coalesce(sum(records_n) FILTER (WHERE state <> 'void'), 0) AS records "
    "FROM entries WHERE window_id = %(window_id)s"
)


def _window_state(window: Row, runs: list[Row]) -> str:
    if window["held_at"] is not None:
        return "held"
    if window["running"]:
        return "running"
    if window["completed_at"] is None:
        return "incomplete" if any(run["fence"] is not None for run in runs) else "not_dispatched"
    worked = [run for run in runs if run["fence"] is not None]
    return "dispatched" if worked and worked[-1]["outcome"] == "completed" else "incomplete"


def _run_document(run: Row) -> Row:
    hidden = {"window_id", "config", "id"}
    return {"run_id": str(run["id"])} | {name: _plain(value) for name, value in run.items() if name not in hidden}


def _page_document(page: Row) -> Row:
    return {name: _plain(value) for name, value in page.items()}


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
        "opened_at": _plain(entry["opened_at"]),
        "confirmed_at": _plain(entry["confirmed_at"]),
    }


def _text(identity: bytes | None) -> str | None:
    return None if identity is None else identity.decode("utf-8", "surrogatepass")


def _finding_document(finding: Row) -> Row:
    return {
        "id": finding["id"],
        "kind": finding["kind"],
        "cause": finding["cause"],
        "window": format_s(finding["start_s"]),
        "record_id": _text(finding["record_id"]),
        "entry_id": _plain(finding["entry_id"]),
        "object_key": finding["object_key"],
        "state": finding["state"],
        "repair": finding["repair"],
        "first_seen_at": _plain(finding["first_seen_at"]),
        "detail": msgspec.Raw(finding["detail"].encode()),
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
    query = "SELECT * FROM attempts WHERE entry_id = ANY(%(ids)s::uuid[]) ORDER BY entry_id, number"
    return _rows(connection, query, {"ids": ids})


def entry_history(store: Store, pipeline: str, entry_id: UUID) -> Document | None:
    """Return the story of an entry: its group, object, records, attempts and findings; None when there is none.

    Its records are listed up to `ROWS_MAX`, in order of booking time.
    """
    parameters = {"pipeline": pipeline, "id": entry_id, "limit": ROWS_MAX}

    def work(connection: Connection) -> Document | None:
        query = _ENTRY + "WHERE entries.id = %(id)s AND pipelines.name = %(pipeline)s"
        entries = _rows(connection, query, parameters)
        if not entries:
            return None
        window = Window(entries[0]["start_s"])
        claims = _rows(
            connection,
            "SELECT record_id, booking_ns FROM claims JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE name = %(pipeline)s AND booking_ns BETWEEN %(first)s AND %(last)s AND entry_id = %(id)s "
            "ORDER BY booking_ns, record_id LIMIT %(limit)s",
            parameters | {"first": window.start_ns, "last": window.end_ns},
        )
        attempts = _attempts(connection, [entry_id])
        findings = _rows(connection, _FINDING + "AND entry_id = %(id)s ORDER BY findings.id", parameters)
        events = [*_entry_events(entries, attempts), *_finding_events(findings)]
        return _entry_document(entries[0]) | {
            "occurrences": [
                {"record_id": _text(claim["record_id"]), "booking_time": format_ns(claim["booking_ns"])}
                for claim in claims
            ],
            "sends": [{name: _plain(value) for name, value in attempt.items()} for attempt in attempts],
            "findings": [_finding_document(finding) for finding in findings],
            "events": _in_time(events),
        }

    return store.transaction(work)


def record_history(store: Store, pipeline: str, record_id: str) -> Document:
    """Return the story of a record: every occurrence that was ever claimed, with its entry, and its findings."""
    parameters = {"pipeline": pipeline, "record_id": utf8(record_id), "limit": ROWS_MAX}

    def work(connection: Connection) -> Document:
        claims = _rows(
            connection,
            "SELECT booking_ns, generation, entry_id FROM claims JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE name = %(pipeline)s AND record_id = %(record_id)s ORDER BY booking_ns, generation LIMIT %(limit)s",
            parameters,
        )
        ids = [claim["entry_id"] for claim in claims]
        entries = _rows(connection, _ENTRY + "WHERE entries.id = ANY(%(ids)s::uuid[])", {"ids": ids})
        attempts = _attempts(connection, ids)
        findings = _rows(connection, _FINDING + "AND record_id = %(record_id)s ORDER BY findings.id", parameters)
        by_id = {entry["id"]: _entry_document(entry) for entry in entries}
        events = [*_entry_events(entries, attempts), *_finding_events(findings)]
        return {
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
            "findings": [_finding_document(finding) for finding in findings],
            "events": _in_time(events),
        }

    return store.transaction(work)
