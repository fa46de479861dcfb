"""What the routes share: made once at the start, and handed to each request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from dispatch.lookup import Lookup
from ledger.pool import StorePool
from ledger.settings import Settings
from ledger.store import Store
from ops.context import encoded
from ops.jobs.sending import JobSender

STREAMS_MAX = 20


@dataclass
class Api:
    """What requests are answered with.

    Attributes:
        lookup: asks the source for records.
        stopping: set when the server is asked to end; streams look at it.
        streams: how many more streams may be open: each of them asks the ledger now and then.
    """

    settings: Settings
    lookup: Lookup
    pool: StorePool
    sender: JobSender
    stopping: threading.Event = field(default_factory=threading.Event)
    streams: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(STREAMS_MAX))

    @property
    def pipeline(self) -> str:
        """The pipeline that this server speaks of."""
        return self.settings.pipeline

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Lend a connection to the ledger for the length of the block."""
        with self.pool.lend() as store:
            yield store


def _api(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


Shared = Annotated[Api, Depends(_api)]


def answer(document: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with a JSON document: the same bytes that the command line prints."""
    return Response(encoded(document), status, headers, media_type="application/json")


def shows(
    example: Any, description: str = "The same document as the command line's.", status: int = 200
) -> dict[int | str, Any]:
    """Describe the answer of a route that succeeds, by an example; its type is the route's response model."""
    return {status: {"description": description, "content": {"application/json": {"example": example}}}}
