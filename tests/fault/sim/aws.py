"""The made-up world behind what the product's AWS classes are built on: botocore clients, and uploads."""

import io
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError

from dispatch.aws.objects import S3Objects, Upload
from dispatch.aws.queues import SqsQueues
from ledger.facts import StoredObject
from tests.fault.sim.boundaries import Boundaries
from tests.fault.sim.world import Item, Stored, World

_URL = "http://aws.invalid"
_ACCOUNT = "000000000000"
_INDEX_KEYS = ("Id", "BookingDateUTC", "BookingTimeUTC")


def answered(code: str, operation: str, status: int = 400) -> ClientError:
    """Make the error that botocore raises for a service's own error answer."""
    answer: Any = {"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


def refused(number: int) -> Exception:
    """Make the error of a call that did nothing; which one depends on the boundary's number alone."""
    if number % 2:
        return EndpointConnectionError(endpoint_url=_URL)
    return answered("ThrottlingException", "call")


def lost() -> Exception:
    """Make the error of a call whose answer never came."""
    return ReadTimeoutError(endpoint_url=_URL)


class SimSession:
    """Stands in for `dispatch.aws.session.Session`.

    Attributes:
        odd: whether pages come short or empty, keys stay unread, and answers leave messages out.
    """

    endpoint_url: str | None = None
    region = "eu-west-1"

    def __init__(self, world: World, boundaries: Boundaries, *, odd: bool = False) -> None:
        self.world, self.boundaries, self.odd = world, boundaries, odd

    def client(self, service: str, *, tries: int, read: timedelta = timedelta(seconds=20)) -> Any:
        """Make a client."""
        del tries, read
        return {"dynamodb": DynamoClient, "s3": S3Client, "sqs": SqsClient}[service](self)


class Client:
    """What the clients have in common."""

    def __init__(self, session: SimSession) -> None:
        self._session, self.world, self._boundaries = session, session.world, session.boundaries
        self.meta = SimpleNamespace(region_name=session.region, endpoint_url=_URL)
        self._endpoint = SimpleNamespace(http_session=None)
        self._request_signer = None

    def _odd(self, chance: float) -> bool:
        return self._session.odd and self.world.random.random() < chance

    def _call(self, name: str, effect: Callable[[], Any], *, may_be_late: bool = False) -> Any:
        return self._boundaries.call(name, effect, refused=refused, lost=lost, may_be_late=may_be_late)


class DynamoClient(Client):
    """DynamoDB: one table, one index."""

    def describe_table(self, TableName: str) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Describe the table; asked once a process, so nothing goes wrong here."""
        assert TableName == self.world.table.name
        texts = [{"AttributeName": name, "AttributeType": "S"} for name in _INDEX_KEYS]
        keyed = [("BookingDateUTC", "HASH"), ("BookingTimeUTC", "RANGE")]
        index = {
            "IndexName": self.world.table.index,
            "IndexStatus": "ACTIVE",
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keyed],
            "Projection": {"ProjectionType": "ALL"},
        }
        return {
            "Table": {
                "TableStatus": "ACTIVE",
                "KeySchema": [{"AttributeName": "Id", "KeyType": "HASH"}],
                "AttributeDefinitions": texts,
                "GlobalSecondaryIndexes": [index],
            }
        }

    def query(self, **request: Any) -> dict[str, Any]:
        """Read one page of the index as it is shown now; it may come short, or empty with a key."""
        values = request["ExpressionAttributeValues"]
        date, first, last = (values[name]["S"] for name in (":date", ":first", ":last"))
        start = request.get("ExclusiveStartKey")
        after = None if start is None else (start["BookingTimeUTC"]["S"], start["Id"]["S"])

        def read() -> dict[str, Any]:
            now_s, limit = self.world.now_s(), request["Limit"]
            table = self.world.table
            if (after is None or not after[1].endswith("~")) and self._odd(0.15):
                ahead, _ = table.page(date, first, last, after, 1, now_s)
                if ahead:  # an empty page whose key lies right before the next record
                    return {"Items": [], "LastEvaluatedKey": _key(date, _right_before(ahead[0]))}
            if self._odd(0.3):
                limit = self.world.random.randint(1, limit)
            items, end = table.page(date, first, last, after, limit, now_s)
            return {"Items": items, "LastEvaluatedKey": None if end is None else _key(date, end)}

        answer: dict[str, Any] = self._call("Query", read)
        return answer

    def batch_get_item(self, RequestItems: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Read records from the base table, consistently; some keys may stay unread."""
        ((name, wanted),) = RequestItems.items()
        assert wanted["ConsistentRead"], "only a consistent read says what is true"

        def read() -> dict[str, Any]:
            keys = wanted["Keys"]
            left = keys[len(keys) // 2 :] if len(keys) > 1 and self._odd(0.2) else []
            now_s = self.world.now_s()
            found = [self.world.table.read(one["Id"]["S"], now_s) for one in keys[: len(keys) - len(left)]]
            unread = {name: {"Keys": left}} if left else {}
            return {"Responses": {name: [one for one in found if one is not None]}, "UnprocessedKeys": unread}

        answer: dict[str, Any] = self._call("BatchGetItem", read)
        return answer


def _right_before(item: Item) -> tuple[str, str]:
    """Return a key that no record has, between an item and whatever comes before it."""
    identity = item["Id"]["S"]
    return item["BookingTimeUTC"]["S"], f"{identity[:-1]}{chr(ord(identity[-1]) - 1)}~"


def _key(date: str, at: tuple[str, str]) -> Item:
    return {"Id": {"S": at[1]}, "BookingDateUTC": {"S": date}, "BookingTimeUTC": {"S": at[0]}}


class _Body(io.BytesIO):
    def iter_chunks(self, size: int) -> Iterable[bytes]:
        """Yield what is left in pieces."""
        while piece := self.read(size):
            yield piece


class S3Client(Client):
    """S3: one bucket."""

    def head_bucket(self, Bucket: str) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Find the bucket; asked once a process, so nothing goes wrong here."""
        assert Bucket == self.world.bucket
        return {"BucketRegion": self._session.region}

    def _stored(self, key: str, operation: str) -> Stored:
        if key not in self.world.objects:
            raise answered("NoSuchKey", operation, 404)
        return self.world.objects[key]

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        """List a few objects at a time."""
        after = request.get("ContinuationToken", "")

        def read() -> dict[str, Any]:
            keys = sorted(key for key in self.world.objects if key.startswith(request["Prefix"]) and key > after)
            page, more = keys[:5], len(keys) > 5
            contents = [_listed(key, self.world.objects[key]) for key in page]
            return {"Contents": contents, "IsTruncated": more, "NextContinuationToken": page[-1] if more else None}

        answer: dict[str, Any] = self._call("ListObjects", read)
        return answer

    def head_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Look at an object."""

        def read() -> dict[str, Any]:
            one = self._stored(Key, "HeadObject")
            return {"ContentLength": len(one.body), "ETag": one.etag, "LastModified": one.modified_at}

        answer: dict[str, Any] = self._call("HeadObject", read)
        return answer

    def get_object(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Read an object."""

        def read() -> dict[str, Any]:
            one = self._stored(Key, "GetObject")
            return {"ContentLength": len(one.body), "Body": _Body(one.body)}

        answer: dict[str, Any] = self._call("GetObject", read)
        return answer

    def get_object_tagging(self, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as the SDK names it
        """Read an object's tags."""

        def read() -> dict[str, Any]:
            tags = self._stored(Key, "GetObjectTagging").tags
            return {"TagSet": [{"Key": name, "Value": value} for name, value in tags.items()]}

        answer: dict[str, Any] = self._call("GetObjectTagging", read)
        return answer

    def put_object_tagging(self, Bucket: str, Key: str, Tagging: dict[str, Any]) -> None:  # noqa: N803 - as the SDK names it
        """Replace an object's tags."""

        def write() -> None:
            self._stored(Key, "PutObjectTagging").tags = {one["Key"]: one["Value"] for one in Tagging["TagSet"]}

        self._call("PutObjectTagging", write)

    def delete_object(self, Bucket: str, Key: str) -> None:  # noqa: N803 - as the SDK names it
        """Remove an object."""
        self._call("DeleteObject", lambda: self.world.objects.pop(Key, None))


def _listed(key: str, one: Stored) -> dict[str, str]:
    return {"Key": key, "Size": str(len(one.body)), "ETag": one.etag, "LastModified": one.modified_at.isoformat()}


class SimObjects(S3Objects):
    """The product's object port; its uploads go one after another, each across a boundary of its own."""

    _session: Any

    @property
    def outside(self) -> tuple[World, Boundaries]:
        """What lies beyond this port."""
        return self._session.world, self._session.boundaries

    def _store(self, bucket: str) -> Any:
        assert bucket == self._session.world.bucket
        return self

    def put_many(self, bucket: str, uploads: Sequence[Upload]) -> list[StoredObject]:
        """Store objects, in an order that the seed chooses."""
        del bucket
        order = list(range(len(uploads)))
        self._session.world.random.shuffle(order)
        stored = {at: self._put(uploads[at].key, uploads[at].body, uploads[at].metadata) for at in order}
        return [stored[at] for at in range(len(uploads))]

    def put_streamed(self, bucket: str, key: str, parts: Iterable[bytes], metadata: dict[str, str]) -> StoredObject:
        """Store one object."""
        del bucket
        return self._put(key, b"".join(parts), metadata)

    def _put(self, key: str, body: bytes, metadata: dict[str, str]) -> StoredObject:
        with_type = {"Content-Type": "application/json", **metadata}
        boundaries: Boundaries = self._session.boundaries
        from dispatch.aws.errors import translated  # noqa: PLC0415

        with translated("storing objects in the bucket"):
            one: Stored = boundaries.call(
                "PutObject",
                lambda: self._session.world.put(key, body, with_type),
                refused=_not_reached,
                lost=_unanswered,
                may_be_late=True,
            )
        return StoredObject(len(body), one.etag)


class SimObstore:
    """Stands in for the module `obstore`, as far as the product's object port calls it here."""

    @staticmethod
    def put(store: SimObjects, key: str, body: bytes, *, mode: Any, **_: Any) -> dict[str, Any]:
        """Store an object under a condition, which is looked at when the call takes effect.

        Whether a lost answer is asked for again, so that the call then meets what it has stored itself, depends on the
        boundary's number alone.
        """
        world, boundaries = store.outside
        etag = None if mode == "create" else mode["e_tag"]
        landed: list[Stored] = []

        def write() -> Stored | None:
            landed[:] = filter(None, [world.put_if(key, body, etag)])
            return landed[0] if landed else None

        def unanswered() -> Exception:
            again = landed and len(boundaries.names) % 2
            return _failed_condition(etag) if again else GenericError("no answer")

        stored: Stored | None = boundaries.call(
            "PutObject if", write, refused=_not_reached, lost=unanswered, may_be_late=True
        )
        if stored is None:
            raise _failed_condition(etag)
        return {"e_tag": stored.etag}

    @staticmethod
    def get(store: SimObjects, key: str) -> Any:
        """Read a small object."""
        world, boundaries = store.outside
        found: Stored | None = boundaries.call(
            "GetObject", lambda: world.objects.get(key), refused=_not_reached, lost=_unanswered
        )
        if found is None:
            raise FileNotFoundError(key)
        return SimpleNamespace(bytes=lambda: found.body, meta={"e_tag": found.etag})


def _not_reached(_: int) -> Exception:
    return GenericError("not reached")


def _unanswered() -> Exception:
    return GenericError("no answer")


def _failed_condition(etag: str | None) -> Exception:
    return AlreadyExistsError("it is there") if etag is None else PreconditionError("another one is there")


class SqsClient(Client):
    """SQS: any number of queues."""

    def _queue(self, url: str) -> Any:
        return self.world.queues[url.rsplit("/", 1)[-1]]

    def get_queue_url(self, QueueName: str, QueueOwnerAWSAccountId: str = _ACCOUNT) -> dict[str, str]:  # noqa: N803
        """Find a queue; asked once a process, so nothing goes wrong here."""
        if QueueName not in self.world.queues:
            raise answered("AWS.SimpleQueueService.NonExistentQueue", "GetQueueUrl")
        return {"QueueUrl": f"{_URL}/{QueueOwnerAWSAccountId}/{QueueName}"}

    def get_queue_attributes(self, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:  # noqa: N803
        """Tell a queue's limits."""
        del AttributeNames
        queue = self._queue(QueueUrl)
        return {"Attributes": {"MaximumMessageSize": "1048576", "VisibilityTimeout": str(queue.visibility_s)}}

    def send_batch(self, queue_url: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Take a batch; a message may fail alone, or be taken and left out of the answer."""
        queue = self._queue(queue_url)

        def take() -> dict[str, Any]:
            answer: dict[str, Any] = {"Successful": [], "Failed": []}
            for entry in entries:
                if self._odd(0.04):
                    answer["Failed"].append({"Id": entry["Id"], "Code": "InternalError", "SenderFault": False})
                    continue
                message_id = queue.put(entry["MessageBody"], self.world.now_s(), 0.0, entry)
                if not self._odd(0.04):
                    answer["Successful"].append({"Id": entry["Id"], "MessageId": message_id})
            return answer

        answer: dict[str, Any] = self._call("SendMessageBatch", take, may_be_late=True)
        return answer

    def send_message(self, QueueUrl: str, MessageBody: str, DelaySeconds: int = 0, **_: Any) -> None:  # noqa: N803
        """Take one message."""
        queue = self._queue(QueueUrl)
        self._call(
            "SendMessage", lambda: queue.put(MessageBody, self.world.now_s(), DelaySeconds, {}), may_be_late=True
        )

    def receive_message(self, QueueUrl: str, WaitTimeSeconds: int, VisibilityTimeout: int, **_: Any) -> dict[str, Any]:  # noqa: N803
        """Deliver one message, or wait for one."""
        queue, scheduler = self._queue(QueueUrl), self._boundaries.scheduler

        def take() -> dict[str, Any]:
            one = queue.take(self.world.now_s(), VisibilityTimeout)
            if one is None:
                return {}
            counted = {"ApproximateReceiveCount": str(one.received)}
            message = {
                "MessageId": one.message_id,
                "ReceiptHandle": one.handle,
                "Body": one.body,
                "Attributes": counted,
            }
            return {"Messages": [message]}

        if queue.next_s() > self.world.now_s():  # longer than asked for: time that nothing happens in costs steps
            queue.arrived.clear()
            scheduler.wait(min(60.0, max(WaitTimeSeconds, 0.1, queue.next_s() - self.world.now_s())), queue.arrived)
            if queue.next_s() > self.world.now_s():
                return {}
        answer: dict[str, Any] = self._call("ReceiveMessage", take)
        return answer

    def change_message_visibility(self, QueueUrl: str, ReceiptHandle: str, VisibilityTimeout: int) -> None:  # noqa: N803
        """Hide a message in hand."""
        queue = self._queue(QueueUrl)

        def hide() -> None:
            if not queue.hide(ReceiptHandle, self.world.now_s() + VisibilityTimeout):
                raise answered("ReceiptHandleIsInvalid", "ChangeMessageVisibility")

        self._call("ChangeMessageVisibility", hide)

    def delete_message(self, QueueUrl: str, ReceiptHandle: str) -> None:  # noqa: N803
        """Delete a message in hand."""
        queue = self._queue(QueueUrl)
        self._call("DeleteMessage", lambda: queue.remove(ReceiptHandle))


class _Sender:
    def __init__(self, client: SqsClient) -> None:
        self._client = client

    def send(self, queue_url: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
        """Send one batch."""
        return self._client.send_batch(queue_url, entries)


class SimQueues(SqsQueues):
    """The product's queue port, whose batches cross a boundary."""

    def __init__(self, session: Any, *, call: timedelta) -> None:
        super().__init__(session, call=call)
        self._sender: Any = _Sender(self.client)
