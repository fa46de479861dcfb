"""What a consumer reads: the message, and the object that it names, each checked against the other. Pure.

The idempotency key is the anchor, since the ledger knows it. A message must come to its own key, which binds the
content hash; and the object's records must come to that content hash. So nobody works what was not promised.
"""

import json
import re
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from ledger.canonical import content_hash, elements, idempotency_key, members

MESSAGE_BYTES_MAX = 1024 * 1024
FORMAT = 1
_PIPELINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile("[0-9a-f]{32}")
_HASH = re.compile("[0-9a-f]{64}")
_ALIKE = ("idempotency_key", "pipeline", "window", "group", "generation", "job", "content_hash")


class Place(msgspec.Struct, frozen=True):
    """Where a job's object is."""

    bucket: str
    key: str


class Span(msgspec.Struct, frozen=True):
    """A window, as messages name it."""

    start: str
    end: str


class JobMessage(msgspec.Struct, frozen=True):
    """A message that the product has sent, with the members that CONTRACT §4 gives it."""

    entry_id: UUID
    idempotency_key: str
    job: str
    pipeline: str
    window: Span
    group: dict[str, Any]
    object: Place
    content_hash: str
    records: int
    generation: int

    @property
    def key(self) -> bytes:
        """The idempotency key as the ledger keeps it."""
        return bytes.fromhex(self.idempotency_key)


class UnfitError(ValueError):
    """A message or an object that is not what was promised; says why, without what is in it."""


def decode_document(body: bytes | str) -> Any:
    """Decode JSON without losing a digit: whole numbers become int, all others `Decimal`.

    Raises:
        UnfitError: when it is no JSON, or nested deeper than can be read.
    """
    try:
        return json.loads(body, parse_float=Decimal)
    except (ValueError, RecursionError):
        raise UnfitError("it is not JSON") from None


def parse_message(body: str) -> JobMessage:
    """Read a message.

    Raises:
        UnfitError: when it is none that the product sends.
    """
    if len(body) > MESSAGE_BYTES_MAX:
        raise UnfitError(f"it has more than {MESSAGE_BYTES_MAX} bytes")
    document = decode_document(body)
    try:
        message = msgspec.convert(document, JobMessage)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "a text is not UTF-8"
        raise UnfitError(f"it is not a job of this product: {reason}") from None
    if _key_of(message) != message.idempotency_key:
        raise UnfitError("its idempotency key is not that of its pipeline, window, object, content and generation")
    return message


def _key_of(message: JobMessage) -> str | None:
    """Return the idempotency key that the rest of a message comes to; None where that has no meaning."""
    digest = message.object.key.rpartition("/")[0].rpartition("/")[2]
    if not (
        _PIPELINE.fullmatch(message.pipeline)
        and _DIGEST.fullmatch(digest)
        and _HASH.fullmatch(message.content_hash)
        and message.window.start.isascii()
    ):
        return None
    group, content = bytes.fromhex(digest), bytes.fromhex(message.content_hash)
    return idempotency_key(message.pipeline, message.window.start, group, content, message.generation).hex()


def check_document(body: bytes, message: JobMessage) -> None:
    """Make sure that an object is the one that a message speaks of.

    Raises:
        UnfitError: when it is not.
    """
    try:
        by_name = members(body)
        records = elements(bytes(by_name.pop("records", b"null")))
    except ValueError:
        raise UnfitError("its object is no document of this product") from None
    found = {name: decode_document(bytes(raw)) for name, raw in by_name.items()}
    if found.get("format") != FORMAT:
        raise UnfitError(f"its object is not of format {FORMAT}")
    expected = {**msgspec.structs.asdict(message), "window": msgspec.structs.asdict(message.window)}
    wrong = [name for name in _ALIKE if name not in found or found[name] != expected[name]]
    if wrong:
        raise UnfitError(f"its object belongs to another job: {', '.join(wrong)} differ")
    if content_hash(records).hex() != message.content_hash:
        raise UnfitError("its object's records do not come to the content hash that was promised")
    if len(records) != message.records:
        raise UnfitError(f"its object has {len(records)} records as promised, but the message counts {message.records}")
