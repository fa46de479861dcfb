"""The object store: bulk uploads through a fast client, everything else through boto3."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import obstore
from botocore.exceptions import ClientError
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.store import S3Store

from dispatch.aws.errors import code_of, translated
from dispatch.aws.pool import at_once
from dispatch.aws.session import Session
from ledger.errors import InputError
from ledger.facts import StoredObject

_UPLOADS_AT_ONCE = 32
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 2
_RETRIES_MAX = 5
_PATIENCE = timedelta(seconds=30)


class Upload(msgspec.Struct, frozen=True):
    """One object to store: its key, its bytes, and the metadata that goes with it."""

    key: str
    body: bytes
    metadata: dict[str, str]


class S3Objects:
    """Stores and lists objects. Every upload may be repeated: the same content has the same key.

    Args:
        call: how long one call may take.

    Raises:
        InputError: from the constructor, when the bucket does not exist or may not be used.
        UnavailableError: from any call, when S3 does not answer after bounded retries.
    """

    def __init__(self, session: Session, bucket: str, *, call: timedelta) -> None:
        self.bucket = bucket
        self._session = session
        self._call = call
        self._client = session.client("s3", tries=_RETRIES_MAX, read=call)
        self._stores: dict[str, S3Store] = {}
        self._store(bucket)

    def _region_of(self, bucket: str) -> str:
        """Find the region of a bucket, which may be another than ours: also one that the settings no longer name."""
        with translated(f"S3 bucket {bucket}"):
            try:
                answer = self._client.head_bucket(Bucket=bucket)
            except ClientError as error:
                if code_of(error) in {"404", "NoSuchBucket"}:
                    raise InputError(
                        f"S3 bucket {bucket!r} does not exist; create it, or mend objects.bucket"
                    ) from error
                raise
        return str(answer.get("BucketRegion") or self._session.region)

    def _store(self, bucket: str) -> S3Store:
        if bucket not in self._stores:
            options: dict[str, Any] = {"endpoint": self._session.endpoint_url} if self._session.endpoint_url else {}
            self._stores[bucket] = S3Store(
                bucket,
                region=self._region_of(bucket),
                credential_provider=Boto3CredentialProvider(self._session.boto),
                client_options={
                    "allow_http": True,
                    "timeout": self._call,
                    "connect_timeout": min(self._call, timedelta(seconds=5)),
                },
                retry_config={"max_retries": _RETRIES_MAX, "retry_timeout": _PATIENCE},
                **options,
            )
        return self._stores[bucket]

    def put_many(self, bucket: str, uploads: Sequence[Upload]) -> list[StoredObject]:
        """Store objects, many at once; returns what the store answered, in the same order."""
        store = self._store(bucket)

        def put(upload: Upload) -> StoredObject:
            answer = obstore.put(
                store, upload.key, upload.body, attributes=_attributes(upload.metadata), use_multipart=False
            )
            return StoredObject(len(upload.body), answer["e_tag"] or "")

        with translated(f"storing objects in bucket {bucket}"):
            return at_once(put, uploads, _UPLOADS_AT_ONCE)

    def put_streamed(self, bucket: str, key: str, parts: Iterable[bytes], metadata: dict[str, str]) -> StoredObject:
        """Store one object that is too large to hold, as a multipart upload of a few parts at a time."""
        size = 0

        def counted() -> Iterable[bytes]:
            nonlocal size
            for part in parts:
                size += len(part)
                yield part

        with translated(f"storing an object in bucket {bucket}"):
            answer = obstore.put(
                self._store(bucket),
                key,
                iter(counted()),
                attributes=_attributes(metadata),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return StoredObject(size, answer["e_tag"] or "")

    def has_any(self, prefix: str) -> bool:
        """Say whether any object's key begins with `prefix`."""
        with translated(f"listing bucket {self.bucket}"):
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, MaxKeys=1)
        return bool(answer.get("Contents"))


def _attributes(metadata: dict[str, str]) -> dict[str, str]:
    return {"Content-Type": "application/json", **metadata}
