"""What stands before every path: who may come from where, and HEAD wherever there is GET.

Asynchronous, since what stands between server and application speaks ASGI.
"""

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ops.api import access
from ops.api.problems import ProblemError, problem


class LocalOnly:
    """Keeps out what a web page of somebody else's could make a browser on this machine send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI has it."""
        if scope["type"] == "http":
            try:
                access.require_local(Request(scope))
            except ProblemError as refused:
                await problem(refused.status, refused.detail)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class HeadAsGet:
    """Answers HEAD as GET, without the body; what would follow is not made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, as ASGI has it."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            await self._app({**scope, "method": "GET"}, receive, _bodiless(send))
        else:
            await self._app(scope, receive, send)


def _bodiless(send: Send) -> Send:
    ended = False

    async def head_only(message: Message) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:
            ended = True  # who streams is told now that nobody listens
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return head_only
