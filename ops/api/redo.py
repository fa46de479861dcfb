"""Controlled redo: planned, looked at, applied; each as a job."""

from uuid import UUID

from fastapi import APIRouter, Response

from ops.api.access import Approver, Operator
from ops.api.jobs import Accepted, IdempotencyKey, accept
from ops.api.problems import may_answer
from ops.api.state import Shared
from ops.jobs.requests import PlanParams, RedoParams, RedoRequest

router = APIRouter(tags=["redo"], prefix="/redo/plans")


@router.post("", status_code=202, response_model=Accepted, responses=may_answer(400, 413))
def plan_redo(params: PlanParams, who: Operator, api: Shared, key: IdempotencyKey = None) -> Response:
    """Ask for a plan of what would be sent again; the job's result is the plan. Nothing is sent."""
    return accept(api, RedoRequest(kind="redo", params=RedoParams(plan=params)), who, key)


@router.post("/{plan_id}/apply", status_code=202, response_model=Accepted, responses=may_answer())
def apply_plan(plan_id: UUID, who: Approver, api: Shared, key: IdempotencyKey = None) -> Response:
    """Send what a plan says. A plan is applied once; asked for again, the job's result is the same."""
    return accept(api, RedoRequest(kind="redo", params=RedoParams(apply=plan_id)), who, key)
