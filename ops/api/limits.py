"""How large a request's body may be.

One of two places with asynchronous code: a body is counted as it comes in, and what stands between server and
application speaks ASGI. Starlette has such a limit, too, but answers with plain text.
"""

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
