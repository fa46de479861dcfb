"""The HTTP API behind real sockets: clients that go away, and a ledger that hangs."""

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from ledger.store import Store
from ops.api import bodies, server, streams
from ops.api.state import STREAMS_MAX
from ops.api.streams import EventStream
from tests.api_kit import ask, listening
from tests.fault.pg_wire import AFTER, Fault, PgProxy
from tests.job_kit import JobRig
from tests.product import until
from tests.rig import Rig

V1 = "/api/v1"
REPORT = {"kind": "report", "params": {"report": "windows"}}


@pytest.fixture
def bench(rig: Rig, store: Store) -> Iterator[JobRig]:
    with JobRig(rig, store) as bench:
        yield bench


# Clients that go away


def follow(port: int, job: str) -> socket.socket:
    """Open a stream, and read what it answers first."""
    stream = socket.create_connection(("127.0.0.1", port), timeout=60)
    stream.sendall(f"GET /api/v1/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert stream.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    return stream


def test_who_stops_following_gives_the_place_back(bench: JobRig, ledger_url: str) -> None:
    with listening(bench.settings, ledger_url, bench.sender) as (api, port):
        job = json.loads(ask(port, "POST", f"{V1}/jobs", REPORT)[2])["job_id"]
        for gone_at_once in (False, True):
            open_streams = [follow(port, job) for _ in range(STREAMS_MAX)]
            assert ask(port, "GET", f"{V1}/jobs/{job}/events")[0] == 503
            for one in open_streams:
                if gone_at_once:  # with a reset, as a process that is killed with data unread
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            until(lambda: api.streams._value == STREAMS_MAX, "every place is given back", within_s=10)
        assert bench.job(job).status == "pending"


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system cannot be told")
def test_a_client_that_is_gone_without_a_word_is_given_up() -> None:
    with server._bound("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


def test_a_client_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SEND_MAX_S", 0.01)
    places = threading.Semaphore(1)

    async def never(*_: Any) -> Any:
        await anyio.sleep_forever()

    anyio.run(EventStream(iter([b"x"] * 10), places), {"type": "http", "asgi": {"spec_version": "2.3"}}, never, never)
    assert places.acquire(blocking=False)


# Bodies that do not come


def half_a_body(port: int) -> socket.socket:
    """Announce a body, and send a part of it."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = "POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    client.sendall(f'{head}\r\n{{"kind":'.encode())
    return client


def until_closed(client: socket.socket) -> bytes:
    """Read what comes until the other side has closed."""
    with client, client.makefile("rb") as answer:
        return answer.read()


def noted(requests: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note each body that is waited for."""
    usual = bodies._bounded
    monkeypatch.setattr(bodies, "_bounded", lambda *arguments: (requests.append(1), usual(*arguments))[1])


def test_clients_that_break_off_leave_no_traceback(
    bench: JobRig, ledger_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    noted(waited, monkeypatch)
    with capture_logs() as lines, listening(bench.settings, ledger_url, bench.sender) as (_, port):
        for count in range(1, 4):
            client = half_a_body(port)
            until(lambda count=count: len(waited) == count, "it is waited for")
            client.close()
        assert ask(port, "POST", f"{V1}/jobs", REPORT)[0] == 202
    assert [line for line in lines if line["log_level"] in {"error", "critical"}] == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_body_that_does_not_come_is_given_up(bench: JobRig, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_WITHIN_S", 0.05)
    with listening(bench.settings, ledger_url, bench.sender) as (_, port):
        answer = until_closed(half_a_body(port))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer


def test_the_end_of_the_server_waits_for_no_body(
    bench: JobRig, ledger_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    noted(waited, monkeypatch)
    with listening(bench.settings, ledger_url, bench.sender) as (_, port):
        clients = [half_a_body(port) for _ in range(5)]
        until(lambda: len(waited) == 5, "all are waited for")
    for client in clients:
        answer = until_closed(client)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after" in answer.lower()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# A ledger that hangs


def ledger_is_up(port: int) -> bool:
    status, _, text = ask(port, "GET", "/metrics")
    assert status == 200
    return b'dispatch_ledger_up{source="ledger"} 1.0' in text


def test_a_ledger_that_hangs_holds_nobody(bench: JobRig, ledger_url: str) -> None:
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"{V1}/jobs", None),
        ("POST", f"{V1}/jobs", REPORT),
        ("GET", f"{V1}/windows", None),
        ("POST", f"{V1}/receipts/{'a' * 64}", {"worker": "w"}),
        ("GET", "/readyz", None),
    ]
    with (
        PgProxy(ledger_url) as wire,
        listening(bench.settings, wire.url, bench.sender, silence_s=0.5) as (_, port),
        ThreadPoolExecutor(60) as pool,
    ):

        def all_at_once() -> list[tuple[int, dict[str, str], bytes]]:
            return list(pool.map(lambda one: ask(port, *one), asked * 12))

        assert {status for status, _, _ in all_at_once()} == {200, 202, 404}
        assert ledger_is_up(port)
        wire.fall_silent()
        waiting = pool.submit(all_at_once)
        assert ask(port, "GET", "/healthz")[0] == 200
        assert not ledger_is_up(port)
        for status, headers, body in waiting.result():
            assert (status, headers["content-type"]) == (503, "application/problem+json"), body
            assert int(headers["retry-after"]) > 0
        wire.speak()
        until(lambda: ask(port, "GET", "/readyz")[0] == 200, "it is there again")
        assert {status for status, _, _ in all_at_once()} == {200, 202, 404}, "neither threads nor connections are lost"
        assert ledger_is_up(port)


def test_jobs_asked_for_while_the_database_comes_and_goes(bench: JobRig, ledger_url: str) -> None:
    def insist(number: int) -> str:
        """Ask until it is accepted, as a client that may ask twice does."""
        key = {"Idempotency-Key": f"job-{number}"}
        status, _, body = until(lambda: accepted(ask(port, "POST", f"{V1}/jobs", REPORT, **key)), "it is accepted")
        assert status == 202
        return str(json.loads(body)["job_id"])

    def accepted(answer: tuple[int, dict[str, str], bytes]) -> Any:
        assert answer[0] in {202, 503}, answer
        return answer if answer[0] == 202 else None

    with (
        PgProxy(ledger_url, Fault(b"INSERT INTO jobs", AFTER)) as wire,
        listening(bench.settings, wire.url, bench.sender) as (_, port),
        ThreadPoolExecutor(20) as pool,
    ):
        asking = [pool.submit(insist, number) for number in range(40)]
        for _ in range(5):
            until(lambda: any(one.done() for one in asking), "some are accepted")
            wire.leave()
            wire.come_back()
        ids = {one.result() for one in asking}
    kept = {str(job_id) for (job_id,) in bench.rig.rows("SELECT id FROM jobs")}
    assert (len(ids), ids) == (40, kept), "none is lost, none is doubled"
