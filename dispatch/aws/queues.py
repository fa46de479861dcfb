"""The queues: each message of each try is told apart as accepted, failed, refused or unknown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import structlog
from botocore import exceptions as boto

from dispatch.aws.errors import THROTTLES, code_of, translated
from dispatch.aws.pool import at_once
from dispatch.aws.sending import BatchSender
from dispatch.aws.session import Session
from ledger.errors import DispatchLedgerError, MissingError
from ledger.facts import SendAnswer

LOG = structlog.get_logger(__name__)
# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
BATCH_MESSAGES_MAX = 10
MESSAGE_BYTES_MAX = 1024 * 1024
_CALLS_AT_ONCE = 16
# As many messages as can be under way at the same moment.
SENT_AT_ONCE_MAX = _CALLS_AT_ONCE * BATCH_MESSAGES_MAX
_RESOLVE_TRIES = 4
_PEEKS_MAX = 100
_PEEK_HIDES_S = 10
# The caller's fault, but not the message's: the same message may be taken once this is mended.
_NOT_THE_MESSAGE = THROTTLES | {"AccessDenied", "AccessDeniedException", "KMS.AccessDeniedException", "KmsAccessDenied"}
# Refusals of a whole call that are about what is in it.
_CONTENT = {
    "InvalidMessageContents",
    "InvalidParameterValue",
    "InvalidAttributeValue",
    "MessageTooLong",
    "BatchRequestTooLong",
    "AWS.SimpleQueueService.BatchRequestTooLong",
    "BatchEntryIdsNotDistinct",
}


class Queue(msgspec.Struct, frozen=True):
    """A queue as the settings name it, and what SQS says of it.

    Attributes:
        message_bytes_max: the largest message it takes, in bytes.
    """

    name: str
    url: str
    message_bytes_max: int

    @property
    def fifo(self) -> bool:
        """Whether the queue keeps order and drops repeats."""
        return self.name.endswith(".fifo")


class Message(msgspec.Struct, frozen=True):
    """One message: ASCII text; `group` and `deduplication_id` matter to FIFO queues only."""

    body: str
    group: str
    deduplication_id: str


class SqsQueues:
    """Finds queues and sends to them. The SDK's own retries are off: each try is an attempt that the ledger knows.

    Args:
        call: how long one call waits for its answer.
    """

    def __init__(self, session: Session, *, call: timedelta) -> None:
        self.call = call
        self._asking = session.client("sqs", tries=_RESOLVE_TRIES, read=call)
        self._sender = BatchSender(self._asking)

    @property
    def client(self) -> Any:
        """A client whose calls are tried again, for all but sending."""
        return self._asking

    def resolve(self, name: str, mend: str = "routes") -> Queue:
        """Find a queue by name or URL.

        Args:
            mend: where the name comes from, for the one who has to mend it.

        Raises:
            InputError: when it does not exist.
        """
        url, attributes = find_queue(self._asking, name, "MaximumMessageSize", mend)
        limit = int(attributes.get("MaximumMessageSize", MESSAGE_BYTES_MAX))
        return Queue(name, url, min(limit, MESSAGE_BYTES_MAX))

    def peek_dead_letters(self, queue: Queue) -> set[str] | None:
        """Return the idempotency keys of jobs in a queue's dead-letter queue, of a bounded number of messages.

        Each message looked at is hidden from others for a few seconds, and then back.

        Returns:
            None when it may not be looked into.
        """
        try:
            _, told = find_queue(self._asking, queue.url, "RedrivePolicy")
            target = find_dead_letters(self._asking, told)
            return set() if target is None else set(self._keys_in(target))
        except (DispatchLedgerError, boto.ClientError, boto.BotoCoreError, ValueError) as error:
            LOG.warning("dead-letter queue was not looked into", queue=queue.name, reason=str(error))
            return None

    def _keys_in(self, url: str) -> Iterator[str]:
        for _ in range(_PEEKS_MAX):
            answer = self._asking.receive_message(
                QueueUrl=url, MaxNumberOfMessages=BATCH_MESSAGES_MAX, VisibilityTimeout=_PEEK_HIDES_S, WaitTimeSeconds=0
            )
            if not answer.get("Messages"):
                return
            for message in answer["Messages"]:
                with suppress(msgspec.DecodeError, KeyError, TypeError):  # not a job of ours
                    yield str(msgspec.json.decode(message["Body"])["idempotency_key"])

    def send(self, queue: Queue, messages: Sequence[Message], before_call: Callable[[], None]) -> list[SendAnswer]:
        """Send messages in batches, many at once; says of each what became of it, in the same order.

        Args:
            before_call: runs before each call; when it raises, the messages of that call count as failed, not sent.
        """
        batches = list(_batches(messages))

        def one(batch: Sequence[Message]) -> list[SendAnswer]:
            return self._send_batch(queue, batch, before_call)

        threads = 1 if queue.fifo else _CALLS_AT_ONCE  # a FIFO queue's order is that of the calls
        return [answer for answers in at_once(one, batches, threads) for answer in answers]

    def _send_batch(
        self, queue: Queue, messages: Sequence[Message], before_call: Callable[[], None]
    ) -> list[SendAnswer]:
        try:
            before_call()
        except Exception as reason:  # noqa: BLE001 - whatever stops us, nothing of this call was sent
            return [SendAnswer("failed", error=f"not tried: {reason}")] * len(messages)
        entries = [_batch_entry(at, message, queue) for at, message in enumerate(messages)]
        try:
            answer = self._sender.send(queue.url, entries)
        except boto.ClientError as error:
            return self._refused_call(queue, messages, before_call, error)
        except (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.NoCredentialsError) as error:
            return [SendAnswer("failed", error=f"not reached: {error}")] * len(messages)
        except Exception as error:  # noqa: BLE001 - no answer that can be read: it may have been taken
            return [SendAnswer("unknown", error=f"no answer: {type(error).__name__}")] * len(messages)
        return [_answer_of(str(at), answer) for at in range(len(messages))]

    def _refused_call(
        self, queue: Queue, messages: Sequence[Message], before_call: Callable[[], None], error: boto.ClientError
    ) -> list[SendAnswer]:
        code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        text = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        short = code.rsplit(".", 1)[-1]
        if code in _CONTENT or short in _CONTENT:
            if len(messages) == 1:
                return [SendAnswer("refused", error=text)]
            return [answer for one in messages for answer in self._send_batch(queue, [one], before_call)]
        if status >= 500 and code not in THROTTLES:
            return [SendAnswer("unknown", error=text)] * len(messages)
        return [SendAnswer("failed", error=text)] * len(messages)


def find_queue(client: Any, name: str, wanted: str, key: str = "routes") -> tuple[str, dict[str, str]]:
    """Return the URL of a queue, given by name or URL, and its attributes as SQS tells them.

    Args:
        client: a botocore client for SQS.
        wanted: which attributes: the name of one, or `All`.
        key: the setting that names the queue.

    Raises:
        InputError: when it does not exist, or may not be looked at.
        UnavailableError: when SQS does not answer.
    """
    with translated(f"SQS queue {name}"):
        try:
            url = name if "://" in name else str(client.get_queue_url(QueueName=name)["QueueUrl"])
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=[wanted])
        except boto.ClientError as error:
            if is_missing_queue(error):
                region = client.meta.region_name
                raise MissingError(
                    f"SQS queue {name!r} does not exist in {region}; create it, or mend {key}"
                ) from error
            raise
    return url, dict(answer.get("Attributes") or {})


def is_missing_queue(error: boto.ClientError) -> bool:
    """Say whether SQS knows no such queue."""
    return "NonExistentQueue" in code_of(error) or "QueueDoesNotExist" in code_of(error)


def dead_letter_target(policy: str) -> tuple[str, str]:
    """Return account and name of the dead-letter queue in a queue's redrive policy.

    Raises:
        ValueError: when the policy names none.
    """
    try:
        *_, account, name = str(msgspec.json.decode(policy)["deadLetterTargetArn"]).split(":")
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the redrive policy names no queue: {policy[:200]}") from None
    return account, name


def find_dead_letters(client: Any, attributes: Mapping[str, str]) -> str | None:
    """Return the URL of a queue's dead-letter queue, None when it has none.

    Args:
        client: a botocore client for SQS.
        attributes: of the queue, its `RedrivePolicy` among them if it has one.

    Raises:
        ClientError: when it does not exist, or may not be looked at.
        ValueError: when the policy names none.
    """
    policy = attributes.get("RedrivePolicy")
    if not policy:
        return None
    account, name = dead_letter_target(policy)
    return str(client.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"])


def _batch_entry(at: int, message: Message, queue: Queue) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": str(at), "MessageBody": message.body}
    if queue.fifo:
        entry |= {"MessageGroupId": message.group, "MessageDeduplicationId": message.deduplication_id}
    return entry


def _answer_of(batch_id: str, answer: dict[str, Any]) -> SendAnswer:
    """Find one message in the answer to its batch; one that is not in it at all is unknown."""
    for taken in answer.get("Successful") or []:
        if taken.get("Id") == batch_id:
            return SendAnswer("accepted", message_id=str(taken.get("MessageId", "")))
    for failed in answer.get("Failed") or []:
        if failed.get("Id") == batch_id:
            text = f"{failed.get('Code', '')}: {failed.get('Message', '')}"
            for_good = failed.get("SenderFault") and failed.get("Code") not in _NOT_THE_MESSAGE
            return SendAnswer("refused" if for_good else "failed", error=text)
    return SendAnswer("unknown", error="the answer does not mention this message")


def _batches(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Cut messages into calls of at most ten messages and one MiB."""
    batch: list[Message] = []
    size = 0
    for message in messages:
        length = len(message.body)
        if batch and (len(batch) == BATCH_MESSAGES_MAX or size + length > MESSAGE_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch
