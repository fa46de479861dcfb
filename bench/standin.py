"""A stand-in for DynamoDB, S3 and SQS on the wire: one process, one hand-written HTTP/1.1 parser, keep-alive.

`python -m bench.standin [--latency-ms 20]` prints its URL and serves until it is ended. It answers what the benchmark
asks for and keeps nothing but counters; signatures are read over. It must not be what is measured: pages are kept as
bytes, and `GET /_bench/stats` tells how much processor time it has used itself.
"""

import argparse
import asyncio
import hashlib
import resource
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import msgspec

from bench.records import Shape, index_of, item_json, page_json, shape_of, table_json

PAGES_KEPT = 256  # about 200 MB with pages of 1,000 records
_PAGE_RECORDS = 1000
_HEAD_END = b"\r\n\r\n"
_TOO_LARGE = 256 * 1024 * 1024
_NAMES = count(1)
COUNTS: Counter[str] = Counter()

Answer = tuple[bytes, bytes, bytes]
"""Status line without the version, further header lines, body."""


class _SendEntry(msgspec.Struct):
    Id: str
    MessageBody: str


class _SendBatch(msgspec.Struct):
    QueueUrl: str
    Entries: list[_SendEntry]


class _Send(msgspec.Struct):
    QueueUrl: str
    MessageBody: str


_BATCH = msgspec.json.Decoder(_SendBatch)
_SINGLE = msgspec.json.Decoder(_Send)


@lru_cache(maxsize=PAGES_KEPT)
def _page(shape: Shape, first: int, limit: int) -> Answer:
    return _dynamo(page_json(shape, first, limit))


def _dynamo(body: bytes) -> Answer:
    return b"200 OK", b"Content-Type: application/x-amz-json-1.0\r\nx-amz-crc32: %d\r\n" % zlib.crc32(body), body


def _query(raw: bytes) -> Answer:
    asked = msgspec.json.decode(raw)
    start = asked.get("ExclusiveStartKey")
    first = 0 if start is None else index_of(start["Id"]["S"]) + 1
    COUNTS["pages"] += 1
    return _page(shape_of(asked["TableName"]), first, asked.get("Limit", 1000))


def _batch_get(raw: bytes) -> Answer:
    ((table, wanted),) = msgspec.json.decode(raw)["RequestItems"].items()
    shape = shape_of(table)
    items = ",".join([item_json(index_of(key["Id"]["S"]), shape) for key in wanted["Keys"]])
    COUNTS["read_again"] += len(wanted["Keys"])
    return _dynamo(f'{{"Responses":{{"{table}":[{items}]}},"UnprocessedKeys":{{}}}}'.encode())


def _describe(raw: bytes) -> Answer:
    return _dynamo(table_json(shape_of(msgspec.json.decode(raw)["TableName"])).encode())


def _sqs(body: str) -> Answer:
    return b"200 OK", b"Content-Type: application/x-amz-json-1.0\r\n", body.encode()


def _sent(text: str) -> str:
    """Count a message and answer for it: its identity and the MD5 of its body, as the SDK checks it."""
    COUNTS["messages"] += 1
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    number = next(_NAMES)
    return f'"MD5OfMessageBody":"{digest}","MessageId":"{number:08x}-0000-4000-8000-{number:012x}"'


def _send_batch(raw: bytes) -> Answer:
    taken = ",".join([f'{{"Id":"{one.Id}",{_sent(one.MessageBody)}}}' for one in _BATCH.decode(raw).Entries])
    return _sqs(f'{{"Successful":[{taken}]}}')


def _send(raw: bytes) -> Answer:
    return _sqs(f"{{{_sent(_SINGLE.decode(raw).MessageBody)}}}")


def _queue_url(raw: bytes) -> Answer:
    return _sqs(f'{{"QueueUrl":"{URL[0]}/000000000000/{msgspec.json.decode(raw)["QueueName"]}"}}')


def _queue_attributes(_: bytes) -> Answer:
    return _sqs('{"Attributes":{"MaximumMessageSize":"1048576"}}')


class _Objects:
    """What was stored: keys with entity tag and size, listed in order, a page at a time."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[str, int]] = {}
        self._order: list[str] = []

    def put(self, path: bytes, etag: bytes, size: int) -> None:
        key = unquote(path.decode()).split("/", 2)[-1]
        if key not in self._stored:
            self._order = []
        self._stored[key] = (etag.decode(), size)

    def listed(self, asked: dict[str, str]) -> str:
        if not self._order:
            self._order = sorted(self._stored)
        prefix, most = asked.get("prefix", ""), min(1000, int(asked.get("max-keys", "1000")))
        after = asked.get("continuation-token", "")
        first = bisect_right(self._order, after) if after else bisect_left(self._order, prefix)
        keys = [key for key in self._order[first : first + most] if key.startswith(prefix)]
        more = len(keys) == most and self._order[first + most : first + most + 1] != []
        token = f"<NextContinuationToken>{keys[-1]}</NextContinuationToken>" if more else ""
        contents = "".join(map(self._content, keys))
        return (
            f"<ListBucketResult><Name>bench</Name><Prefix>{prefix}</Prefix><KeyCount>{len(keys)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}</ListBucketResult>"
        )

    def _content(self, key: str) -> str:
        etag, size = self._stored[key]
        return (
            f"<Contents><Key>{key}</Key><LastModified>2026-09-17T16:00:00.000Z</LastModified>"
            f'<ETag>"{etag}"</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>'
        )

    def clear(self) -> None:
        self._stored.clear()
        self._order = []


OBJECTS = _Objects()
WITNESSES: dict[bytes, bytes] = {}
URL: list[str] = []
_TARGETS: dict[bytes, Callable[[bytes], Answer]] = {
    b"DynamoDB_20120810.Query": _query,
    b"DynamoDB_20120810.BatchGetItem": _batch_get,
    b"DynamoDB_20120810.DescribeTable": _describe,
    b"AmazonSQS.SendMessageBatch": _send_batch,
    b"AmazonSQS.SendMessage": _send,
    b"AmazonSQS.GetQueueUrl": _queue_url,
    b"AmazonSQS.GetQueueAttributes": _queue_attributes,
}


def _xml(body: bytes, headers: bytes = b"") -> Answer:
    return b"200 OK", b"Content-Type: application/xml\r\n" + headers, body


def _s3(method: bytes, path: bytes, body: bytes) -> Answer:
    key, _, query = path.partition(b"?")
    if b"/_ledger/" in key:
        return _witness(method, key, body)
    if method == b"PUT":
        part = query.startswith(b"partNumber") or b"&partNumber" in query
        COUNTS["parts" if part else "puts"] += 1
        COUNTS["put_bytes"] += len(body)
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest().encode()
        if not part:
            OBJECTS.put(key, etag, len(body))
        return b"200 OK", b'ETag: "' + etag + b'"\r\n', b""
    if method == b"HEAD":
        return b"200 OK", b"x-amz-bucket-region: us-east-1\r\n", b""
    if method == b"POST" and query.startswith(b"uploads"):
        return _xml(b"<InitiateMultipartUploadResult><UploadId>upload-1</UploadId></InitiateMultipartUploadResult>")
    if method == b"POST":
        COUNTS["puts"] += 1
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest().encode() + b"-1"
        OBJECTS.put(key, etag, 0)
        head = b"<CompleteMultipartUploadResult><Location>here</Location><Bucket>bench</Bucket><Key>"
        return _xml(
            head + key.split(b"/", 2)[-1] + b'</Key><ETag>"' + etag + b'"</ETag></CompleteMultipartUploadResult>'
        )
    return _xml(OBJECTS.listed(dict(parse_qsl(query.decode()))).encode())


def _witness(method: bytes, key: bytes, body: bytes) -> Answer:
    """Keep a window's witness, which is no object of a job."""
    if method == b"PUT":
        COUNTS["witnesses"] += 1
        WITNESSES[key] = body
        return b"200 OK", b'ETag: "%d"\r\n' % COUNTS["witnesses"], b""
    if key not in WITNESSES:
        content = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
        return b"404 Not Found", b"Content-Type: application/xml\r\n", content
    return b"200 OK", b'ETag: "%d"\r\n' % COUNTS["witnesses"], WITNESSES[key]


def _stats(method: bytes) -> Answer:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    body = msgspec.json.encode({**COUNTS, "cpu_s": usage.ru_utime + usage.ru_stime})
    if method == b"DELETE":
        COUNTS.clear()
        OBJECTS.clear()
        WITNESSES.clear()
    return b"200 OK", b"Content-Type: application/json\r\n", body


def _warm(table: str) -> Answer:
    """Make the pages of a table before they are asked for, if all of them can be kept: no run pays for the first."""
    shape = shape_of(table)
    if shape.records < PAGES_KEPT * _PAGE_RECORDS:
        for first in range(0, shape.records + 1, _PAGE_RECORDS):
            _page(shape, first, _PAGE_RECORDS)
    return _sqs("{}")


def _header(head: bytes, lowered: bytes, name: bytes) -> bytes | None:
    at = lowered.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


def _dechunk(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """Join a chunked body; returns it and where it ends, or None when more is to come."""
    parts: list[bytes] = []
    while True:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(buffer[at:line_end].split(b";")[0], 16)
        at = line_end + 2
        if len(buffer) < at + size + 2:
            return None
        parts.append(bytes(buffer[at : at + size]))
        at += size + 2
        if size == 0:
            return b"".join(parts), at


class _Connection(asyncio.Protocol):
    """One keep-alive connection; the clients here do not pipeline."""

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._buffer = bytearray()
        self._continued = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer and self._take():
            pass

    def _take(self) -> bool:
        """Answer one request, when it is there as a whole."""
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            return False
        head = bytes(self._buffer[:end])
        lowered = head.lower()
        taken = self._body(lowered, end + 4)
        if taken is None:
            self._continue(lowered)
            return False
        body, at = taken
        del self._buffer[:at]
        self._continued = False
        self._answer(head, lowered, body)
        return True

    def _body(self, lowered: bytes, at: int) -> tuple[bytes, int] | None:
        length = _header(lowered, lowered, b"content-length")
        if length is None:
            chunked = _header(lowered, lowered, b"transfer-encoding") == b"chunked"
            return _dechunk(self._buffer, at) if chunked else (b"", at)
        size = int(length)
        assert size < _TOO_LARGE, "no client here sends such a body"
        return (bytes(self._buffer[at : at + size]), at + size) if len(self._buffer) >= at + size else None

    def _continue(self, lowered: bytes) -> None:
        if not self._continued and _header(lowered, lowered, b"expect") is not None:
            self._continued = True
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _answer(self, head: bytes, lowered: bytes, body: bytes) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].split(b" ", 2)
        status, headers, content = self._route(method, path, _header(head, lowered, b"x-amz-target"), body)
        length = b"" if method == b"HEAD" else b"Content-Length: %d\r\n" % len(content)
        whole = b"HTTP/1.1 " + status + b"\r\nx-amz-request-id: BENCH\r\n" + headers + length + b"\r\n" + content
        if self._latency_s and not path.startswith(b"/_bench"):
            asyncio.get_running_loop().call_later(self._latency_s, self._transport.write, whole)
        else:
            self._transport.write(whole)

    @staticmethod
    def _route(method: bytes, path: bytes, target: bytes | None, body: bytes) -> Answer:
        if path.startswith(b"/_bench/warm/"):
            return _warm(path.rsplit(b"/", 1)[1].decode())
        if path.startswith(b"/_bench/stats"):
            return _stats(method)
        if target is not None:
            return _TARGETS[target](body)
        return _s3(method, path, body)


async def serve(latency_s: float) -> None:
    """Listen on a free port of loopback, say where, and serve until ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(latency_s), "127.0.0.1", 0)
    URL.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    print(URL[0], flush=True)
    async with server:
        await server.serve_forever()


def _run(main: Any) -> None:
    try:
        import uvloop  # noqa: PLC0415 - it is not there on every platform
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    _run(serve(parser.parse_args().latency_ms / 1000))
