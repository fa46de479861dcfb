"""Controlled redo: planned, looked at, applied; each as a job."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Response

from ledger.jobs import has_key
from ledger.plans import load_plan, plan_document
from ops.api import documents
from ops.api.access import Approver, Operator, Viewer
from ops.api.bodies import JsonRoute
from ops.api.jobs import ACCEPTED, IdempotencyKey, accept
from ops.api.problems import may_answer
from ops.api.state import Shared, answer, shows
from ops.jobs.requests import PlanParams, RedoParams, RedoRequest
from reconcile.redo import require_applicable

_PLAN: dict[str, Any] = {
    "plan_id": "01a2286f-0b5e-7c43-9d0c-0d8a3f6b2f51",
    "window": "2026-09-17T15:00:00Z",
    "reason": "coupon service was down, ticket 4711",
    "by": "ann",
    "state": "planned",
    "hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "jobs": 1,
    "records": 2,
    "already_worked": 0,
    "no_longer_due": 1,
    "entries": [
        {"group": {"ShopId": 7, "MemberId": 70, "PromotionEngineId": 700}, "records": ["B2", "B1"], "generation": 1}
    ],
    "applied_by": None,
    "stale_reason": None,
}
router = APIRouter(tags=["redo"], prefix="/redo/plans", route_class=JsonRoute)


@router.post("", status_code=202, response_model=documents.Accepted, responses=ACCEPTED | may_answer(400, 413, 415))
def plan_redo(params: PlanParams, who: Operator, api: Shared, key: IdempotencyKey = None) -> Response:
    """Ask for a plan of what would be sent again; the job's result is the plan. Nothing is sent."""
    return accept(api, RedoRequest(kind="redo", params=RedoParams(plan=params)), who, key)


@router.get("/{plan_id}", response_model=documents.Plan, responses=shows(_PLAN) | may_answer(404))
def show_plan(plan_id: UUID, _: Viewer, api: Shared) -> Response:
    """Show a plan: what it would send, or has sent, who wanted it, and why."""
    with api.store() as store:
        return answer(plan_document(store, load_plan(store, api.pipeline, plan_id)))


@router.post(
    "/{plan_id}/apply",
    status_code=202,
    response_model=documents.Accepted,
    responses=ACCEPTED | may_answer(404, 409),
)
def apply_plan(plan_id: UUID, who: Approver, api: Shared, key: IdempotencyKey = None) -> Response:
    """Send what a plan says. A plan is applied once; asked for again, the job's result is the same.

    Refused at once (409) when the plan is out of date or cancelled, its window is held, or a run is working on it.
    """
    with api.store() as store:
        if key is None or not has_key(store, api.pipeline, key):
            require_applicable(store, api.pipeline, plan_id)
    return accept(api, RedoRequest(kind="redo", params=RedoParams(apply=plan_id)), who, key)
