"""What goes out: object keys, object documents and messages, exactly as CONTRACT §4 lays down. Pure."""

from collections.abc import Iterable, Iterator
from uuid import UUID

import msgspec

from ledger import keys
from ledger.canonical import ascii_json, canonical_json
from ledger.facts import Destination, Entry
from ledger.instants import Window

_RECORDS = b'"records":['
_LONGEST_COUNT = 10**9


def object_key(entry: Entry) -> str:
    """Return the key that an entry's object is stored under."""
    place = keys.window_prefix(entry.destination.prefix, entry.pipeline, entry.window)
    return keys.object_key(place, entry.group_digest, entry.content_hash, entry.generation)


def _document_frame(entry: Entry) -> tuple[bytes, bytes]:
    frame = canonical_json(
        {
            "format": 1,
            "idempotency_key": entry.idempotency_key.hex(),
            "pipeline": entry.pipeline,
            "window": {"start": entry.window.name, "end": entry.window.end_name},
            "generation": entry.generation,
            "job": entry.destination.job,
            "group": msgspec.Raw(entry.group_json),
            "content_hash": entry.content_hash.hex(),
            "records": [],
        },
    )
    # The only member after "records" is "window", whose text is our own: the last "records":[ is the right one.
    at = frame.rindex(_RECORDS) + len(_RECORDS)
    return frame[:at], frame[at:]


def document(entry: Entry, records_json: bytes) -> bytes:
    """Return an entry's whole object; `records_json` are its records' canonical JSON, joined by commas."""
    head, tail = _document_frame(entry)
    return head + records_json + tail


def document_parts(entry: Entry, record_parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield an entry's object piece by piece, for one that is too large to hold; parts are as in `document`."""
    head, tail = _document_frame(entry)
    yield head
    for number, part in enumerate(record_parts):
        yield part if number == 0 else b"," + part
    yield tail


def message_body(entry: Entry) -> str:
    """Return the queue message of an entry, in ASCII."""
    return ascii_json(
        canonical_json(
            {
                "entry_id": str(entry.id),
                "idempotency_key": entry.idempotency_key.hex(),
                "job": entry.destination.job,
                "pipeline": entry.pipeline,
                "window": {"start": entry.window.name, "end": entry.window.end_name},
                "group": msgspec.Raw(entry.group_json),
                "object": {"bucket": entry.destination.bucket, "key": object_key(entry)},
                "content_hash": entry.content_hash.hex(),
                "records": entry.records_n,
                "generation": entry.generation,
            },
        ),
    )


def message_overhead_bytes(entry: Entry) -> int:
    """Return how many bytes a message like this entry's takes beside its group values, at the most."""
    widest = msgspec.structs.replace(entry, group_json=b"{}", records_n=_LONGEST_COUNT, generation=_LONGEST_COUNT)
    return len(message_body(widest))


def overhead_bytes(pipeline: str, window: Window, destination: Destination) -> int:
    """Return the same for any entry of a destination."""
    digest = bytes(32)
    sample = Entry(
        id=UUID(int=0),
        pipeline=pipeline,
        window=window,
        group_digest=digest[:16],
        content_hash=digest,
        idempotency_key=digest,
        generation=0,
        records_n=1,
        group_json=b"{}",
        destination=destination,
    )
    return message_overhead_bytes(sample)
