"""The HTTP API in this process, in front of a real ledger and emulated queues."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from dispatch.lookup import Lookup
from ledger.pool import StorePool
from ledger.settings import Settings
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
