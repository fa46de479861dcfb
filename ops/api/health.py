"""Whether the server lives, whether it can work, and what Prometheus asks for; all at the root, without a token."""

from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from ledger import schema
from ops.api import documents
from ops.api.problems import may_answer
from ops.api.state import Shared, answer

router = APIRouter(tags=["health"])
_NOT_READY: dict[int | str, Any] = {503: may_answer()[503]}


@router.get("/healthz", response_model=documents.Health)
async def healthz() -> Response:
    """Say that the server lives; it asks nobody else."""
    # Not on a thread, of which there may be none left while others wait for something.
    return answer({"status": "ok"})


@router.get("/readyz", response_model=documents.Health, responses=_NOT_READY)
def readyz(api: Shared) -> Response:
    """Say whether the ledger answers, and has this version's schema."""
    with api.store() as store:
        schema.require_head_of(store)
    return answer({"status": "ready"})


@router.get("/metrics", responses={200: {"content": {CONTENT_TYPE_LATEST: {}}}}, response_class=Response)
def metrics(request: Request) -> Response:
    """Tell Prometheus, in its text format."""
    return Response(generate_latest(request.app.state.metrics), media_type=CONTENT_TYPE_LATEST)
