"""Keys, documents and messages, byte for byte as CONTRACT §4 lays them down."""

import hashlib
import json
from uuid import UUID

import msgspec
import pytest

from dispatch.payload import document, document_parts, message_body, message_overhead_bytes, object_key
from ledger.canonical import canonical_json, content_hash, group_digest, idempotency_key
from ledger.facts import Destination, Entry
from ledger.instants import parse_window
from ledger.keys import window_prefix

BODIES = [b'{"Id":"R2"}', b'{"Id":"R1"}']
CONTENT = content_hash(BODIES)


def entry(*, group: dict[str, object] | None = None, generation: int = 0, pipeline: str = "reward") -> Entry:
    values = {"ShopId": 1001, "MemberId": 2001} if group is None else group
    digest = group_digest(list(values.values()))
    return Entry(
        id=UUID(int=5),
        pipeline=pipeline,
        window=parse_window("2026-09-17T05:00:00Z"),
        group_digest=digest,
        content_hash=CONTENT,
        idempotency_key=idempotency_key(pipeline, "2026-09-17T05:00:00Z", digest, CONTENT, generation),
        generation=generation,
        records_n=2,
        group_json=canonical_json(values),
        destination=Destination(1, "Point", "RewardPoint", "reward-point", "bucket", "reward-dispatch/"),
    )


def test_the_key() -> None:
    digest = hashlib.sha256(b"[1001,2001]").hexdigest()[:32]
    wanted = f"reward-dispatch/reward/2026/09/17/05/{digest}/{CONTENT.hex()}-0.json"
    assert object_key(entry()) == wanted
    assert object_key(entry(generation=12)).endswith("-12.json")
    assert wanted.startswith(window_prefix("reward-dispatch/", "reward", parse_window("2026-09-17T05:00:00Z")))
    assert window_prefix("", "p", parse_window("2026-12-01T00:00:00Z")) == "p/2026/12/01/00/"


def test_the_document() -> None:
    one = entry()
    digest = hashlib.sha256(b"[1001,2001]").hexdigest()[:32]
    key = hashlib.sha256(
        json.dumps(["reward", "2026-09-17T05:00:00Z", digest, CONTENT.hex(), 0], separators=(",", ":")).encode()
    ).hexdigest()
    wanted = {
        "format": 1,
        "idempotency_key": key,
        "pipeline": "reward",
        "window": {"start": "2026-09-17T05:00:00Z", "end": "2026-09-17T06:00:00Z"},
        "generation": 0,
        "job": "RewardPoint",
        "group": {"ShopId": 1001, "MemberId": 2001},
        "content_hash": CONTENT.hex(),
        "records": [{"Id": "R2"}, {"Id": "R1"}],
    }
    assert document(one, b",".join(BODIES)) == json.dumps(wanted, sort_keys=True, separators=(",", ":")).encode()


NASTY = ['"records":[', 'x"records":[]', "\u0000", "ü😀\u2028", '\\"records":[', "]", '},"records":[{']


@pytest.mark.parametrize("value", NASTY)
def test_a_document_whose_group_looks_like_its_records(value: str) -> None:
    one = entry(group={"records": value, value: "records", "z": {"records": []}})
    for bodies in (BODIES, [b'{"Id":"\xc3\xbc","records":[],"window":{}}']):
        whole = document(one, b",".join(bodies))
        read = json.loads(whole)
        assert read["group"] == {"records": value, value: "records", "z": {"records": []}}
        assert read["records"] == [json.loads(body) for body in bodies]
        assert canonical_json(read) == whole


@pytest.mark.parametrize("parts", [[b"1"], [b"1", b"2"], [b"1,2", b"3", b"4,5"]])
def test_a_document_in_parts_is_the_document(parts: list[bytes]) -> None:
    assert b"".join(document_parts(entry(), iter(parts))) == document(entry(), b",".join(parts))


def test_the_message() -> None:
    one = entry(group={"ShopId": "ü😀\u0000\u001f\u007f\u2028", "MemberId": msgspec.Raw(b"1.5")}, generation=3)
    body = message_body(one)
    assert body.isascii()
    assert "\\u00fc\\ud83d\\ude00\\u0000\\u001f\x7f\\u2028" in body
    assert json.loads(body) == {
        "entry_id": str(UUID(int=5)),
        "idempotency_key": one.idempotency_key.hex(),
        "job": "RewardPoint",
        "pipeline": "reward",
        "window": {"start": "2026-09-17T05:00:00Z", "end": "2026-09-17T06:00:00Z"},
        "group": {"ShopId": "ü😀\u0000\u001f\u007f\u2028", "MemberId": 1.5},
        "object": {"bucket": "bucket", "key": object_key(one)},
        "content_hash": CONTENT.hex(),
        "records": 2,
        "generation": 3,
    }
    assert list(json.loads(body)) == sorted(json.loads(body))
    assert ": " not in body


def test_the_overhead_is_never_less_than_what_a_message_takes_beside_its_group() -> None:
    for group in ({}, {"ShopId": "x" * 100}, {"ShopId": "ü" * 50}):
        for generation in (0, 99):
            one = entry(group=group, generation=generation)
            group_bytes = len(json.dumps(group, separators=(",", ":")))
            assert len(message_body(one)) <= message_overhead_bytes(one) + group_bytes
