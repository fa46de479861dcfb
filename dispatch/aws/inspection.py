"""What AWS says of identity, table, bucket and queues, for `doctor`. Nothing is written, and no message is received."""

import threading
from collections import deque
from contextlib import closing
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from dispatch.aws.errors import code_of, is_denied, translated
from dispatch.aws.objects import find_bucket
from dispatch.aws.queues import dead_letter_target, find_queue, is_missing_queue
from dispatch.aws.session import Session
from dispatch.aws.source import find_table, for_sdk, query_request, whole_day
from dispatch.checks import BucketFacts, QueueFacts
from dispatch.items import Item, TableSchema, key_of, record_id
from ledger import clock
from ledger.errors import InputError, MissingError, UnavailableError
from ledger.settings import SourceSettings

# One call: this long for an answer, and one more try. A service that does not answer is not asked anything else.
CALL = timedelta(seconds=5)
TRIES = 2
_NOBODY = {"S": {"S": "dispatch-ledger-doctor"}, "N": {"N": "0"}, "B": {"B": b"dispatch-ledger-doctor"}}


class Inspector:
    """Asks AWS, a bounded time for each question. Safe to share between threads.

    Raises:
        InputError: from any question, when what it is about is missing or refused.
        UnavailableError: from any question, when the service does not answer.
    """

    def __init__(self, session: Session) -> None:
        self.region = session.region
        self._skews: list[timedelta] = []
        self._lock = threading.Lock()
        self._dynamodb, self._s3, self._sqs, self._sts = (
            self._client(session, service) for service in ("dynamodb", "s3", "sqs", "sts")
        )

    def _client(self, session: Session, service: str) -> Any:
        client = session.client(service, tries=TRIES, read=CALL)
        client.meta.events.register("after-call", self._note_date)
        return client

    def _note_date(self, http_response: Any = None, **_: object) -> None:
        """Compare the service's clock with ours, also when the answer is a refusal."""
        headers = getattr(http_response, "headers", None) or {}
        told = next((value for name, value in headers.items() if name.lower() == "date"), None)
        try:
            skew = parsedate_to_datetime(str(told)) - clock.utc_now().replace(microsecond=0)
        except (TypeError, ValueError):
            return
        with self._lock:
            self._skews.append(skew)

    @property
    def skew(self) -> timedelta | None:
        """How far AWS's clock is ahead of this machine's, by the answer that took least time; None without any."""
        with self._lock:
            return min(self._skews, key=abs, default=None)

    def identity(self) -> str | None:
        """Return the ARN that the credentials stand for; None when nobody can tell.

        Raises:
            InputError: when the credentials are refused.
        """
        try:
            with translated("AWS credentials"):
                return str(self._sts.get_caller_identity()["Arn"])
        except UnavailableError:
            return None
        except InputError as error:
            if is_denied(error):
                return None
            raise

    # DynamoDB

    def table(self, name: str) -> dict[str, Any]:
        """Return what DescribeTable says of a table."""
        return find_table(self._dynamodb, name)

    def sample(self, source: SourceSettings, now: datetime) -> Item | None:
        """Return one record that the index shows for today, tomorrow or yesterday; None when it shows none."""
        for days in (0, 1, -1):
            part = whole_day((now + timedelta(days=days)).strftime("%Y-%m-%d"))
            with translated(f"reading index {source.index} of {source.table}"):
                items: list[Item] = self._dynamodb.query(**query_request(source, part, 1))["Items"]
            if items:
                return items[0]
        return None

    def read_again(self, source: SourceSettings, schema: TableSchema, item: Item | None) -> Item | None:
        """Read a record from the table, consistently; without one, read a key that nobody has."""
        key = (
            {name: _NOBODY[kind] for name, kind in schema.key_types.items()}
            if item is None
            else for_sdk(key_of(record_id(item, schema), schema))
        )
        wanted = {source.table: {"Keys": [key], "ConsistentRead": True}}
        with translated(f"reading {source.table} again"):
            found: list[Item] = self._dynamodb.batch_get_item(RequestItems=wanted)["Responses"].get(source.table, [])
        return found[0] if item is not None and found else None

    # S3

    def bucket(self, name: str, prefix: str) -> BucketFacts:
        """Find a bucket, list one key of it, and read its lifecycle if that is allowed."""
        region = find_bucket(self._s3, name)
        with translated(f"listing bucket {name}"):
            self._s3.list_objects_v2(Bucket=name, Prefix=prefix, MaxKeys=1)
        return BucketFacts(region, self._lifecycle(name))

    def newest_keys(self, bucket: str, folder: str, most: int) -> list[str]:
        """List the last keys below a folder, in their order; what lies in a bucket that does not exist is nothing."""
        keys: deque[str] = deque(maxlen=most)
        request = {"Bucket": bucket, "Prefix": folder}
        with translated(f"listing bucket {bucket}"):
            try:
                for page in self._s3.get_paginator("list_objects_v2").paginate(**request):
                    keys.extend(one["Key"] for one in page.get("Contents") or [])
            except ClientError as error:
                if code_of(error) != "NoSuchBucket":
                    raise
        return list(keys)

    def fetch(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """Return a small object with its entity tag; None when it, or its bucket, is not there."""
        with translated(f"reading an object in bucket {bucket}"):
            try:
                answer = self._s3.get_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if code_of(error) in {"404", "NoSuchKey", "NoSuchBucket"}:
                    return None
                raise
            with closing(answer["Body"]) as body:
                return bytes(body.read()), answer["ETag"]

    def _lifecycle(self, bucket: str) -> list[dict[str, Any]] | None:
        try:
            rules: list[dict[str, Any]] = self._s3.get_bucket_lifecycle_configuration(Bucket=bucket).get("Rules", [])
        except ClientError as error:
            return [] if code_of(error) == "NoSuchLifecycleConfiguration" else None
        except (BotoCoreError, ResponseParserError):
            return None
        return rules

    # SQS

    def queue(self, name: str, key: str) -> QueueFacts:
        """Find a queue and all that SQS says of it.

        Args:
            key: the setting that names it.
        """
        url, attributes = find_queue(self._sqs, name, "All", key)
        return QueueFacts(name, url, attributes)

    def dead_letters(self, facts: QueueFacts) -> QueueFacts | None:
        """Find the dead-letter queue of a queue; None when it has no redrive policy.

        Raises:
            InputError: when it does not exist, may not be looked at, or the policy cannot be read.
        """
        policy = facts.attributes.get("RedrivePolicy")
        if not policy:
            return None
        try:
            account, name = dead_letter_target(policy)
        except ValueError as reason:
            raise InputError(f"SQS queue {facts.name}: {reason}; set its redrive policy anew") from None
        with translated(f"dead-letter queue {name}"):
            try:
                url = str(self._sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=account)["QueueUrl"])
                answer = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
            except ClientError as error:
                if is_missing_queue(error):
                    raise MissingError(f"dead-letter queue {name!r} does not exist; create it") from error
                raise
        return QueueFacts(name, url, dict(answer.get("Attributes") or {}))
