"""The receiving side of a queue, and the objects that its messages name."""

import math
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
from botocore.exceptions import ClientError

from dispatch.aws.errors import code_of, translated
from dispatch.aws.queues import SqsQueues
from dispatch.aws.session import Session

# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_ChangeMessageVisibility.html
VISIBILITY_MAX_S = 12 * 60 * 60
_WAIT_S = 5
_CALL = timedelta(seconds=15)
_TRIES = 4
_HELD_MIN_S, _HELD_MAX_S = 3, 60
_GONE = {"404", "NoSuchKey", "NoSuchBucket"}


class Delivery(msgspec.Struct, frozen=True):
    """One message, as it was handed out once.

    Attributes:
        handle: what this very hand-out is called.
        received: how often the queue has handed it out, this time included.
    """

    message_id: str
    handle: str
    body: str
    received: int


class Inbox:
    """Takes messages from one queue. May be shared by threads.

    Attributes:
        held_s: how long a message that was received stays hidden, unless that is extended: the queue's own time, but
            not less than 3 seconds, and not more than a minute.
        dead_letters_after: how often a message is handed out before the queue puts it away; None when it never does.

    Raises:
        InputError: from the constructor, when the queue does not exist or may not be used.
        UnavailableError: from any call, when SQS does not answer after bounded retries.
    """

    def __init__(self, session: Session, queue: str) -> None:
        queues = SqsQueues(session, call=_CALL)
        found = queues.resolve(queue, "--queue")
        self.name, self._url, self._client = found.name, found.url, queues.client
        names = ["RedrivePolicy", "VisibilityTimeout"]
        with translated(f"SQS queue {queue}"):
            known = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=names).get("Attributes", {})
        self.held_s = min(max(int(known.get("VisibilityTimeout", _HELD_MAX_S)), _HELD_MIN_S), _HELD_MAX_S)
        self.dead_letters_after = _receives_max(known.get("RedrivePolicy"))

    def receive(self) -> Delivery | None:
        """Wait up to five seconds for one message."""
        with translated(f"receiving from SQS queue {self.name}"):
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=_WAIT_S,
                VisibilityTimeout=self.held_s,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        for one in answer.get("Messages") or []:
            received = int(one.get("Attributes", {}).get("ApproximateReceiveCount", 1))
            return Delivery(one["MessageId"], one["ReceiptHandle"], one["Body"], received)
        return None

    def hide(self, delivery: Delivery, seconds: float) -> None:
        """Let a message be seen again after so many seconds from now, 0 to 12 hours."""
        whole_s = min(math.ceil(seconds), VISIBILITY_MAX_S)
        with translated(f"hiding a message of SQS queue {self.name}"):
            self._client.change_message_visibility(
                QueueUrl=self._url, ReceiptHandle=delivery.handle, VisibilityTimeout=whole_s
            )

    def delete(self, delivery: Delivery) -> None:
        """Take a message out of the queue for good."""
        with translated(f"deleting a message from SQS queue {self.name}"):
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=delivery.handle)


def _receives_max(policy: str | None) -> int | None:
    try:
        return int(msgspec.json.decode(policy)["maxReceiveCount"]) if policy else None
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


class JobObjects:
    """Fetches the objects of jobs, from whichever bucket they are in. May be shared by threads."""

    def __init__(self, session: Session) -> None:
        self._client: Any = session.client("s3", tries=_TRIES)

    def fetch(self, bucket: str, key: str, bytes_max: int) -> bytes | None:
        """Return a whole object, None when it is gone.

        Raises:
            OverflowError: when it has more than `bytes_max` bytes.
            InputError: when access is denied.
            UnavailableError: when S3 does not answer after bounded retries.
        """
        with translated(f"reading an object in bucket {bucket}"):
            try:
                answer = self._client.get_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if code_of(error) in _GONE:
                    return None
                raise
            with closing(answer["Body"]) as body:
                if int(answer["ContentLength"]) > bytes_max:
                    raise OverflowError(f"{answer['ContentLength']} bytes")
                return bytes(body.read())
