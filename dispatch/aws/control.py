"""The control queues: messages that say which long-running job to look at, and nothing else.

What is true stands in the ledger, so a message may come twice or never: whoever receives one asks there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from botocore import exceptions as boto

from dispatch.aws.errors import code_of, translated
from dispatch.aws.queues import find_dead_letters, find_queue
from dispatch.aws.session import Session
from ledger.errors import InputError

LOG = structlog.get_logger(__name__)
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
DELAY_MAX_S = 900
_ASK_TRIES = 3
_ASK = timedelta(seconds=10)
_REASON_CHARS_MAX = 500
# A worker that was paused comes back with a message that others have received, or deleted, since.
_NOT_IN_HAND = ("ReceiptHandleIsInvalid", "MessageNotInflight")
_DEPTHS = {
    "ApproximateNumberOfMessages": "waiting",
    "ApproximateNumberOfMessagesNotVisible": "in_flight",
    "ApproximateNumberOfMessagesDelayed": "delayed",
}


class ControlQueue(msgspec.Struct, frozen=True):
    """A queue as the settings name it, and its dead-letter queue, if it has one."""

    name: str
    url: str
    dead_letter_url: str | None


class Received(msgspec.Struct, frozen=True):
    """A message in hand: hidden from others until its visibility runs out.

    Attributes:
        received: how often the queue has handed it out, this time included.
    """

    body: str
    handle: str
    received: int = 1


class ControlQueues:
    """Sends and receives short messages. Safe to share between threads.

    Args:
        send: how long one send may take; it is tried once.
        wait: how long a receive waits for a message.

    Raises:
        UnavailableError: from any call, when SQS does not answer in time, or refuses.
    """

    def __init__(self, session: Session, *, send: timedelta, wait: timedelta) -> None:
        self._wait_s = int(wait.total_seconds())
        self._sending = session.client("sqs", tries=1, read=send)
        self._asking = session.client("sqs", tries=_ASK_TRIES, read=_ASK + wait)

    def resolve(self, name: str, key: str) -> ControlQueue:
        """Find a queue by name or URL.

        Args:
            key: the key of the configuration that names it.

        Raises:
            InputError: when it does not exist, or is a FIFO queue.
        """
        if name.endswith(".fifo"):
            raise InputError(f"{key} = {name!r} is a FIFO queue; job ids need a standard queue")
        url, told = find_queue(self._asking, name, "RedrivePolicy", key)
        with translated(f"dead-letter queue of {name}"):
            try:
                return ControlQueue(name, url, find_dead_letters(self._asking, told))
            except (boto.ClientError, ValueError) as error:  # a job that fails stands in the ledger all the same
                LOG.warning("dead-letter queue cannot be used", queue=name, reason=str(error))
                return ControlQueue(name, url, None)

    def send(self, queue: ControlQueue, body: str, delay: timedelta = timedelta()) -> None:
        """Send one message, tried once; when this raises, it may have been sent all the same."""
        delay_s = min(-int(-delay.total_seconds() // 1), DELAY_MAX_S)
        with translated(f"sending to SQS queue {queue.name}"):
            self._sending.send_message(QueueUrl=queue.url, MessageBody=body, DelaySeconds=delay_s)

    def receive(self, queue: ControlQueue, visibility: timedelta) -> Received | None:
        """Wait a while for a message; None when there is none. It is hidden from others for `visibility`."""
        with translated(f"receiving from SQS queue {queue.name}"):
            answer = self._asking.receive_message(
                QueueUrl=queue.url,
                MaxNumberOfMessages=1,
                WaitTimeSeconds=self._wait_s,
                VisibilityTimeout=_whole_s(visibility),
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        for message in answer.get("Messages", []):
            received = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
            return Received(str(message["Body"]), str(message["ReceiptHandle"]), received)
        return None

    def hide(self, queue: ControlQueue, received: Received, visibility: timedelta) -> None:
        """Hide a message in hand for so long from now on; zero shows it to others at once.

        One that is not in hand any more, because it was seen again meanwhile, is no error: it is another's to hide.
        """
        with translated(f"keeping a message of SQS queue {queue.name}"), _not_in_hand_is_fine():
            self._asking.change_message_visibility(
                QueueUrl=queue.url, ReceiptHandle=received.handle, VisibilityTimeout=_whole_s(visibility)
            )

    def delete(self, queue: ControlQueue, received: Received) -> None:
        """Delete a message in hand; one that is gone already, or in another's hand, is no error."""
        with translated(f"deleting from SQS queue {queue.name}"), _not_in_hand_is_fine():
            self._asking.delete_message(QueueUrl=queue.url, ReceiptHandle=received.handle)

    def bury(self, queue: ControlQueue, body: str, reason: str) -> bool:
        """Put a message into the dead-letter queue, with the reason as an attribute; says whether there is one."""
        if queue.dead_letter_url is None:
            return False
        attribute = {"DataType": "String", "StringValue": _printable(reason)}
        with translated(f"sending to the dead-letter queue of {queue.name}"):
            self._asking.send_message(
                QueueUrl=queue.dead_letter_url, MessageBody=body, MessageAttributes={"reason": attribute}
            )
        return True

    def depths(self, url: str) -> dict[str, int]:
        """Count, roughly, the messages of a queue that are `waiting`, `in_flight` and `delayed`."""
        with translated(f"SQS queue {url}"):
            answer = self._sending.get_queue_attributes(QueueUrl=url, AttributeNames=list(_DEPTHS))
        attributes: dict[str, Any] = answer.get("Attributes", {})
        return {state: int(attributes.get(name, 0)) for name, state in _DEPTHS.items()}


@contextmanager
def _not_in_hand_is_fine() -> Iterator[None]:
    try:
        yield
    except boto.ClientError as error:
        if not code_of(error).endswith(_NOT_IN_HAND):
            raise


def _whole_s(duration: timedelta) -> int:
    """Return whole seconds, rounded up."""
    return -int(-duration.total_seconds() // 1)


def _printable(text: str) -> str:
    kept = "".join(char if char.isprintable() else " " for char in text).encode("utf-8", "replace").decode()
    return kept[:_REASON_CHARS_MAX] or "no reason given"
