"""A small AWS world to try the product in: table, index, bucket, queues, and a look at what arrived."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from botocore.exceptions import ClientError

from dispatch.aws.errors import code_of, translated
from dispatch.aws.session import Session
from dispatch.items import Item, with_bytes
from ledger import clock
from ledger.errors import UnavailableError
from ledger.ids import jitter
from ledger.settings import Settings

_WRITE_MAX = 25
_ROUNDS_MAX = 8
_RECEIVES_MAX = 200
_EXISTS = {"ResourceInUseException", "BucketAlreadyOwnedByYou", "QueueAlreadyExists", "QueueNameExists"}


class Sandbox:
    """Creates what a configuration names, in the emulator; all of it may be there already.

    Args:
        key_name: the table's hash key, a string attribute.
    """

    def __init__(self, session: Session, settings: Settings, bucket: str, key_name: str) -> None:
        self._settings = settings
        self._bucket = bucket
        self._key_name = key_name
        self._dynamodb = session.client("dynamodb", tries=4)
        self._s3 = session.client("s3", tries=4)
        self._sqs = session.client("sqs", tries=4)

    def create(self) -> None:
        """Create table, index, bucket and queues, those of the long-running jobs too."""
        source = self._settings.source
        with translated("the sandbox"):
            names = (self._key_name, source.date_attribute, source.time_attribute)
            self._unless_there(
                self._dynamodb.create_table,
                TableName=source.table,
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in dict.fromkeys(names)],
                KeySchema=[{"AttributeName": self._key_name, "KeyType": "HASH"}],
                GlobalSecondaryIndexes=[
                    {
                        "IndexName": source.index,
                        "KeySchema": [
                            {"AttributeName": source.date_attribute, "KeyType": "HASH"},
                            {"AttributeName": source.time_attribute, "KeyType": "RANGE"},
                        ],
                        "Projection": {"ProjectionType": "ALL"},
                    },
                ],
                BillingMode="PAY_PER_REQUEST",
            )
            self._unless_there(self._s3.create_bucket, Bucket=self._bucket)
            jobs = self._settings.jobs
            for name in [*self.queue_names(), *_last_parts([jobs.queue, jobs.slow_queue])]:
                fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
                self._unless_there(self._sqs.create_queue, QueueName=name, Attributes=fifo)

    def queue_names(self) -> list[str]:
        """Return the names of the routes' queues, each once, in the order of the routes."""
        return _last_parts(route.queue for route in self._settings.routes.values())

    @staticmethod
    def _unless_there(create: Callable[..., Any], **arguments: Any) -> None:
        try:
            create(**arguments)
        except ClientError as error:
            if code_of(error) not in _EXISTS:
                raise

    def is_empty(self) -> bool:
        """Say whether the table has no item."""
        with translated("the sandbox"):
            answer = self._dynamodb.scan(TableName=self._settings.source.table, Limit=1)
        return not answer.get("Items")

    def load(self, items: Iterable[Item]) -> None:
        """Put items into the table, 25 a call; items with the same key must not share a call."""
        batch: list[Item] = []
        for item in items:
            batch.append(item)
            if len(batch) == _WRITE_MAX:
                self._write(batch)
                batch = []
        if batch:
            self._write(batch)

    def _write(self, items: list[Item]) -> None:
        table = self._settings.source.table
        requests: list[Any] = [
            {"PutRequest": {"Item": {name: with_bytes(value) for name, value in item.items()}}} for item in items
        ]
        for _ in range(_ROUNDS_MAX):
            with translated(f"loading {table}"):
                answer = self._dynamodb.batch_write_item(RequestItems={table: requests})
            requests = answer.get("UnprocessedItems", {}).get(table, [])
            if not requests:
                return
            clock.wait_s(jitter(0.1))
        raise UnavailableError(f"loading {table}: the emulator left items unwritten {_ROUNDS_MAX} times")

    def receive(self, queue: str, limit: int) -> list[dict[str, Any]]:
        """Take up to `limit` messages from a queue; returns their bodies."""
        bodies: list[dict[str, Any]] = []
        with translated(f"SQS queue {queue}"):
            url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
            for _ in range(_RECEIVES_MAX):
                answer = self._sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0)
                messages = answer.get("Messages", [])
                for message in messages:
                    bodies.append(json.loads(message["Body"]))
                    self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                if not messages or len(bodies) >= limit:
                    break
        return bodies

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys of up to a thousand objects."""
        with translated(f"S3 bucket {self._bucket}"):
            answer = self._s3.list_objects_v2(Bucket=self._bucket, Prefix=prefix)
        return [one["Key"] for one in answer.get("Contents", [])]

    def put_object(self, key: str, body: bytes) -> None:
        """Store an object behind the product's back."""
        with translated(f"S3 bucket {self._bucket}"):
            self._s3.put_object(Bucket=self._bucket, Key=key, Body=body)

    def remove_object(self, key: str) -> None:
        """Remove an object behind the product's back."""
        with translated(f"S3 bucket {self._bucket}"):
            self._s3.delete_object(Bucket=self._bucket, Key=key)

    def read_object(self, bucket: str, key: str) -> dict[str, msgspec.Raw]:
        """Read one object's document."""
        with translated(f"S3 bucket {bucket}"):
            body = self._s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def _last_parts(queues: Iterable[str]) -> list[str]:
    """Return the names of queues that may be given as URLs, each once."""
    return list(dict.fromkeys(one.rstrip("/").rsplit("/", 1)[-1] for one in queues))
