"""Jobs: asked for, listed, looked at, cancelled, followed."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Header, Query, Response
from fastapi.responses import StreamingResponse

from ledger import clock, jobs, runs
from ledger.errors import DispatchLedgerError, InputError, NotFoundError
from ledger.instants import Window, parse_window
from ledger.jobs import FINAL, LIST_MAX, STATUSES, Job, Wanted, job_document
from ledger.store import Store
from ops.api import documents
from ops.api.access import Operator, Principal, Viewer
from ops.api.bodies import JsonRoute
from ops.api.problems import may_answer
from ops.api.state import Api, Shared, answer, shows
from ops.api.streams import EventStream
from ops.context import encoded
from ops.jobs.requests import (
    AnyRequest,
    DispatchParams,
    PlanParams,
    ReconcileParams,
    RedoParams,
    chain,
    needs_approver,
    new_job,
)
from reconcile.redo import scope_of_group

router = APIRouter(tags=["jobs"], route_class=JsonRoute)
_SILENCE_S = 15.0
_STREAM_MAX_S = 3600.0
_EXAMPLE = {
    "job_id": "01a22a04-3f5c-7d1e-8a57-0c9f3b6f1d20",
    "kind": "reconcile",
    "status": "processing",
    "progress": {"done": 12, "total": 168},
    "attempts": 1,
    "heartbeat_at": "2026-11-30T00:40:12.5Z",
    "result": None,
    "error": None,
    "params": {"lookback": "7d"},
    "queue": "slow",
    "follows": None,
    "created_by": "ops",
    "created_at": "2026-11-30T00:39:58.1Z",
    "started_at": "2026-11-30T00:39:58.4Z",
    "finished_at": None,
}
_LISTED = {name: value for name, value in _EXAMPLE.items() if name != "result"}
_SHOWN = shows(_EXAMPLE, "The job as it is now.") | may_answer(404)
ACCEPTED = shows({"job_id": _EXAMPLE["job_id"], "status": "pending"}, "Written down; see `Location`.", 202)
_WINDOW = "2026-09-17T15:00:00Z"
_ASKED: dict[str, Any] = {
    "dispatch, then reconcile": {
        "value": {
            "kind": "dispatch",
            "params": {"window": _WINDOW},
            "follow_up": {"kind": "reconcile", "params": {"window": _WINDOW}},
        }
    },
    "reconcile a week": {"value": {"kind": "reconcile", "params": {"lookback": "7d"}}},
    "a report": {"value": {"kind": "report", "params": {"report": "windows", "format": "csv", "from": _WINDOW}}},
}
_STREAM: dict[int | str, Any] = {
    200: {
        "description": "Server-sent events, each with the job as `data`: the same document as that of the job.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "The job has ended, and its last event was received."},
}
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern="^[!-~]+$",
        description="The same key and body again give the same job; another body with it is refused.",
    ),
]


@router.post(
    "/jobs",
    status_code=202,
    response_model=documents.Accepted,
    responses=ACCEPTED | may_answer(400, 413, 415, 422),
)
def create_job(
    request: Annotated[AnyRequest, Body(discriminator="kind", openapi_examples=_ASKED)],
    who: Operator,
    api: Shared,
    key: IdempotencyKey = None,
) -> Response:
    """Ask for long-running work; answers before any of it is done."""
    return accept(api, request, who, key)


def accept(api: Api, request: AnyRequest, who: Principal, key: str | None) -> Response:
    """Write a job down, put its id on its queue if that works at once, and say where to look at it.

    The same request again under its key is answered the same, however far the job has come.
    """
    if needs_approver(request):
        who.require("approver")
    new = new_job(request, who.name, key)
    with api.store() as store:
        _require_possible(api, store, request)
        job = jobs.create_job(store, api.pipeline, new, api.settings.jobs.max_depth)
        if job.id == new.id:
            api.sender.send(store, job.id, job.queue)
    location = f"/api/v1/jobs/{job.id}"
    return answer({"job_id": str(job.id), "status": "pending"}, 202, {"Location": location})


def _require_possible(api: Api, store: Store, request: AnyRequest) -> None:
    """Refuse windows that have not ended, and groups that are none; a worker would have to refuse them, too."""
    for one in chain(request):
        named = _windows(one)
        if named and not runs.has_ended(store, max(named)):
            raise InputError(f"window {max(named)} has not ended yet; it ends at {max(named).end_name}")
        if isinstance(one.params, RedoParams) and one.params.plan is not None:
            for group in one.params.plan.group:
                scope_of_group(group, api.settings.source.group_by, "group")


def _windows(request: AnyRequest) -> list[Window]:
    match request.params:
        case DispatchParams(chosen=window) if window is not None:
            return [window]
        case ReconcileParams(chosen=windows):
            return windows
        case RedoParams(plan=PlanParams(window=name)):
            return [parse_window(name)]
    return []


@router.get(
    "/jobs",
    response_model=documents.JobsPage,
    responses=shows({"jobs": [_LISTED], "next": None}, "A page of jobs.") | may_answer(),
)
def list_jobs(
    _: Viewer,
    api: Shared,
    status: Annotated[Literal["pending", "processing", "completed", "failed", "cancelled"] | None, Query()] = None,
    kind: Annotated[Literal["dispatch", "reconcile", "redo", "report"] | None, Query()] = None,
    before: Annotated[UUID | None, Query(description="The `next` of the page before this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = 50,
) -> Response:
    """List jobs, newest first, without their results."""
    wanted = Wanted(STATUSES if status is None else (status,), kind, before, limit)
    with api.store() as store:
        return answer(jobs.list_jobs(store, api.pipeline, wanted))


@router.get("/jobs/{job_id}", response_model=documents.Job, responses=_SHOWN)
def show_job(job_id: UUID, _: Viewer, api: Shared) -> Response:
    """Look at a job."""
    return answer(job_document(_load(api, job_id)))


@router.delete("/jobs/{job_id}", response_model=documents.Job, responses=_SHOWN)
def cancel_job(job_id: UUID, _: Operator, api: Shared) -> Response:
    """Cancel a job, for good: its worker stops at the next safe point. One that has ended stays as it is."""
    with api.store() as store:
        job = jobs.cancel_job(store, api.pipeline, job_id)
    if job is None:
        raise _unknown(job_id)
    return answer(job_document(job))


@router.get(
    "/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses=_STREAM | may_answer(404),
)
def follow_job(
    job_id: UUID, _: Viewer, api: Shared, last_event_id: Annotated[str | None, Header(max_length=80)] = None
) -> Response:
    """Follow a job: an event whenever something changes, the last one when it has ended."""
    job = _load(api, job_id)
    if job.status in FINAL and last_event_id == job.status:
        return Response(status_code=204)  # a browser connects again until it hears this
    return EventStream(_looks(api, job), api.streams)


def _looks(api: Api, job: Job) -> Iterator[bytes]:
    """Look at a job again and again until it has ended, and yield an event when something has changed."""
    until_s = clock.monotonic_s() + _STREAM_MAX_S
    shown, shown_s, opening = b"", 0.0, b"retry: 2000\n\n"
    while clock.monotonic_s() < until_s:
        document = encoded(job_document(job))
        if document != shown:
            shown, shown_s = document, clock.monotonic_s()
            yield opening + b"id: %s\ndata: %s\n\n" % (job.status.encode(), document)
            opening = b""
        elif clock.monotonic_s() - shown_s > _SILENCE_S:
            shown_s = clock.monotonic_s()
            yield b": still here\n\n"
        if job.ended:
            return
        yield b""
        if api.stopping.is_set():
            return
        try:
            job = _load(api, job.id)
        except DispatchLedgerError:
            return  # whoever listens connects again, and is told why


def _load(api: Api, job_id: UUID) -> Job:
    with api.store() as store:
        job = jobs.find_job(store, api.pipeline, job_id)
    if job is None:
        raise _unknown(job_id)
    return job


def _unknown(job_id: UUID) -> NotFoundError:
    return NotFoundError(f"no job {job_id} in the ledger; check the id and the pipeline")
