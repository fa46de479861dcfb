"""The bodies of requests: how large they may be, what they are made of, and how they are read.

Asynchronous, since a body is counted as it comes in, and what stands between server and application speaks ASGI.
Starlette has a limit, too, but answers with plain text.
"""

from collections.abc import Callable, Coroutine
from email.message import Message as Headed
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ledger.strict_json import NotJsonError, TooMuchError, read_json
from ops.api import access
from ops.api.problems import problem

BODY_BYTES_MAX = 128 * 1024
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
    """A route whose body, if it takes one, is JSON, read strictly; only those who may ask are told what is wrong."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what handles a request."""
        usual = super().get_route_handler()
        if self.body_field is None:
            return usual

        async def handle(request: Request) -> Response:
            access.identify(request)
            strict = _StrictRequest(request.scope, request.receive)
            body = await strict.body()
            if not body:
                raise HTTPException(400, "the body is empty; send JSON")
            _require_plain_json(request.headers)
            return await usual(strict)

        return handle


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
