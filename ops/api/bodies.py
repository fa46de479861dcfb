"""What requests say: how large a body may be, how long it may take, and what may be said once or not at all.

Asynchronous, since a body is counted as it comes in, and what stands between server and application speaks ASGI.
Starlette has a limit, too, but answers with plain text.
"""

from collections.abc import Callable, Coroutine
from email.message import Message as Headed
from threading import Event
from typing import Any

import anyio
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ledger import clock
from ledger.strict_json import NotJsonError, TooMuchError, read_json
from ops.api import access
from ops.api.problems import RETRY_AFTER_S, problem

BODY_BYTES_MAX = 128 * 1024
BODY_WITHIN_S = 20.0
_LOOK_S = 0.5
_SAID_ONCE = ("authorization", "content-type", "idempotency-key", "last-event-id")
_LAST = {"Connection": "close"}  # what still comes of the body would be taken for the next request
_TOO_LARGE = f"the body is larger than {BODY_BYTES_MAX} bytes"


class BodyLimit:
    """Refuses what says that it is too large before anything of it is read, and breaks off what turns out to be."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif _announced(scope) > BODY_BYTES_MAX:
            await problem(413, _TOO_LARGE)(scope, receive, send)
        else:
            await self._app(scope, _counted(receive), send)


def _announced(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "")
    return int(text[:20]) if text.isascii() and text.isdigit() else 0


def _counted(receive: Receive) -> Receive:
    """Count what is received; the exception is answered like any other of the application."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES_MAX:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return counted


class JsonRoute(APIRoute):
    """A route that is asked strictly: JSON for a body, and nothing said twice or in vain.

    Only those who may ask are told what is wrong.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what handles a request."""
        usual = super().get_route_handler()
        takes_body = self.body_field is not None
        known = {field.alias for field in self.dependant.query_params}

        async def handle(request: Request) -> Response:
            access.identify(request)
            _require_once(request, known)
            if not takes_body:
                return await usual(request)
            stopping: Event = request.app.state.api.stopping
            strict = _StrictRequest(request.scope, _bounded(request.receive, stopping))
            try:
                body = await strict.body()
            except ClientDisconnect:
                raise HTTPException(400, "the body broke off") from None  # nobody hears it
            if not body:
                raise HTTPException(400, "the body is empty; send JSON")
            _require_plain_json(request.headers)
            return await usual(strict)

        return handle


def _require_once(request: Request, known: set[str]) -> None:
    """Refuse what is unknown in the query, and what is said twice there or in a header that is read.

    Raises:
        RequestValidationError: 422.
    """
    asked = [name for name, _ in request.query_params.multi_items()]
    wrong = [("query", name, "there is no such parameter here") for name in dict.fromkeys(asked) if name not in known]
    wrong += [("query", name, "give it once") for name in sorted(known) if asked.count(name) > 1]
    wrong += [("header", name, "give it once") for name in _SAID_ONCE if len(request.headers.getlist(name)) > 1]
    if wrong:
        raise RequestValidationError([{"loc": (place, name[:80]), "msg": says} for place, name, says in wrong])


def _bounded(receive: Receive, stopping: Event) -> Receive:
    """Wait for the parts of a body until their time is over, or the server stops."""
    until_s = clock.monotonic_s() + BODY_WITHIN_S

    async def bounded() -> Message:
        while True:
            if stopping.is_set():
                raise HTTPException(503, "the server stops; ask again", _LAST | {"Retry-After": str(RETRY_AFTER_S)})
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0:
                raise HTTPException(408, f"the body has not come within {BODY_WITHIN_S:.0f} seconds", _LAST)
            with anyio.move_on_after(min(left_s, _LOOK_S)):
                return await receive()

    return bounded


class _StrictRequest(Request):
    async def json(self) -> Any:
        """Read the body."""
        try:
            return read_json(await self.body())
        except NotJsonError as error:
            raise HTTPException(400, f"the body is no JSON: {error}") from None
        except TooMuchError as error:
            raise HTTPException(422, f"the body is too much: {error}") from None


def _require_plain_json(headers: Headers) -> None:
    """Refuse what would be read as something that it is not.

    Raises:
        HTTPException: 415.
    """
    coding = headers.get("content-encoding", "identity")
    if coding.strip().lower() != "identity":
        raise HTTPException(415, "send the body without Content-Encoding")
    said = Headed()
    said["content-type"] = headers.get("content-type", "none/none")
    kind = said.get_content_type()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise HTTPException(415, "send the body as Content-Type: application/json")
    if said.get_content_charset("utf-8") not in {"utf-8", "utf8"}:
        raise HTTPException(415, "send the body in UTF-8, as all JSON is")
