"""The HTTP API in this process, in front of a real ledger and emulated queues; also behind a real socket."""

import hashlib
import http.client
import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from dispatch.lookup import Lookup
from dispatch.run import Cancellation
from ledger.pool import SILENCE_S, StorePool
from ledger.settings import Settings
from ops.api import server
from ops.api.app import create_app
from ops.api.state import Api
from ops.jobs.sending import JobSender

TOKENS = {"v": "viewer", "o": "operator", "a": "approver"}


def tokens_setting() -> str:
    """Give a token to each role, named and spelt `v`, `o` and `a`, as the environment has it."""
    return json.dumps(
        {name: {"sha256": hashlib.sha256(name.encode()).hexdigest(), "role": role} for name, role in TOKENS.items()}
    )


def bearer(token: str) -> dict[str, str]:
    """Give the header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def served(settings: Settings, url: str, sender: JobSender) -> Iterator[FastAPI]:
    """Make the application for a ledger."""
    pool = StorePool(url, 16)
    try:
        yield create_app(Api(settings, Lookup(settings, settings.aws.endpoint_url), pool, sender))
    finally:
        pool.close()


@contextmanager
def listening(
    settings: Settings, url: str, sender: JobSender, *, silence_s: float = SILENCE_S
) -> Iterator[tuple[Api, int]]:
    """Serve on a port of this machine, as the command does; gives what requests share, and the port."""
    pool, cancellation, ready = StorePool(url, server.CONNECTIONS, silence_s), Cancellation(), queue.Queue[str]()
    api = Api(settings, Lookup(settings, settings.aws.endpoint_url), pool, sender)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        arguments = (api, cancellation, listener, lambda: ready.put(""))
        serving = threading.Thread(target=server._serve, args=arguments)
        serving.start()
        try:
            ready.get(timeout=60)
            yield api, listener.getsockname()[1]
        finally:
            cancellation.ask(2)
            serving.join()
            pool.close()


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Ask a server on a socket; gives status, headers and body. A body that is not bytes is sent as JSON."""
    raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    usual = {} if raw is None else {"Content-Type": "application/json"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, raw, usual | headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def client_of(app: FastAPI, token: str | None = None) -> TestClient:
    """Make a client on this machine; what the server does not expect is an answer, too."""
    headers = {} if token is None else bearer(token)
    return TestClient(app, base_url="http://127.0.0.1", headers=headers, raise_server_exceptions=False)


def check_problem(response: Any, status: int, says: str = "") -> dict[str, Any]:
    """Check that an answer is a problem document (RFC 9457) that says so."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert (document["status"], document["type"]) == (status, "about:blank")
    assert document["title"]
    assert says in (document["detail"] or ""), document
    return document
