"""Server-sent events: who follows a job takes one of few places, and gives it back when going away.

One of two places with asynchronous code: only there it shows that a client is gone. No thread is held between
two looks.
"""

import threading
from collections.abc import AsyncIterator, Iterator

import anyio
from fastapi.responses import StreamingResponse
from starlette.concurrency import iterate_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from ops.api.problems import RETRY_AFTER_S, problem

POLL_S = 0.5
# A client that takes nothing for so long is gone, whatever its machine says.
SEND_MAX_S = 20.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Sends events as they come, one look every half a second, until there are no more or the client is gone.

    Args:
        looks: yields the bytes of events, and none of them when it is time to wait before the next look; never waits.
        places: how many more streams may be open; without one, the answer is 503.
    """

    def __init__(self, looks: Iterator[bytes], places: threading.Semaphore) -> None:
        super().__init__(_paced(looks), headers=_HEADERS, media_type="text/event-stream")
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if not self._places.acquire(blocking=False):
            told = problem(
                503, "too many streams are open; ask for the job itself", {"Retry-After": str(RETRY_AFTER_S)}
            )
            await told(scope, receive, send)
            return
        try:
            with anyio.CancelScope() as whole:
                await super().__call__(scope, receive, _impatient(send, whole))
        finally:
            self._places.release()


def _impatient(send: Send, whole: anyio.CancelScope) -> Send:
    """Give the whole answer up when a part of it is not taken in time."""

    async def bounded(message: Message) -> None:
        with anyio.move_on_after(SEND_MAX_S) as one:
            await send(message)
        if one.cancelled_caught:
            whole.cancel()

    return bounded


async def _paced(looks: Iterator[bytes]) -> AsyncIterator[bytes]:
    async for found in iterate_in_threadpool(looks):
        if found:
            yield found
        else:
            await anyio.sleep(POLL_S)
