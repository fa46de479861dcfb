"""Receipts, for consumers in any language: who has a job, and what came of it."""

from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Path, Response
from pydantic import Field, model_validator

from ledger import receipts
from ledger.errors import InputError, NotFoundError
from ledger.instants import format_time
from ledger.receipts import LEASE_MAX, LEASE_MIN, WORKER_CHARS_MAX, Claim, Completed, GoAhead, Held, Superseded
from ops.api import documents
from ops.api.access import Operator
from ops.api.bodies import JsonRoute
from ops.api.problems import may_answer, problem
from ops.api.state import Shared, answer, shows
from ops.jobs.requests import Strict

router = APIRouter(tags=["receipts"], route_class=JsonRoute)
_LEASE_S = 60.0
_CLAIM = "01a22a11-52c4-7e0f-8a57-0c9f3b6f1d20"
_UNTIL = "2026-09-17T16:02:10.5Z"
Key = Annotated[str, Path(max_length=200, description="The message's idempotency key: 64 hexadecimal digits.")]
Lease = Annotated[
    float,
    Field(
        ge=LEASE_MIN.total_seconds(),
        le=LEASE_MAX.total_seconds(),
        allow_inf_nan=False,
        description="How long the claim lasts without a heartbeat, in seconds.",
    ),
]
Token = Annotated[UUID, Field(strict=False, description="What taking the job has answered.", examples=[_CLAIM])]


class Take(Strict):
    """Who asks for the job."""

    worker: Annotated[str, Field(min_length=1, max_length=WORKER_CHARS_MAX, examples=["points-7"])]
    lease_s: Lease = _LEASE_S


class Beat(Strict):
    """A heartbeat."""

    claim: Token
    lease_s: Lease = _LEASE_S


class End(Strict):
    """What came of the job."""

    claim: Token
    status: Literal["completed", "failed"]
    result: Any = None
    reason: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> "End":
        if (self.status == "failed") != (self.reason is not None):
            raise ValueError("a failed job has a reason, a completed one has none")
        if self.status == "failed" and self.result is not None:
            raise ValueError("only a completed job has a result")
        return self


_DO_NOT_WORK: dict[int | str, Any] = {
    200: {
        "description": "Do not work: it is completed, or superseded.",
        "model": documents.DoNotWork,
        "content": {
            "application/json": {
                "example": {"status": "completed", "result": {"points": 5}, "finished_at": "2026-09-17T16:01:40Z"}
            }
        },
    }
}


@router.post(
    "/receipts/{idempotency_key}",
    status_code=201,
    response_model=documents.GoAhead,
    responses=_DO_NOT_WORK
    | shows({"claim": _CLAIM, "expires_at": _UNTIL, "attempts": 1}, "Go ahead.", 201)
    | may_answer(400, 404, 409, 413, 415),
)
def take(idempotency_key: Key, request: Take, _: Operator, api: Shared) -> Response:
    """Ask for a job before working on it. One worker has it at a time, and it is completed once."""
    with api.store() as store:
        lease = timedelta(seconds=request.lease_s)
        taken = receipts.take(store, api.pipeline, _key(idempotency_key), request.worker, lease)
    match taken:
        case GoAhead(claim, expires_at, attempts):
            until = format_time(expires_at)
            return answer({"claim": str(claim.token), "expires_at": until, "attempts": attempts}, 201)
        case Completed(finished_at, result):
            return answer({"status": "completed", "result": result, "finished_at": format_time(finished_at)})
        case Superseded():
            return answer({"status": "superseded"})
        case Held():
            return _held(taken)
    raise _no_such_key(idempotency_key)


def _held(held: Held) -> Response:
    wait_s = max(1, -int(-held.remaining.total_seconds() // 1))
    detail = f"another worker has the job until {format_time(held.until)} unless it renews; come again"
    return problem(409, detail, {"Retry-After": str(wait_s)}, expires_at=format_time(held.until))


@router.patch(
    "/receipts/{idempotency_key}",
    response_model=documents.Renewed,
    responses=shows({"expires_at": _UNTIL}, "The claim lasts longer.") | may_answer(400, 404, 409, 413, 415),
)
def heartbeat(idempotency_key: Key, beat: Beat, _: Operator, api: Shared) -> Response:
    """Renew a claim; one that has run out and passed on to another worker is refused."""
    with api.store() as store:
        claim = Claim(api.pipeline, _key(idempotency_key), beat.claim)
        expires_at = receipts.heartbeat(store, claim, timedelta(seconds=beat.lease_s))
    return answer({"expires_at": format_time(expires_at)})


@router.put(
    "/receipts/{idempotency_key}",
    response_model=documents.Ended,
    responses=shows({"status": "completed", "finished_at": _UNTIL}, "It has ended.")
    | may_answer(400, 404, 409, 413, 415),
)
def end(idempotency_key: Key, ended: End, _: Operator, api: Shared) -> Response:
    """End a job; repeated, the same call is answered the same. A failed one may be taken again."""
    with api.store() as store:
        claim = Claim(api.pipeline, _key(idempotency_key), ended.claim)
        if ended.status == "completed":
            finished_at = receipts.complete(store, claim, ended.result)
        else:
            finished_at = receipts.fail(store, claim, ended.reason or "")
    return answer({"status": ended.status, "finished_at": format_time(finished_at)})


def _key(text: str) -> bytes:
    try:
        return receipts.parse_key(text)
    except InputError:
        raise _no_such_key(text) from None


def _no_such_key(text: str) -> NotFoundError:
    return NotFoundError(f"no job of the idempotency key {text[:80]!r} in the ledger; check the key and the pipeline")
