"""A faulty wire: an HTTP proxy between the product and an emulator, that loses, delays, refuses and alters on demand.

    with FaultProxy(emulator) as proxy:
        proxy.rules.append(Rule(on("SendMessageBatch"), drop_after_effect, times=1))
        run_product(world.environment(endpoint=proxy.url))
        assert [name for name, _ in proxy.requests].count("AmazonSQS.SendMessageBatch") == 2

The first rule that matches and is not used up decides over a request; without one, it passes unchanged. Headers pass as
they came, Host included, so that signatures stay valid and queue URLs in answers lead back through the proxy.
"""

import gzip
import http.client
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

_CLOSE_WITHIN_S = 10.0
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "expect", "content-length"}
_ABOUT_THE_BODY = {"content-encoding", "x-amz-crc32"}
_S3_SUBRESOURCES = ("uploads", "uploadId", "tagging", "delete", "list-type", "versioning", "versions", "location")
_BODILESS = {204, 304}


@dataclass(frozen=True)
class Request:
    """One request as the client sent it; a chunked body is joined."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def operation(self) -> str:
        """Name what is asked for.

        The `X-Amz-Target` as it is (`DynamoDB_20120810.Query`, `AmazonSQS.SendMessageBatch`); for S3 the method, what
        it is applied to, and the subresource (`PUT object`, `POST object?uploads`, `GET bucket?list-type`, `GET
        service`; a window's witness is no object, but a `witness`); for the emulators' own paths the method and the
        path (`POST /moto-api/reset`).
        """
        target: str | None = self.headers.get("X-Amz-Target")
        if target:
            return target
        address = urlsplit(self.path)
        if address.path.startswith(("/moto-api", "/_ministack")):
            return f"{self.method} {address.path}"
        bucket, _, key = address.path.lstrip("/").partition("/")
        thing = "witness" if "/_ledger/" in key else "object"
        noun = thing if key else "bucket" if bucket else "service"
        asked = {name for name, _ in parse_qsl(address.query, keep_blank_values=True)}
        subresource = next((f"?{name}" for name in _S3_SUBRESOURCES if name in asked), "")
        return f"{self.method} {noun}{subresource}"

    @property
    def service(self) -> str:
        """Name the service: `dynamodb`, `sqs` or `s3`."""
        if self.operation.startswith("DynamoDB"):
            return "dynamodb"
        return "sqs" if self.operation.startswith("AmazonSQS") else "s3"

    def json(self) -> Any:
        """Parse the body."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """One answer; `Content-Length` is added on the way out, except to a HEAD, which keeps what it says."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    reason: str = ""


Forward = Callable[[], Answer]
"""Sends the request on to the emulator and gives its answer."""

Closing = threading.Event
"""Set when the proxy closes; whatever waits, waits on it."""

Action = Callable[[Request, Forward, Closing], Answer | None]
"""Decides over one request; None closes the connection without an answer."""


@dataclass
class Rule:
    """Which requests meet which action.

    Args:
        match: tells whether a request is meant.
        action: what happens to it.
        times: how often, at most; None for always.
        skip: how many matching requests pass before the first one is meant.
    """

    match: Callable[[Request], bool]
    action: Action
    times: int | None = None
    skip: int = 0
    used: int = field(default=0, init=False)

    def takes(self, request: Request) -> bool:
        """Tell whether the rule decides over this request, and count it (under the proxy's lock)."""
        if self.times is not None and self.used >= self.times:
            return False
        if not self.match(request):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.used += 1
        return True


def on(*operations: str) -> Callable[[Request], bool]:
    """Match operations by their full name, or by the part after the dot (`Query`, `SendMessageBatch`)."""
    return lambda request: request.operation in operations or request.operation.rpartition(".")[2] in operations


def anything(request: Request) -> bool:
    """Match every request."""
    return True


# Actions


def forward(request: Request, forward: Forward, closing: Closing) -> Answer | None:
    """Let the request pass."""
    return forward()


def drop_after_effect(request: Request, forward: Forward, closing: Closing) -> Answer | None:
    """Let the request take effect, and lose the answer."""
    forward()
    return None


def drop_before(request: Request, forward: Forward, closing: Closing) -> Answer | None:
    """Lose the request before it takes effect."""
    return None


def hang(seconds: float) -> Action:
    """Let the request take effect, and keep the answer back until the time is over or the proxy closes."""

    def action(request: Request, forward: Forward, closing: Closing) -> Answer | None:
        answer = forward()
        closing.wait(seconds)
        return answer

    return action


def status(code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> Action:
    """Answer at once, without effect."""
    return lambda request, forward, closing: Answer(code, list((headers or {}).items()), body)


def rewrite(fn: Callable[[bytes], bytes]) -> Action:
    """Let the request take effect, and alter the body of the answer; checksums of the old body are taken away."""

    def action(request: Request, forward: Forward, closing: Closing) -> Answer | None:
        answer = forward()
        encoded = ("content-encoding", "gzip") in [(name.lower(), value) for name, value in answer.headers]
        body = fn(gzip.decompress(answer.body) if encoded else answer.body)
        return Answer(answer.status, _without_checksums(answer.headers), body, answer.reason)

    return action


def rewrite_json(fn: Callable[[Any], Any]) -> Action:
    """Do the same to a JSON answer: `fn` gets the parsed document and returns the one to send."""
    return rewrite(lambda body: json.dumps(fn(json.loads(body))).encode())


def callback(fn: Callable[[Request], Any], then: Action = forward) -> Action:
    """Call `fn` before the request goes on: change the world in between, pause or kill the product."""

    def action(request: Request, forward: Forward, closing: Closing) -> Answer | None:
        fn(request)
        return then(request, forward, closing)

    return action


def answer(fn: Callable[[Any], dict[str, Any] | bytes | None]) -> Action:
    """Answer a JSON request from `fn`, which gets the parsed request.

    It returns the document, or its bytes ready made; None lets the request pass to the emulator.
    """

    def action(request: Request, forward: Forward, closing: Closing) -> Answer | None:
        document = fn(request.json())
        if document is None:
            return forward()
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return Answer(200, [("Content-Type", "application/x-amz-json-1.0")], body)

    return action


def throttle(request: Request, forward: Forward, closing: Closing) -> Answer | None:
    """Refuse the request as the service does when it is asked too much; without effect."""
    if request.service == "s3":
        body = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
        return Answer(503, [("Content-Type", "application/xml")], body)
    headers = [("Content-Type", "application/x-amz-json-1.0")]
    code = "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"
    if request.service == "sqs":
        code = "com.amazonaws.sqs#RequestThrottled"
        headers.append(("x-amzn-query-error", "RequestThrottled;Sender"))
    return Answer(400, headers, json.dumps({"__type": code, "message": "Rate exceeded"}).encode())


def _without_checksums(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    def kept(name: str) -> bool:
        return name not in _ABOUT_THE_BODY and not name.startswith("x-amz-checksum-")

    return [(name, value) for name, value in headers if kept(name.lower())]


# The proxy


class FaultProxy:
    """The wire itself, as a context manager; it serves from entering to leaving the block.

    Whatever a rule's own function raises is kept, the connection is closed, and leaving the block raises it.

    Attributes:
        rules: in order of precedence; may be changed at any time.
        log: every request so far, in order of arrival.
    """

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self.upstream = (address.hostname or "", address.port or 80)
        self.rules: list[Rule] = []
        self.log: list[Request] = []
        self.errors: list[BaseException] = []
        self.closing = Closing()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="fault-proxy")

    @property
    def url(self) -> str:
        """Where the product is sent to."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[tuple[str, bytes]]:
        """Every request so far as (operation, body), in order of arrival."""
        return [(request.operation, request.body) for request in self.log]

    def count(self, operation: str) -> int:
        """Count the requests so far for an operation, named as in `on`."""
        return sum(map(on(operation), list(self.log)))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        with self._lock:
            for open_socket in self._sockets:
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # waits for the handlers, which the closed sockets have woken
        self._thread.join(_CLOSE_WITHIN_S)
        if self.errors and error is None:
            raise self.errors[0]

    def decide(self, request: Request) -> Action:
        """Log the request and find the action for it."""
        with self._lock:
            self.log.append(request)
            return next((rule.action for rule in self.rules if rule.takes(request)), forward)

    @contextmanager
    def watching(self, watched: socket.socket) -> Iterator[None]:
        """Wake up whoever waits on this socket when the proxy closes."""
        with self._lock:
            self._sockets.add(watched)
        if self.closing.is_set():
            with suppress(OSError):
                watched.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(watched)


class _UpstreamGoneError(Exception):
    """The emulator did not answer."""


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # joined on closing
    request_queue_size = 256

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        assert error is not None, "called while an exception is handled"
        self.proxy.errors.append(error)


class _Handler(BaseHTTPRequestHandler):
    """One connection from a client, with one of its own to the emulator."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    rbufsize = 1 << 16
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPConnection(*self.server.proxy.upstream)

    def handle(self) -> None:
        with self.server.proxy.watching(self.connection), suppress(ConnectionError):
            super().handle()

    def finish(self) -> None:
        self.upstream.close()
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing on stderr."""

    def exchange(self) -> None:
        request = Request(self.command, self.path, self.headers, self.read_body())
        proxy = self.server.proxy
        action = proxy.decide(request)
        reply: Answer | None = None
        try:
            reply = action(request, lambda: self.forward(request), proxy.closing)
        except _UpstreamGoneError:
            pass  # so is the connection, as it would be without a proxy
        except BaseException as error:  # noqa: BLE001 - belongs to the test, which gets it on leaving the block
            proxy.errors.append(error)
        if reply is None:
            self.close_connection = True
        else:
            self.reply(reply)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = do_PATCH = exchange  # noqa: N815 - the base class's names

    def read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.read_exactly(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.read_line().split(b";")[0], 16):
            chunks.append(self.read_exactly(size))
            self.read_line()
        while self.read_line().strip():
            pass  # trailers
        return b"".join(chunks)

    def read_line(self) -> bytes:
        line = self.rfile.readline()
        if not line:
            raise ConnectionAbortedError("the client went away in the middle of a request")
        return line

    def read_exactly(self, size: int) -> bytes:
        body = self.rfile.read(size)
        if len(body) < size:
            raise ConnectionAbortedError("the client went away in the middle of a request")
        return body

    def forward(self, request: Request) -> Answer:
        try:
            return self.ask_upstream(request)
        except (OSError, http.client.HTTPException) as error:
            raise _UpstreamGoneError from error

    def ask_upstream(self, request: Request) -> Answer:
        if self.upstream.sock is None:
            self.upstream.connect()
        with self.server.proxy.watching(self.upstream.sock):
            self.upstream.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    self.upstream.putheader(name, value)
            if request.body or request.method in {"PUT", "POST", "PATCH"}:
                self.upstream.putheader("Content-Length", str(len(request.body)))
            self.upstream.endheaders(request.body or None)
            answer = self.upstream.getresponse()
            body = answer.read()
        return Answer(answer.status, answer.getheaders(), body, answer.reason)

    def reply(self, answer: Answer) -> None:
        dropped = _HOP_BY_HOP - {"content-length"} if self.command == "HEAD" else _HOP_BY_HOP
        headers = [(name, value) for name, value in answer.headers if name.lower() not in dropped]
        if self.command != "HEAD" and answer.status not in _BODILESS:
            headers.append(("Content-Length", str(len(answer.body))))
        lines = [f"HTTP/1.1 {answer.status} {answer.reason}", *(f"{name}: {value}" for name, value in headers)]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        self.wfile.write(head if self.command == "HEAD" else head + answer.body)


# A source of any shape and size


def query_server(
    upstream: str,
    query: Callable[[Any], dict[str, Any] | bytes | None],
    *,
    describe_table: Callable[[Any], dict[str, Any] | bytes | None] | None = None,
    batch_get_item: Callable[[Any], dict[str, Any] | bytes | None] | None = None,
) -> FaultProxy:
    """Make a wire on which Query is answered by a function, and everything else by the emulator.

    For what no emulator shows: empty pages with a key, keys that repeat, an empty `LastEvaluatedKey`, windows of a
    million records (return ready-made bytes there). Each function gets the parsed request; None passes it on.
    """
    proxy = FaultProxy(upstream)
    answers = {"Query": query, "DescribeTable": describe_table, "BatchGetItem": batch_get_item}
    proxy.rules += [Rule(on(name), answer(fn)) for name, fn in answers.items() if fn is not None]
    return proxy
