"""What an answer says of one message, and how messages are cut into calls."""

from typing import Any

import pytest

from dispatch.aws.queues import Message, Queue, _answer_of, _batch_entry, _batches
from ledger.facts import SendAnswer

MIB = 1024 * 1024


def failed(code: str, *, sender_fault: bool) -> dict[str, Any]:
    return {"Failed": [{"Id": "3", "Code": code, "Message": "why", "SenderFault": sender_fault}]}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"Successful": [{"Id": "3", "MessageId": "m-3"}]}, "accepted"),
        ({"Successful": [{"Id": "1", "MessageId": "m-1"}, {"Id": "3", "MessageId": "m-3"}], "Failed": []}, "accepted"),
        (failed("InvalidMessageContents", sender_fault=True), "refused"),
        (failed("InvalidParameterValue", sender_fault=True), "refused"),
        (failed("InternalError", sender_fault=False), "failed"),
        (failed("ServiceUnavailable", sender_fault=False), "failed"),
        (failed("RequestThrottled", sender_fault=True), "failed"),
        (failed("ThrottlingException", sender_fault=True), "failed"),
        (failed("AccessDenied", sender_fault=True), "failed"),
        (failed("KMS.AccessDeniedException", sender_fault=True), "failed"),
        ({"Failed": [{"Id": "3", "Code": "X"}]}, "failed"),
        ({"Failed": [{"Id": "3"}]}, "failed"),
        ({}, "unknown"),
        ({"Successful": [], "Failed": []}, "unknown"),
        ({"Successful": [{"Id": "30", "MessageId": "m"}], "Failed": [{"Id": "33", "Code": "X"}]}, "unknown"),
    ],
)
def test_what_became_of_a_message(answer: dict[str, Any], outcome: str) -> None:
    got = _answer_of("3", answer)
    assert got.outcome == outcome
    assert (got.message_id is not None) == (outcome == "accepted")
    assert (got.error is not None) == (outcome != "accepted")


def test_the_reason_is_kept() -> None:
    assert _answer_of("3", failed("InvalidMessageContents", sender_fault=True)) == SendAnswer(
        "refused", error="InvalidMessageContents: why"
    )


def sizes(*lengths: int) -> list[list[int]]:
    messages = [Message("x" * length, "g", str(at)) for at, length in enumerate(lengths)]
    return [[int(message.deduplication_id) for message in batch] for batch in _batches(messages)]


def test_ten_messages_a_call() -> None:
    assert sizes() == []
    assert sizes(*[5] * 10) == [list(range(10))]
    assert sizes(*[5] * 11) == [list(range(10)), [10]]
    assert [len(batch) for batch in sizes(*[5] * 25)] == [10, 10, 5]


def test_one_mebibyte_a_call() -> None:
    assert sizes(MIB) == [[0]]
    assert sizes(MIB, 1) == [[0], [1]]
    assert sizes(MIB // 2, MIB // 2) == [[0, 1]]
    assert sizes(MIB // 2, MIB // 2 + 1) == [[0], [1]]
    assert sizes(1, MIB - 1, 1, MIB) == [[0, 1], [2], [3]]


def test_only_a_fifo_queue_gets_group_and_deduplication_id() -> None:
    message = Message("body", "group", "key")
    assert _batch_entry(4, message, Queue("plain", "url", MIB)) == {"Id": "4", "MessageBody": "body"}
    assert _batch_entry(4, message, Queue("q.fifo", "url", MIB)) == {
        "Id": "4",
        "MessageBody": "body",
        "MessageGroupId": "group",
        "MessageDeduplicationId": "key",
    }


def test_a_queue_named_by_its_url_is_fifo_by_its_end() -> None:
    assert Queue("https://sqs.eu-west-1.amazonaws.com/1/q.fifo", "u", MIB).fifo
    assert not Queue("https://sqs.eu-west-1.amazonaws.com/1/q", "u", MIB).fifo
