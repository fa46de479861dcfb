"""What the ledger says, as the command line prints it: windows, entries, records, findings."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Query, Response
from starlette.convertors import Convertor, register_url_convertor

from ledger import history, reports
from ledger.acknowledging import TEXT_MAX, acknowledge, parse_note
from ledger.errors import NotFoundError
from ledger.instants import parse_window
from ledger.reports import COUNTS, FINDING_STATES, KINDS, Wanted
from ops.api import documents
from ops.api.access import Operator, Viewer
from ops.api.bodies import JsonRoute
from ops.api.problems import may_answer
from ops.api.state import Shared, answer, shows
from ops.jobs.requests import TIME, Strict, Text, bounds_of
from ops.show_record import record_document


class _Anything(Convertor[str]):
    """A part of a path with any character in it, also slashes and line breaks: a record's key is any text."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        """Take it as it is."""
        return value

    def to_string(self, value: str) -> str:
        """Give it as it is."""
        return value


register_url_convertor("anything", _Anything())
router = APIRouter(route_class=JsonRoute)
FINDINGS_MAX = 10_000
_WINDOW = "2026-09-17T15:00:00Z"
_NUMBERS = {
    "entries": 4, "pending": 0, "sending": 0, "confirmed": 3, "void": 1, "records": 7, "open_findings": 1,
}  # fmt: skip
_ROW = {"window": _WINDOW, "state": "dispatched", **_NUMBERS, "verified_at": "2026-09-18T01:02:03Z", "coverage": 0.7}
_FINDING = {
    "id": 7,
    "kind": "duplicate",
    "cause": "resent",
    "window": _WINDOW,
    "record_id": None,
    "entry_id": "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51",
    "object_key": None,
    "state": "open",
    "repair": None,
    "first_seen_at": "2026-09-17T16:01:12.5Z",
    "detail": {"verdict": "sent_twice", "proven": False, "accepted": 1, "receipts": 0, "queue": "reward-point"},
}
_RECORD = {
    "record_id": "R1",
    "pipeline": "reward",
    "answer": "It was not dispatched: its status is Rewarded, and WaitToReward is due.",
    "reason": "not_due",
    "source": {
        "found": True,
        "verdict": "not_due",
        "why": "its status is Rewarded, and WaitToReward is due",
        "booking_time": "2026-09-17T15:20:00Z",
        "status": "Rewarded",
        "window": _WINDOW,
        "windows": [_WINDOW],
        "error": None,
    },
    "occurrences": [],
    "findings": [],
    "events": [],
}
_ENTRY: dict[str, Any] = {
    "entry_id": _FINDING["entry_id"],
    "window": _WINDOW,
    "state": "confirmed",
    "void_reason": None,
    "group": {"ShopId": 7, "MemberId": 70, "PromotionEngineId": 700},
    "route": "Point",
    "job": "RewardPoint",
    "queue": "reward-point",
    "records": 1,
    "generation": 0,
    "attempts": 1,
    "content_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "idempotency_key": "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
    "object": {
        "bucket": "bookings",
        "key": "reward-dispatch/reward/2026/09/17/15/…/…-0.json",
        "bytes": 512,
        "etag": "…",
    },
    "run_id": "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f52",
    "opened_at": "2026-09-17T16:01:11Z",
    "confirmed_at": "2026-09-17T16:01:12Z",
    "occurrences": [{"record_id": "R1", "booking_time": "2026-09-17T15:20:00Z"}],
    "sends": [],
    "findings": [],
    "events": [{"at": "2026-09-17T16:01:11Z", "event": "entry opened", "records": 1}],
}
_STORY: dict[str, Any] = {
    "window": _WINDOW,
    "end": "2026-09-17T16:00:00Z",
    "pipeline": "reward",
    "state": "not_dispatched",
    "seq": 0,
    "open_findings": 0,
    "totals": dict.fromkeys(COUNTS, 0),
    **{name: [] for name in ("runs", "pages", "entries", "findings", "plans", "events")},
}
assert set(documents.FindingKind.__args__) == set(KINDS)  # type: ignore[attr-defined]


@router.get(
    "/windows",
    tags=["windows"],
    response_model=documents.WindowsReport,
    responses=shows({"windows": [_ROW], "totals": _NUMBERS}) | may_answer(),
)
def list_windows(
    _: Viewer,
    api: Shared,
    since: Annotated[
        str | None,
        Query(alias="from", max_length=80, description="Windows that start at this instant or later.", **TIME),
    ] = None,
    until: Annotated[
        str | None, Query(alias="to", max_length=80, description="Windows that start before this instant.", **TIME)
    ] = None,
) -> Response:
    """Report the windows of a range, oldest first; of the last seven days by default."""
    bounds = bounds_of(since, until)
    with api.store() as store:
        return answer(reports.report_windows(store, api.pipeline, bounds).document)


@router.get(
    "/windows/{start}",
    tags=["windows"],
    response_model=documents.WindowStory,
    responses=shows(_STORY) | may_answer(),
)
def show_window(
    start: Annotated[str, Path(max_length=80, description="The window's start.", examples=[_WINDOW], **TIME)],
    _: Viewer,
    api: Shared,
) -> Response:
    """Tell the story of a window; one that nobody has worked on is `not_dispatched`."""
    window = parse_window(start)
    with api.store() as store:
        return answer(history.window_history(store, api.pipeline, window))


@router.get(
    "/entries/{entry_id}",
    tags=["entries and records"],
    response_model=documents.EntryStory,
    responses=shows(_ENTRY) | may_answer(404),
)
def show_entry(entry_id: UUID, _: Viewer, api: Shared) -> Response:
    """Tell the story of an entry."""
    with api.store() as store:
        story = history.entry_history(store, api.pipeline, entry_id)
    if story is None:
        raise NotFoundError(f"no entry {entry_id} in the ledger of pipeline {api.pipeline}; check id and pipeline")
    return answer(story)


@router.get(
    "/records/{record_id:anything}",
    tags=["entries and records"],
    response_model=documents.RecordStory,
    responses=shows(_RECORD) | may_answer(),
)
def show_record(
    record_id: Annotated[str, Path(max_length=4096, description="The table's key; percent-encode what is not plain.")],
    _: Viewer,
    api: Shared,
) -> Response:
    """Tell why a record was dispatched, or why not: the source now, its claims, entries, receipts and findings."""
    seen = api.lookup.ask(record_id)
    with api.store() as store:
        return answer(record_document(api.settings, store, seen))


@router.get(
    "/findings",
    tags=["findings"],
    response_model=documents.FindingsList,
    responses=shows({"findings": [_FINDING]}) | may_answer(),
)
def list_findings(
    _: Viewer,
    api: Shared,
    state: Annotated[Literal["open", "repaired", "acknowledged", "closed", "all"], Query()] = "open",
    kind: Annotated[documents.FindingKind | None, Query()] = None,
    window: Annotated[str | None, Query(max_length=80, description="A window's start.", **TIME)] = None,
    limit: Annotated[int, Query(ge=1, le=FINDINGS_MAX)] = 1000,
) -> Response:
    """List findings, newest first; open ones by default. `left_off` says how many more there are."""
    chosen = None if window is None else parse_window(window)
    wanted = Wanted(KINDS if kind is None else (kind,), FINDING_STATES if state == "all" else (state,), limit)
    with api.store() as store:
        return answer(reports.list_findings(store, api.pipeline, chosen, wanted).document)


class Acknowledgement(Strict):
    """Why a finding needs nothing more."""

    reason: Text
    by: Text | None = None


_NOTED: dict[str, Any] = _FINDING | {
    "state": "acknowledged",
    "acknowledged_by": "ops",
    "acknowledged_reason": "refunded by hand, ticket 4711",
}


@router.post(
    "/findings/{finding_id}/ack",
    tags=["findings"],
    response_model=documents.AcknowledgedFinding,
    responses=shows(_NOTED) | may_answer(400, 404, 409, 413, 415),
)
def acknowledge_finding(
    finding_id: Annotated[int, Path(ge=0)], note: Acknowledgement, who: Operator, api: Shared
) -> Response:
    """Take note of an open finding; repeated, the first name and reason are kept.

    Who says so is the token's name; `by` is written before it.
    """
    by = who.name if note.by is None else f"{note.by} ({who.name})"[:TEXT_MAX]
    with api.store() as store:
        return answer(acknowledge(store, api.pipeline, finding_id, parse_note(by, note.reason)))
