"""The application: its routes, its errors, its description."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ops.api import access, health, jobs, problems, reading, receipts, redo
from ops.api.bodies import BodyLimit
from ops.api.gate import HeadAsGet, LocalOnly
from ops.api.state import Api
from ops.metrics import LedgerCollector

_ABOUT = "Long-running work, what the ledger says, and receipts for consumers. Errors are RFC 9457 problem documents."
_V1 = "/api/v1"
_ROUTERS = (jobs.router, reading.router, redo.router, receipts.router)


def create_app(api: Api) -> FastAPI:
    """Put the application together; `/` is free for pages."""
    app = FastAPI(
        title="dispatch-ledger",
        version=version("dispatch-ledger"),
        description=_ABOUT,
        openapi_url=f"{_V1}/openapi.json",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.api = api
    app.state.metrics = LedgerCollector(api.settings, api.pool, api.sender).registry()
    for middleware in (BodyLimit, LocalOnly, HeadAsGet):  # the last one stands first
        app.add_middleware(middleware)
    problems.add_to(app)
    v1 = APIRouter(prefix=_V1, dependencies=[access.bearer])
    for router in _ROUTERS:
        v1.include_router(router)
    app.include_router(v1)
    app.include_router(health.router)
    _describe_as_it_is(app)
    return app


def _describe_as_it_is(app: FastAPI) -> None:
    """Let the document of the API describe errors as they are, instead of FastAPI's own, and keep nulls in examples."""
    usual = app.openapi
    examples = [one for router in _ROUTERS for route in router.routes for one in _examples(route)]

    def openapi() -> dict[str, Any]:
        document = usual()
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        described = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= described.pop("$defs", {})
        schemas["Problem"] = described
        for path, method, status, example in examples:
            answers = document["paths"][path][method]["responses"]
            answers[status]["content"]["application/json"]["example"] = example
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _examples(route: BaseRoute) -> Iterator[tuple[str, str, str, Any]]:
    """Yield the examples of a route's answers: path, method, status, and the example as it was written."""
    assert isinstance(route, APIRoute), "the routers of the API have no others"
    for status, answer in route.responses.items():
        told = answer.get("content", {}).get("application/json", {})
        if "example" in told:
            for method in route.methods or ():
                yield _V1 + route.path_format, method.lower(), str(status), told["example"]
