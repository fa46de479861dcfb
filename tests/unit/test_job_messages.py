"""Messages and objects that fit each other, and all that do not; how long a message is hidden; who may receive."""

import json
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from dispatch import payload
from dispatch.jobs import UnfitError, check_document, decode_document, parse_message
from dispatch.shift import Quota, held_delay_s, retry_delay_s
from ledger import canonical
from ledger.facts import Destination, Entry
from ledger.instants import parse_window

RECORDS = [b'{"Id":"a","N":1.10}', b'{"Id":"b","half":"\\ud800","nul":"\\u0000"}']


def entry(records: list[bytes]) -> Entry:
    window, digest = parse_window("2026-09-17T15:00:00Z"), canonical.group_digest([1, msgspec.Raw(b"0.10")])
    content = canonical.content_hash(records)
    return Entry(
        id=UUID(int=7),
        pipeline="reward",
        window=window,
        group_digest=digest,
        content_hash=content,
        idempotency_key=canonical.idempotency_key("reward", window.name, digest, content, 0),
        generation=0,
        records_n=len(records),
        group_json=b'{"A":1,"B":0.10}',
        destination=Destination(0, "Point", "RewardPoint", "q", "bucket", "p/"),
    )


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1]], ids=["with half a character", "plain"])
def test_what_the_product_sends_fits(records: list[bytes]) -> None:
    sent = entry(records)
    message = parse_message(payload.message_body(sent))
    assert (message.key, message.entry_id, message.records) == (sent.idempotency_key, sent.id, len(records))
    check_document(payload.document(sent, b",".join(records)), message)


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(payload.message_body(entry(RECORDS))), **changes})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "not JSON"),
        ("x" * 1_048_577, "bytes"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a job"),
        ('"\\ud800"', "not a job"),
        (changed(entry_id="7"), "not a job"),
        (changed(idempotency_key="0" * 64), "idempotency key"),
        (changed(content_hash="0" * 64), "idempotency key"),
        (changed(content_hash="\ud800"), "not a job|idempotency key"),
        (changed(pipeline="other"), "idempotency key"),
        (changed(pipeline="nul\0"), "idempotency key"),
        (changed(generation=1), "idempotency key"),
        (changed(window={"start": "2026-09-17T16:00:00Z", "end": ""}), "idempotency key"),
        (changed(window={"start": "\ud800", "end": ""}), "not a job|idempotency key"),
        (changed(object={"bucket": "b", "key": "flat"}), "idempotency key"),
        (changed(object={"bucket": "b", "key": f"p/{'0' * 32}/x"}), "idempotency key"),
        (changed(records="2"), "not a job"),
    ],
)
def test_messages_that_are_none(body: str, said: str) -> None:
    with pytest.raises(UnfitError, match=said) as refused:
        parse_message(body)
    assert "2026" not in str(refused.value), "nothing of what is in it"


def document(**changes: Any) -> bytes:
    good = json.loads(payload.document(entry(RECORDS[:1]), RECORDS[0]), parse_float=float)
    return json.dumps({**good, **changes}).encode()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no document"),
        (b"[]", "no document"),
        (b"[" * 100_000, "no document"),
        (b"{}", "no document"),
        (document(records={}), "no document"),
        (document(records=[]), "content hash"),
        (document(records=[{"Id": "a"}]), "content hash"),
        (document(format=2), "format 1"),
        (document(group={"A": 1, "B": 0.11}), "group differ"),
        (document(job="RewardECoupon"), "another job: job differ"),
        (document(idempotency_key="0" * 64), "idempotency_key"),
    ],
)
def test_documents_of_another_job(body: bytes, said: str) -> None:
    message = parse_message(payload.message_body(entry(RECORDS[:1])))
    with pytest.raises(UnfitError, match=said):
        check_document(body, message)


def test_records_that_were_altered_are_noticed() -> None:
    sent = entry(RECORDS)
    message = parse_message(payload.message_body(sent))
    whole = b",".join(RECORDS)
    for other in (whole.replace(b"1.10", b"1.11"), b",".join(RECORDS[::-1]), whole + b"," + RECORDS[0]):
        with pytest.raises(UnfitError, match="content hash"):
            check_document(payload.document(sent, other), message)
    check_document(payload.document(sent, whole), message)


def test_a_message_that_counts_other_records_than_it_promises_is_named_as_the_fault() -> None:
    sent = entry(RECORDS)
    message = parse_message(changed(records=5))
    with pytest.raises(UnfitError, match=r"^its object has 2 records as promised, but the message counts 5$"):
        check_document(payload.document(sent, b",".join(RECORDS)), message)


def test_numbers_keep_their_digits() -> None:
    assert str(decode_document(b"[12345678901234567890123456789012345678, 1.10, -0.5]")) == (
        "[12345678901234567890123456789012345678, Decimal('1.10'), Decimal('-0.5')]"
    )


def test_waits_grow() -> None:
    assert [retry_delay_s(received) for received in (1, 2, 3, 4, 10, 11, 5000)] == [1, 2, 4, 8, 512, 900, 900]
    assert held_delay_s(1, timedelta(seconds=50)) == 51
    assert [held_delay_s(received, timedelta()) for received in (1, 2, 3, 9)] == [30, 60, 120, 900]


def test_no_more_are_received_than_were_asked_for() -> None:
    quota, stop = Quota(2), threading.Event()
    assert quota.reserve(stop)
    assert quota.reserve(stop)
    waiting = threading.Thread(target=lambda: answers.append(quota.reserve(stop)))
    answers: list[bool] = []
    waiting.start()
    quota.settle(handled=False)
    waiting.join(30)
    assert answers == [True], "what came back empty may be tried by another"
    quota.settle(handled=True)
    quota.settle(handled=True)
    assert not quota.reserve(stop)
    stop.set()
    assert not Quota(None).reserve(stop)
