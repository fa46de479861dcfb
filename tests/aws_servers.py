"""Emulators of AWS as separate processes, and a small world of a table, a bucket and queues inside one of them.

Which emulator shows what truthfully: moto stands in for most of AWS up to some 10,000 items and 300 waiting messages;
ministack is the one to ask about FIFO queues, deduplication, partial failures, sizes and checksums. Neither lags,
throttles or loses an answer: for that, put `tests.wire.FaultProxy` in between.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient

REGION = "us-east-1"
ACCESS_KEY_ID = "testing"
SECRET_ACCESS_KEY = "testing-secret"
INDEX = "BookingDateUTC-BookingTimeUTC-index"

_READY_WITHIN_S = 30.0
_STOP_WITHIN_S = 5.0
_START_ATTEMPTS = 3
_WITNESSES = "/_ledger/"
_MESSAGES_MAX = 20_000

Item = dict[str, dict[str, Any]]
CommandFor = Callable[[int], list[str]]


@contextmanager
def moto_server() -> Iterator[str]:
    """Run moto in a process of its own, on a free port; yields its URL."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]

    with _server(command, "/moto-api/") as url:
        yield url


@contextmanager
def ministack_server() -> Iterator[str]:
    """Run ministack in a process of its own, on a free port, keeping nothing; yields its URL."""

    def command(port: int) -> list[str]:
        options = ["--workers", "0", "--bind", f"127.0.0.1:{port}", "--keep-alive", "75", "--log-level", "WARNING"]
        return [sys.executable, "-m", "hypercorn", *options, "ministack.app:app"]

    with _server(command, "/_ministack/health") as url:
        yield url


def reset(endpoint: str) -> None:
    """Empty the emulator, whichever of the two it is."""
    for path in ("/_ministack/reset", "/moto-api/reset"):
        if _ask(endpoint, "POST", path) == 200:
            return
    message = f"{endpoint} is neither ministack nor moto"
    raise AssertionError(message)


@contextmanager
def _server(command: CommandFor, health_path: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="aws-server-") as folder:
        home = Path(folder)
        process, url = _start(command, health_path, home)
        try:
            yield url
        finally:
            _end(process)


def _start(command: CommandFor, health_path: str, home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start on a free port; on another one when somebody else was quicker to take it."""
    log = home / "log"
    for _ in range(_START_ATTEMPTS):
        port = _free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command(port), stdout=output, stderr=subprocess.STDOUT, env=_environment(home), start_new_session=True
            )
        url = f"http://127.0.0.1:{port}"
        try:
            if _becomes_ready(process, url, health_path):
                return process, url
        except BaseException:
            _end(process)
            raise
        _end(process)
    message = f"{command(0)} did not start: {log.read_text(errors='replace')[-2000:]}"
    raise AssertionError(message)


def _environment(home: Path) -> dict[str, str]:
    """Give ministack's switches (moto knows none of them) on top of what the tests have."""
    return {
        **os.environ,
        "SERVICES": "dynamodb,s3,sqs",
        "PERSIST_STATE": "0",
        "S3_PERSIST": "0",
        "TMPDIR": str(home),
        "LOG_LEVEL": "WARNING",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "DOCKER_HOST": f"unix://{home}/no-docker.sock",
    }


def _becomes_ready(process: subprocess.Popen[bytes], url: str, health_path: str) -> bool:
    deadline = time.monotonic() + _READY_WITHIN_S
    pause = threading.Event()
    while process.poll() is None and time.monotonic() < deadline:
        if _ask(url, "GET", health_path) == 200:
            return process.poll() is None
        pause.wait(0.02)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_WITHIN_S)


def _ask(endpoint: str, method: str, path: str) -> int:
    """Return the status of one request; 0 when nobody answers."""
    address = urlsplit(endpoint)
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=5)) as connection:
        with suppress(OSError, http.client.HTTPException):
            connection.request(method, path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@cache
def client(service: str, endpoint: str) -> Any:
    """Make a boto3 client of the tests' own (thread-safe, shared, with boto3's default retries)."""
    return boto3.session.Session().client(  # type: ignore[call-overload]
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY_ID,
        aws_secret_access_key=SECRET_ACCESS_KEY,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=50),
    )


def booking(
    id: str,  # noqa: A002 - reads as the attribute it becomes
    time: str,
    *,
    status: str = "WaitToReward",
    shop: int | str = 1001,
    member: int | str = 2001,
    promotion: int | str = 3001,
    type: str = "Point",  # noqa: A002 - the same
    order: str = "2026-09-17T10:00:00Z",
    **extra: Any,
) -> Item:
    """Make one booking as DynamoDB JSON.

    Args:
        time: the booking time as stored; its first ten characters become `BookingDateUTC`.
        extra: further attributes, or replacements by attribute name: a dict is taken as DynamoDB JSON, None leaves the
            attribute out, int and str become N and S.
    """
    item = {
        "Id": id,
        "BookingDateUTC": time[:10],
        "BookingTimeUTC": time,
        "RewardStatus": status,
        "ShopId": shop,
        "MemberId": member,
        "PromotionEngineId": promotion,
        "RewardType": type,
        "OrderTime": order,
        **extra,
    }
    return {name: _attribute(value) for name, value in item.items() if value is not None}


def _attribute(value: Any) -> dict[str, Any]:
    match value:
        case dict():
            return value
        case bool():
            return {"BOOL": value}
        case int():
            return {"N": str(value)}
        case _:
            return {"S": value}


class World:
    """A booking table with its index, a bucket and two queues in an emulator, named apart from every other world.

    Args:
        endpoint: where the emulator is.
        suffix: ends every name; None makes a unique one, "" gives the product's default names.
        projection: of the index: `ALL`, `KEYS_ONLY`, or the names of the attributes to include.
        fifo: whether the queues are FIFO queues (their names then end in `.fifo`).
    """

    def __init__(
        self,
        endpoint: str,
        suffix: str | None = None,
        *,
        projection: str | Sequence[str] = "ALL",
        fifo: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.suffix = uuid.uuid4().hex[:8] if suffix is None else suffix
        self.table = self._named("PromotionRewardBooking")
        self.bucket = self._named("bookings")
        self.fifo = fifo
        self.queues = {name: self._named(name) + ".fifo" * fifo for name in ("reward-point", "reward-ecoupon")}
        self.dynamodb: DynamoDBClient = client("dynamodb", endpoint)
        self.s3: S3Client = client("s3", endpoint)
        self.sqs: SQSClient = client("sqs", endpoint)
        self._create_table(projection)
        self.s3.create_bucket(Bucket=self.bucket)
        self._queue_urls = {name: self._create_queue(queue) for name, queue in self.queues.items()}

    def _named(self, name: str) -> str:
        return f"{name}-{self.suffix}" if self.suffix else name

    def _create_table(self, projection: str | Sequence[str]) -> None:
        projected: Any = (
            {"ProjectionType": projection}
            if isinstance(projection, str)
            else {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(projection)}
        )
        keys = ("Id", "BookingDateUTC", "BookingTimeUTC")
        self.dynamodb.create_table(
            TableName=self.table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in keys],
            KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
            GlobalSecondaryIndexes=[
                {
                    "IndexName": INDEX,
                    "KeySchema": [
                        {"AttributeName": "BookingDateUTC", "KeyType": "HASH"},
                        {"AttributeName": "BookingTimeUTC", "KeyType": "RANGE"},
                    ],
                    "Projection": projected,
                }
            ],
        )

    def _create_queue(self, queue: str) -> str:
        attributes = {"FifoQueue": "true"} if self.fifo else {}
        return self.sqs.create_queue(QueueName=queue, Attributes=attributes)["QueueUrl"]  # type: ignore[arg-type]

    # The source

    def put(self, item: Item) -> None:
        """Store one item of DynamoDB JSON."""
        self.dynamodb.put_item(TableName=self.table, Item=item)

    def put_many(self, items: Iterable[Item]) -> None:
        """Store items of DynamoDB JSON, 25 a call; their ids must differ."""
        rest = list(items)
        while rest:
            batch: Any = [{"PutRequest": {"Item": item}} for item in rest[:25]]
            left = self.dynamodb.batch_write_item(RequestItems={self.table: batch})["UnprocessedItems"]
            assert not left, "the emulators process every item"
            rest = rest[25:]

    def update(self, id: str, **attrs: Any) -> None:  # noqa: A002 - reads as the attribute
        """Set attributes of one item: values as in `booking`; None removes the attribute.

        A new `BookingTimeUTC` brings its `BookingDateUTC` along, unless that is given too.
        """
        if isinstance(attrs.get("BookingTimeUTC"), str):
            attrs.setdefault("BookingDateUTC", attrs["BookingTimeUTC"][:10])
        updates: Any = {
            name: {"Action": "DELETE"} if value is None else {"Action": "PUT", "Value": _attribute(value)}
            for name, value in attrs.items()
        }
        self.dynamodb.update_item(TableName=self.table, Key={"Id": {"S": id}}, AttributeUpdates=updates)

    def delete(self, id: str) -> None:  # noqa: A002 - reads as the attribute
        """Remove one item; a missing one is no error."""
        self.dynamodb.delete_item(TableName=self.table, Key={"Id": {"S": id}})

    def item(self, id: str) -> Item | None:  # noqa: A002 - reads as the attribute
        """Read one item consistently."""
        answer = self.dynamodb.get_item(TableName=self.table, Key={"Id": {"S": id}}, ConsistentRead=True)
        found: Any = answer.get("Item")
        return found  # type: ignore[no-any-return]

    # The objects

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Read every object of the bucket whose key begins with `prefix`, without the windows' witnesses."""
        return {key: body for key, body in self._objects(prefix).items() if _WITNESSES not in key}

    def witnesses(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Read what lies beside the objects of how far each window has come, by key."""
        return {key: json.loads(body) for key, body in self._objects(prefix).items() if _WITNESSES in key}

    def forget_witnesses(self) -> None:
        """Remove what lies beside the objects of how far each window has come."""
        for key in self.witnesses():
            self.s3.delete_object(Bucket=self.bucket, Key=key)

    def _objects(self, prefix: str) -> dict[str, bytes]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        return {key: self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}

    def object_metadata(self, key: str) -> dict[str, str]:
        """Read the user metadata of one object (names in lower case)."""
        return self.s3.head_object(Bucket=self.bucket, Key=key)["Metadata"]

    # The queues

    def queue_url(self, queue: str) -> str:
        """Give the URL of `reward-point`, `reward-ecoupon`, or any other queue by its real name."""
        return self._queue_urls.get(queue) or self.sqs.get_queue_url(QueueName=queue)["QueueUrl"]

    def messages(self, queue: str) -> list[Any]:
        """Drain a queue: receive and delete every visible message; their parsed JSON bodies, in order of receipt."""
        return [json.loads(message["Body"]) for message in self.receive_all(queue)]

    def receive_all(self, queue: str) -> list[Mapping[str, Any]]:
        """Drain a queue: the same as whole messages, with their system attributes (group and deduplication ids)."""
        url = self.queue_url(queue)
        received: list[Mapping[str, Any]] = []
        while len(received) < _MESSAGES_MAX:
            answer = self.sqs.receive_message(
                QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0, MessageSystemAttributeNames=["All"]
            )
            batch = answer.get("Messages", [])
            if not batch:
                return received
            received += batch
            entries: Any = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(batch)]
            assert not self.sqs.delete_message_batch(QueueUrl=url, Entries=entries).get("Failed")
        message = f"{queue} holds more than {_MESSAGES_MAX} messages"
        raise AssertionError(message)

    def message_count(self, queue: str) -> int:
        """Count what the queue holds: visible, in flight and delayed."""
        answer = self.sqs.get_queue_attributes(QueueUrl=self.queue_url(queue), AttributeNames=["All"])
        attributes: Mapping[Any, str] = answer["Attributes"]
        return sum(int(attributes[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed"))

    # The product

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """Give the environment that points the product at this world, or at a proxy standing before it."""
        routes = {
            "Point": {"job": "RewardPoint", "queue": self.queues["reward-point"]},
            "ECoupon": {"job": "RewardECoupon", "queue": self.queues["reward-ecoupon"]},
        }
        return {
            "DISPATCH_LEDGER_AWS__ENDPOINT_URL": endpoint or self.endpoint,
            "DISPATCH_LEDGER_AWS__REGION": REGION,
            "DISPATCH_LEDGER_SOURCE__TABLE": self.table,
            "DISPATCH_LEDGER_OBJECTS__BUCKET": self.bucket,
            "DISPATCH_LEDGER_ROUTES": json.dumps(routes),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        }
