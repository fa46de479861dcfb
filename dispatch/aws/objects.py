"""The object store: bulk uploads through a fast client, everything else through botocore."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import obstore
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

from dispatch.aws.errors import code_of, translated
from dispatch.aws.pool import at_once
from dispatch.aws.session import Session
from ledger import clock
from ledger.errors import CorruptError, MissingError
from ledger.facts import StoredObject

if TYPE_CHECKING:  # obstore has it for type checkers only
    from obstore.store import S3Credential

_UPLOADS_AT_ONCE = 32
_PART_BYTES = 5 * 1024 * 1024
_PARTS_AT_ONCE = 1
_RETRIES_MAX = 5
_GONE = {"404", "NoSuchKey"}
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
_TAGS_MAX = 10
_READ_BYTES = 1024 * 1024
_PATIENCE = timedelta(seconds=30)
# botocore gives no credentials that end within ten minutes; obstore asks again five minutes before the end.
_CREDENTIAL_LASTS = timedelta(minutes=10)


class Upload(msgspec.Struct, frozen=True):
    """One object to store: its key, its bytes, and the metadata that goes with it."""

    key: str
    body: bytes
    metadata: dict[str, str]


class ConditionFailedError(Exception):
    """What was to be replaced is not there as it was; nothing was stored."""


class ListedObject(msgspec.Struct, frozen=True):
    """An object as the store lists it."""

    key: str
    stored: StoredObject
    modified_at: datetime


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
        return find_bucket(self._client, bucket) or self._session.region

    def _store(self, bucket: str) -> S3Store:
        if bucket not in self._stores:
            options: dict[str, Any] = {"endpoint": self._session.endpoint_url} if self._session.endpoint_url else {}
            self._stores[bucket] = S3Store(
                bucket,
                region=self._region_of(bucket),
                credential_provider=self._credential,
                client_options={
                    "allow_http": True,
                    "timeout": self._call,
                    "connect_timeout": min(self._call, timedelta(seconds=5)),
                },
                retry_config={"max_retries": _RETRIES_MAX, "retry_timeout": _PATIENCE},
                **options,
            )
        return self._stores[bucket]

    def _credential(self) -> "S3Credential":
        """Give what the fast client signs with; botocore renews it, and it is asked for again long before it ends."""
        frozen = self._session.credentials.get_frozen_credentials()
        assert frozen.access_key is not None, "the session refused to begin without credentials"
        assert frozen.secret_key is not None, "the session refused to begin without credentials"
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": clock.utc_now() + _CREDENTIAL_LASTS,
        }

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

    def put_if(self, bucket: str, upload: Upload, etag: str | None) -> str:
        """Store an object in the place of the version with this entity tag; of none, when that is None.

        Returns:
            The entity tag of what was stored.

        Raises:
            ConditionFailedError: when another version lies there; also when this very call was repeated after a lost
                answer, and has replaced it before.
        """
        store = self._store(bucket)
        with translated(f"storing an object in bucket {bucket}"):
            try:
                answer = obstore.put(
                    store,
                    upload.key,
                    upload.body,
                    attributes=_attributes(upload.metadata),
                    use_multipart=False,
                    mode="create" if etag is None else {"e_tag": etag},
                )
            except (AlreadyExistsError, PreconditionError) as error:
                raise ConditionFailedError from error
        return answer["e_tag"] or ""

    def fetch(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """Return a small object with its entity tag; None when it, or a bucket of before, is not there."""
        try:
            store = self._store(bucket)
        except MissingError:
            if bucket != self.bucket:
                return None
            raise
        with translated(f"reading an object in bucket {bucket}"):
            try:
                answer = obstore.get(store, key)
            except FileNotFoundError:  # which obstore raises here, instead of its own
                return None
        return bytes(answer.bytes()), answer.meta["e_tag"] or ""

    def has_any(self, bucket: str, prefix: str) -> bool:
        """Say whether any object's key begins with `prefix`."""
        return any(True for _ in self.listing(bucket, prefix))

    def listing(self, bucket: str, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose key begins with `prefix`, in the byte order of their keys, a page at a time.

        A bucket of before that does not exist any more holds none.

        Raises:
            CorruptError: when the store lists keys out of order, or one twice: nothing can be concluded from that.
        """
        before = ""
        request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
        while True:
            with translated(f"listing bucket {bucket}"):
                try:
                    page = self._client.list_objects_v2(**request)
                except ClientError as error:
                    if self._is_gone(bucket, error):
                        return
                    raise
            for one in page["Contents"]:
                if one["Key"] <= before:  # by code points, which is the byte order of UTF-8
                    raise CorruptError(
                        f"bucket {bucket}: the listing is out of order at {one['Key']!r}; nothing was concluded from "
                        "it, run again"
                    )
                before = one["Key"]
                if not _is_folder(one):
                    yield _listed(one)
            if not page["IsTruncated"]:
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _is_gone(self, bucket: str, error: ClientError) -> bool:
        """Say whether a bucket that the settings no longer name is not there any more."""
        return code_of(error) == "NoSuchBucket" and bucket != self.bucket

    def find(self, bucket: str, key: str) -> ListedObject | None:
        """Return an object as it is now, or None."""
        with translated(f"looking at an object in bucket {bucket}"):
            try:
                one = self._client.head_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if code_of(error) in _GONE:
                    return None
                raise
        return ListedObject(key, StoredObject(one["ContentLength"], one["ETag"]), one["LastModified"])

    def read(self, bucket: str, key: str) -> Iterator[bytes]:
        """Yield an object's body in pieces of a bounded size; nothing when it is gone."""
        with translated(f"reading an object in bucket {bucket}"):
            try:
                answer = self._client.get_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if code_of(error) in _GONE:
                    return
                raise
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(_READ_BYTES)

    def tags(self, bucket: str, key: str) -> dict[str, str]:
        """Return an object's tags."""
        with translated(f"reading tags in bucket {bucket}"):
            answer = self._client.get_object_tagging(Bucket=bucket, Key=key)
        return {one["Key"]: one["Value"] for one in answer.get("TagSet", [])}

    def tag(self, bucket: str, key: str, name: str, value: str) -> bool:
        """Set one tag of an object and leave its others as they are; returns whether there was room for it."""
        wanted = self.tags_with(bucket, key, name, value)
        if wanted is not None:
            self._put_tags(bucket, key, wanted)
        return wanted is not None

    def tags_with(self, bucket: str, key: str, name: str, value: str) -> dict[str, str] | None:
        """Return an object's tags with one of them set; None when there is no room for it."""
        wanted = {**self.tags(bucket, key), name: value}
        return wanted if len(wanted) <= _TAGS_MAX else None

    def untag(self, bucket: str, key: str, name: str) -> None:
        """Take one tag from an object, if it has it."""
        tags = self.tags(bucket, key)
        if tags.pop(name, None) is not None:
            self._put_tags(bucket, key, tags)

    def _put_tags(self, bucket: str, key: str, tags: dict[str, str]) -> None:
        tag_set = [{"Key": one, "Value": text} for one, text in tags.items()]
        with translated(f"tagging an object in bucket {bucket}"):
            self._client.put_object_tagging(Bucket=bucket, Key=key, Tagging={"TagSet": tag_set})

    def remove(self, bucket: str, key: str) -> None:
        """Remove an object; one that is gone already is no error."""
        with translated(f"removing an object from bucket {bucket}"):
            self._client.delete_object(Bucket=bucket, Key=key)


def find_bucket(client: Any, bucket: str) -> str | None:
    """Return the region of a bucket, None when it is not told.

    Args:
        client: a botocore client for S3.

    Raises:
        InputError: when the bucket does not exist, or may not be used.
        UnavailableError: when S3 does not answer.
    """
    with translated(f"S3 bucket {bucket}"):
        try:
            answer = client.head_bucket(Bucket=bucket)
        except ClientError as error:
            if code_of(error) in {"404", "NoSuchBucket"}:
                raise MissingError(f"S3 bucket {bucket!r} does not exist; create it, or mend objects.bucket") from error
            raise
    return answer.get("BucketRegion") or None


def _is_folder(one: dict[str, str]) -> bool:
    """Say whether this is only what a console shows as a folder."""
    return one["Key"].endswith("/") and one["Size"] == "0"


def _listed(one: dict[str, str]) -> ListedObject:
    modified_at = datetime.fromisoformat(one["LastModified"])
    return ListedObject(one["Key"], StoredObject(int(one["Size"]), one["ETag"]), modified_at)


def _attributes(metadata: dict[str, str]) -> dict[str, str]:
    return {"Content-Type": "application/json", **metadata}
