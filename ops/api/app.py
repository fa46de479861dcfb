"""The application: its routes, its errors, its description."""

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from ops.api import access, health, jobs, problems, reading, receipts, redo
from ops.api.limits import BodyLimit
from ops.api.state import Api
from ops.metrics import LedgerCollector

_ABOUT = "Long-running work, what the ledger says, and receipts for consumers. Errors are RFC 9457 problem documents."


def create_app(api: Api) -> FastAPI:
    """Put the application together; `/` is free for pages."""
    app = FastAPI(
        title="dispatch-ledger",
        version=version("dispatch-ledger"),
        description=_ABOUT,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.api = api
    app.state.metrics = LedgerCollector(api.settings, api.pool, api.sender).registry()
    app.add_middleware(BodyLimit)
    problems.add_to(app)
    app.exception_handler(RequestValidationError)(_who_asks_first)
    v1 = APIRouter(prefix="/api/v1", dependencies=[access.bearer])
    for part in (jobs, reading, redo, receipts):
        v1.include_router(part.router)
    app.include_router(v1)
    app.include_router(health.router)
    _describe_problems(app)
    return app


def _who_asks_first(request: Request, error: RequestValidationError) -> Response:
    """Tell what is wrong with a request only to those who may ask: a body is read before its sender is known."""
    try:
        if request.url.path.startswith("/api/"):
            access.identify(request)
    except problems.ProblemError as refused:
        return problems.problem(refused.status, refused.detail, refused.headers)
    return problems.of_validation(error)


def _describe_problems(app: FastAPI) -> None:
    """Let the document of the API describe errors as they are, instead of FastAPI's own."""
    usual = app.openapi

    def openapi() -> dict[str, Any]:
        document = usual()
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        described = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= described.pop("$defs", {})
        schemas["Problem"] = described
        return document

    app.openapi = openapi  # type: ignore[method-assign]
