"""Errors as RFC 9457 problem documents: what was wrong, where, and what to do; nothing of the inside."""

from datetime import datetime
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from ledger.errors import (
    BusyError,
    DispatchLedgerError,
    GuardError,
    InputError,
    NotFoundError,
    UnavailableError,
    UnknownKeyError,
)
from ops.context import encoded

LOG = structlog.get_logger(__name__)
MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
_ERRORS_MAX = 20
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
# The first class that fits decides, so the narrower ones stand first.
_STATUS: tuple[tuple[type[DispatchLedgerError], HTTPStatus], ...] = (
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (UnknownKeyError, HTTPStatus.NOT_FOUND),
    (InputError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BusyError, HTTPStatus.CONFLICT),
    (GuardError, HTTPStatus.CONFLICT),
    (UnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_MEANT = {
    400: "The body is empty, or no JSON.",
    401: "No token, or one that nobody here has.",
    403: "The token's role does not allow this.",
    404: "There is no such thing in the ledger of this pipeline.",
    408: "The body has not come in time.",
    409: "It cannot be done as things stand.",
    413: "The body is too large.",
    415: "The body is not sent as JSON in UTF-8.",
    422: "The request says something that is not allowed.",
    503: "A service did not answer, or too much is waiting; see `Retry-After`.",
}


class Wrong(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(examples=["body.params.window"])
    reason: str


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    type: str = Field(default="about:blank", examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Entity"])
    status: int = Field(examples=[422])
    detail: str | None = None
    errors: list[Wrong] | None = None
    expires_at: datetime | None = Field(default=None, description="Until when another worker has the job.")


class ProblemError(Exception):
    """An answer that is a problem."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


def problem(status: int, detail: str | None, headers: dict[str, str] | None = None, **members: Any) -> Response:
    """Answer with a problem document."""
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "detail": detail} | members
    return Response(encoded(document), status, headers, media_type=MEDIA_TYPE)


def may_answer(*statuses: int) -> dict[int | str, Any]:
    """Describe the problems that a route may answer with."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": _MEANT[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({401, 403, 422, 503, *statuses} | ({408} if 413 in statuses else set()))
    }


def add_to(app: FastAPI) -> None:
    """Let every error of the app be a problem document."""
    app.exception_handler(ProblemError)(_told)
    app.exception_handler(DispatchLedgerError)(_of_ours)
    app.exception_handler(HTTPException)(_of_http)
    app.exception_handler(RequestValidationError)(_of_validation)
    app.exception_handler(Exception)(_unexpected)


def _told(_request: Request, error: ProblemError) -> Response:
    return problem(error.status, error.detail, error.headers)


def _of_ours(_request: Request, error: DispatchLedgerError) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        LOG.error("request failed", reason=str(error))
        return problem(status, "the ledger does not agree with itself; the server's log says more")
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    return problem(status, str(error), headers)


def _of_http(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods_here(request))
    return problem(error.status_code, error.detail, headers)


def _methods_here(request: Request) -> list[str]:
    """List the methods of all routes that have the request's path."""
    asked = {"type": "http", "path": request.scope["path"], "root_path": request.scope["root_path"], "headers": []}
    found = [
        method
        for method in _METHODS
        if any(route.matches({**asked, "method": method})[0] == Match.FULL for route in request.app.routes)
    ]
    return sorted([*found, "HEAD"] if "GET" in found else found)


def _of_validation(_request: Request, error: RequestValidationError) -> Response:
    """Say what is wrong, and where."""
    found = error.errors()
    wrong = [
        {"where": ".".join(map(str, one["loc"])), "reason": one["msg"].removeprefix("Value error, ")}
        for one in found[:_ERRORS_MAX]
    ]
    detail = f"{wrong[0]['where']}: {wrong[0]['reason']}"
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=wrong)


def _unexpected(request: Request, error: Exception) -> Response:
    route = getattr(request.scope.get("route"), "path", None)  # never the path itself: it may hold a record's id
    LOG.error("request failed in an unexpected way", method=request.method, route=route, exc_info=error)
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this should not happen; the server's log says more")
