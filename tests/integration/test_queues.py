"""Each message of each try is told apart: accepted, failed, refused or unknown; and what becomes of its entry."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatch.run import Cancellation
from ledger import clock, receipts
from ledger.errors import CancelledError, UnavailableError
from ledger.leases import LeaseKeeper
from ledger.store import Store
from tests.aws_servers import World, booking
from tests.conftest import MakeRig
from tests.rig import Rig, all_records
from tests.wire import (
    Answer,
    FaultProxy,
    Rule,
    answer,
    callback,
    drop_after_effect,
    drop_before,
    hang,
    on,
    rewrite_json,
    status,
    throttle,
)

T = "2026-09-17T15:{:02d}:00Z"
SEND = on("SendMessageBatch")
SHORT = {"dispatch__lease": "4s"}  # so that a call waits one second for its answer


@pytest.fixture
def proxy(ministack: str) -> Iterator[FaultProxy]:
    with FaultProxy(ministack) as wire:
        yield wire


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.emit._FIRST_DELAY_S", 0.001)


@pytest.fixture
def three(rig: Rig) -> Rig:
    """Three groups of one record each, for one queue: one batch of three messages."""
    rig.world.put_many(booking(f"r{n}", T.format(n), member=n) for n in (1, 2, 3))
    return rig


def member_of(entry: Any) -> int:
    return int(json.loads(entry["MessageBody"])["group"]["MemberId"])


def refuse(member: int, code: str, *, sender_fault: bool) -> Any:
    """Take all messages of a batch but that of one member, which is answered as failed."""

    def action(request: Any, forward: Callable[[], Answer], closing: Any) -> Answer:
        wanted = request.json()
        ours = [one for one in wanted["Entries"] if member_of(one) == member]
        others = [one for one in wanted["Entries"] if member_of(one) != member]
        document = {
            "Successful": [{"Id": one["Id"], "MessageId": f"m-{one['Id']}", "MD5OfMessageBody": ""} for one in others],
            "Failed": [{"Id": one["Id"], "Code": code, "Message": "no", "SenderFault": sender_fault} for one in ours],
        }
        return Answer(200, [("Content-Type", "application/x-amz-json-1.0")], json.dumps(document).encode())

    return action


def outcomes(rig: Rig) -> list[tuple[Any, ...]]:
    """List the attempts as (record, number, outcome)."""
    return rig.rows(
        "SELECT convert_from(record_id, 'UTF8'), number, outcome FROM all_attempts JOIN claims USING (entry_id) "
        "ORDER BY 1, 2"
    )


def keys_of(messages: list[Any]) -> Counter[str]:
    return Counter(one["idempotency_key"] for one in messages)


# Refused for good


def test_a_refused_message_is_void_and_frees_its_claims_and_the_rest_goes_on(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, refuse(2, "InvalidMessageContents", sender_fault=True)))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert (report.counts.claimed, report.counts.entries, report.counts.confirmed) == (3, 3, 2)
    assert three.entry_states() == {"confirmed": 2, "void": 1}
    assert three.claimed() == ["r1", "r3"]
    assert three.findings() == [("unfinished", "refused", "open")]
    assert report.open_findings == 1
    assert proxy.count("SendMessageBatch") == 1  # one try a run
    three.assert_books_balance()
    report = three.run(endpoint=proxy.url)
    assert (report.outcome, report.counts.claimed, report.counts.already_claimed) == ("completed", 1, 2)
    assert three.findings() == [("unfinished", "refused", "open")]
    proxy.rules.clear()
    report = three.run(endpoint=proxy.url)
    assert (report.outcome, report.counts.confirmed, report.open_findings) == ("completed", 1, 0)
    assert three.findings() == [("unfinished", "refused", "closed")]
    assert three.claimed() == ["r1", "r2", "r3"]
    three.assert_books_balance()


@pytest.mark.parametrize(
    ("code", "kind"),
    [("InvalidMessageContents", "InvalidMessageContents"), ("InvalidParameterValue", "InvalidParameterValue")],
)
def test_a_call_refused_for_one_messages_content_is_narrowed_down(
    three: Rig, proxy: FaultProxy, code: str, kind: str
) -> None:
    """SQS refuses some contents by refusing the whole call."""

    def judge(wanted: Any) -> bytes | None:
        return b"" if any(member_of(one) == 2 for one in wanted["Entries"]) else None

    def action(request: Any, forward: Callable[[], Answer], closing: Any) -> Answer:
        if judge(request.json()) is None:
            return forward()
        headers = [("Content-Type", "application/x-amz-json-1.0"), ("x-amzn-query-error", f"{kind};Sender")]
        return Answer(400, headers, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": "no"}).encode())

    proxy.rules.append(Rule(SEND, action))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert three.entry_states() == {"confirmed": 2, "void": 1}
    assert three.findings() == [("unfinished", "refused", "open")]
    assert keys_of(three.world.messages("reward-point")).total() == 2


def test_a_message_refused_after_an_unknown_try_does_not_block_its_window(three: Rig, proxy: FaultProxy) -> None:
    """The queue will never take it, so it is void; only whether the first try got through is not known."""
    proxy.rules += [
        Rule(SEND, drop_before, times=1),
        Rule(SEND, refuse(2, "InvalidMessageContents", sender_fault=True)),
    ]
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert ("unfinished", "refused", "open") in three.findings()


# Failed for now


@pytest.mark.parametrize(
    ("code", "sender_fault"), [("InternalError", False), ("ServiceUnavailable", False), ("RequestThrottled", True)]
)
def test_a_failed_message_is_tried_again(three: Rig, proxy: FaultProxy, code: str, *, sender_fault: bool) -> None:
    proxy.rules.append(Rule(SEND, refuse(2, code, sender_fault=sender_fault), times=1))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert report.counts.confirmed == 3
    assert outcomes(three) == [("r1", 1, "accepted"), ("r2", 1, "failed"), ("r2", 2, "accepted"), ("r3", 1, "accepted")]
    assert three.findings() == []
    second = json.loads(proxy.requests[-1][1])
    assert [member_of(one) for one in second["Entries"]] == [2]


def test_a_message_that_fails_for_ever_fails_the_run_and_the_next_run_finishes_it(
    three: Rig, proxy: FaultProxy
) -> None:
    proxy.rules.append(Rule(SEND, refuse(2, "InternalError", sender_fault=False)))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "failed"
    assert isinstance(report.error, UnavailableError)
    assert three.entry_states() == {"confirmed": 2, "sending": 1}
    assert report.counts.confirmed == 2
    assert proxy.count("SendMessageBatch") == 5
    three.assert_books_balance()
    proxy.rules.clear()
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert (report.counts.recovered, report.counts.already_claimed, report.counts.claimed) == (1, 3, 0)
    assert three.entry_states() == {"confirmed": 3}
    assert three.findings() == []


def test_one_batch_that_fails_for_ever_does_not_keep_back_the_other_queue(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put_many([booking("p", T.format(1)), booking("e", T.format(2), type="ECoupon", member=9)])
    point = rig.world.queues["reward-point"].encode()
    proxy.rules.append(Rule(lambda request: SEND(request) and point in request.body, status(500, b"{}")))
    report = rig.run(endpoint=proxy.url)
    assert report.outcome == "failed"
    assert rig.entry_states() == {"confirmed": 1, "sending": 1}
    assert rig.world.message_count("reward-ecoupon") == 1


def test_throttled_and_then_fine(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, throttle, times=2))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert Counter(row[1:] for row in outcomes(three)) == {(1, "failed"): 3, (2, "failed"): 3, (3, "accepted"): 3}
    assert three.findings() == []
    assert three.world.message_count("reward-point") == 3


def test_the_sdk_does_not_try_again_by_itself(three: Rig, proxy: FaultProxy) -> None:
    """Each call is an attempt that the ledger knows."""
    proxy.rules.append(Rule(SEND, status(503, b"{}"), times=1))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert proxy.count("SendMessageBatch") == three.value("SELECT max(number) FROM all_attempts") == 2


# Unknown


def omit(member: int) -> Any:
    """Take every message, but do not mention that of one member."""

    def action(request: Any, forward: Callable[[], Answer], closing: Any) -> Answer:
        ids = {one["Id"] for one in request.json()["Entries"] if member_of(one) == member}

        def leave_out(document: Any) -> Any:
            document["Successful"] = [one for one in document["Successful"] if one["Id"] not in ids]
            return document

        rewritten = rewrite_json(leave_out)(request, forward, closing)
        assert rewritten is not None
        return rewritten

    return action


def assert_resent(rig: Rig, names: list[str], report: Any) -> None:
    """Check that these records' messages went out twice under one key, once known and once not."""
    assert report.outcome == "completed", report.error
    assert report.counts.confirmed == 3
    sent = keys_of(rig.world.messages("reward-point"))
    assert sorted(sent.values()) == [1] * (3 - len(names)) + [2] * len(names)
    expected = [(name, number, outcome) for name in names for number, outcome in ((1, "unknown"), (2, "accepted"))]
    assert [row for row in outcomes(rig) if row[0] in names] == expected
    assert rig.findings() == [("duplicate", "resent", "open")] * len(names)
    twice = {key for key, times in sent.items() if times == 2}
    assert {row[0] for row in rig.rows("SELECT encode(subject, 'hex') FROM findings")} == twice
    assert report.open_findings == len(names)
    rig.assert_books_balance()


def test_a_message_that_the_answer_omits_is_sent_once_more(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, omit(2), times=1))
    assert_resent(three, ["r2"], three.run(endpoint=proxy.url))
    assert three.finding_detail("duplicate")["verdict"] == "sent_twice"


def test_a_time_out_after_the_effect(three: Rig, proxy: FaultProxy) -> None:
    """Case 14 c."""
    proxy.rules.append(Rule(SEND, hang(300), times=1))
    assert_resent(three, ["r1", "r2", "r3"], three.run(endpoint=proxy.url, **SHORT))


def test_a_connection_lost_after_the_effect(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, drop_after_effect, times=1))
    assert_resent(three, ["r1", "r2", "r3"], three.run(endpoint=proxy.url))


def garbled(body: bytes, code: int = 200) -> Any:
    """Let the request take effect, and answer nonsense."""

    def action(request: Any, forward: Callable[[], Answer], closing: Any) -> Answer:
        forward()
        return Answer(code, [("Content-Type", "application/x-amz-json-1.0")], body)

    return action


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"", b"null", b"[]", b'{"Successful": null, "Failed": null}'])
def test_an_answer_that_says_nothing(three: Rig, proxy: FaultProxy, body: bytes) -> None:
    proxy.rules.append(Rule(SEND, garbled(body), times=1))
    assert_resent(three, ["r1", "r2", "r3"], three.run(endpoint=proxy.url))


def test_an_error_of_the_service_may_come_after_the_effect(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, garbled(b'{"__type": "InternalFailure"}', 500), times=1))
    assert_resent(three, ["r1", "r2", "r3"], three.run(endpoint=proxy.url))


def test_an_unknown_message_is_sent_at_most_once_more_a_run(three: Rig, proxy: FaultProxy) -> None:
    """And the next run sends it once again, no more: each try may become a message."""
    proxy.rules.append(Rule(SEND, drop_after_effect))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "failed"
    assert proxy.count("SendMessageBatch") == 2
    assert three.entry_states() == {"sending": 3}
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "failed"
    assert proxy.count("SendMessageBatch") == 3
    proxy.rules.clear()
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert report.counts.recovered == 3
    assert set(keys_of(three.world.messages("reward-point")).values()) == {4}
    assert three.findings() == [("duplicate", "resent", "open")] * 3
    three.assert_books_balance()


def test_what_was_lost_before_the_effect_is_one_message_although_we_cannot_know(three: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, drop_before, times=1))
    report = three.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert set(keys_of(three.world.messages("reward-point")).values()) == {1}
    detail = [json.loads(row[0]) for row in three.rows("SELECT detail FROM findings WHERE kind = 'duplicate'")]
    assert len(detail) == 3
    assert not any(one["proven"] for one in detail)


def test_an_unknown_entry_is_sent_again_although_its_record_is_no_longer_due(three: Rig, proxy: FaultProxy) -> None:
    """It may have been sent; so its promise is kept, under the same key."""
    proxy.rules.append(Rule(SEND, drop_after_effect))
    assert three.run(endpoint=proxy.url).outcome == "failed"
    three.world.update("r1", RewardStatus="Rewarded")
    proxy.rules.clear()
    report = three.run(endpoint=proxy.url)
    assert (report.outcome, report.counts.recovered) == ("completed", 3)
    assert len(keys_of(three.world.messages("reward-point"))) == 3


# FIFO


@pytest.fixture
def ordered(ministack: str, make_rig: MakeRig) -> Rig:
    """The same three groups on FIFO queues."""
    rig = make_rig(World(ministack, fifo=True))
    rig.world.put_many(booking(f"r{n}", T.format(n), member=n) for n in (1, 2, 3))
    return rig


def test_a_fifo_queue_gets_group_and_deduplication_ids(ordered: Rig) -> None:
    assert ordered.run().outcome == "completed"
    received = ordered.world.receive_all("reward-point")
    assert len(received) == 3
    for one in received:
        body = json.loads(one["Body"])
        assert one["Attributes"]["MessageDeduplicationId"] == body["idempotency_key"]
        digest = one["Attributes"]["MessageGroupId"]
        assert f"/{digest}/" in body["object"]["key"]
        assert len(digest) == 32


def test_a_fifo_queue_drops_what_is_sent_again_within_five_minutes(ordered: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, drop_after_effect, times=1))
    report = ordered.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert set(keys_of(ordered.world.messages("reward-point")).values()) == {1}
    assert ordered.findings() == [("duplicate", "resent", "acknowledged")] * 3
    assert report.open_findings == 0
    details = [json.loads(row[0]) for row in ordered.rows("SELECT detail FROM findings")]
    assert {one["verdict"] for one in details} == {"prevented"}


def test_a_fifo_queue_that_is_sent_again_later_may_have_it_twice(ordered: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(SEND, drop_after_effect))
    assert ordered.run(endpoint=proxy.url).outcome == "failed"
    ordered.tell("UPDATE open_attempts SET marked_at = marked_at - interval '301 seconds'")
    proxy.rules.clear()
    report = ordered.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert ordered.findings() == [("duplicate", "resent", "open")] * 3
    assert report.open_findings == 3


# Sizes


def test_messages_are_sent_in_calls_of_ten_at_the_most(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put_many(booking(f"r{n}", T.format(n), member=n) for n in range(23))
    assert rig.run(endpoint=proxy.url).outcome == "completed"
    sizes = [len(json.loads(body)["Entries"]) for name, body in proxy.requests if name.endswith("SendMessageBatch")]
    assert sorted(sizes) == [3, 10, 10]
    assert rig.world.message_count("reward-point") == 23


def test_large_messages_are_sent_in_calls_of_one_mebibyte_at_the_most(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put_many(booking(f"r{n}", T.format(n), shop=f"{n}" + "x" * 390_000) for n in range(5))
    report = rig.run(endpoint=proxy.url)
    assert report.outcome == "completed", report.error
    assert report.counts.confirmed == 5
    for name, body in proxy.requests:
        if name.endswith("SendMessageBatch"):
            assert sum(len(one["MessageBody"]) for one in json.loads(body)["Entries"]) <= 1024 * 1024


# Cancelled and stalled


def test_cancelled_between_upload_and_send(three: Rig, proxy: FaultProxy) -> None:
    """Case 20: nothing is sent any more, and the next run sends it."""
    cancellation = Cancellation()
    proxy.rules.append(Rule(on("PUT object"), callback(lambda request: cancellation.ask(15))))
    report = three.run(endpoint=proxy.url, cancellation=cancellation)
    assert report.outcome == "cancelled"
    assert isinstance(report.error, CancelledError)
    assert proxy.count("SendMessageBatch") == 0
    assert three.entry_states() == {"pending": 3}
    report = three.run()
    assert (report.outcome, report.counts.recovered) == ("completed", 3)
    assert set(keys_of(three.world.messages("reward-point")).values()) == {1}


def test_cancelled_while_a_send_is_on_its_way(three: Rig, proxy: FaultProxy) -> None:
    """What was sent stays confirmed."""
    cancellation = Cancellation()
    proxy.rules.append(Rule(SEND, callback(lambda request: cancellation.ask(2))))
    report = three.run(endpoint=proxy.url, cancellation=cancellation)
    assert report.outcome == "cancelled"
    assert three.entry_states() == {"confirmed": 3}
    assert report.counts.confirmed == 3
    assert three.rows("SELECT outcome, confirmed FROM runs") == [("cancelled", 3)]
    assert three.value("SELECT completed_at FROM windows") is None
    report = three.run()
    assert (report.outcome, report.counts.claimed, report.counts.already_claimed) == ("completed", 0, 3)
    assert set(keys_of(three.world.messages("reward-point")).values()) == {1}


def test_cancelled_on_page_two_of_five(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put_many(booking(f"r{n}", T.format(n), member=n) for n in range(5))
    cancellation = Cancellation()
    proxy.rules.append(Rule(on("Query"), callback(lambda request: cancellation.ask(15)), skip=1, times=1))
    report = rig.run("paged", endpoint=proxy.url, cancellation=cancellation, dispatch__page_size="1")
    assert report.outcome == "cancelled"
    assert (rig.claimed(), proxy.count("Query")) == (["r0"], 2)
    report = rig.run("paged", dispatch__page_size="1")
    assert (report.outcome, report.counts.claimed, report.counts.already_claimed) == ("completed", 4, 1)
    assert all_records(rig.world.objects()) == [f"r{n}" for n in range(5)]


def steal(rig: Rig) -> Any:
    """Let the lease run out and another run take the window, at a request."""

    def act(request: Any) -> None:
        rig.tell("UPDATE windows SET lease_until = ledger_now() - interval '1 s'")
        stolen.append(rig.run().outcome)

    stolen: list[str] = []
    return stolen, act


def test_stalled_before_the_send_was_marked_and_taken_over(three: Rig, proxy: FaultProxy) -> None:
    """Case 15: nothing twice."""
    stolen, act = steal(three)
    proxy.rules.append(Rule(on("PUT object"), callback(act), times=1))
    report = three.run(endpoint=proxy.url)
    assert (stolen, report.outcome) == (["completed"], "failed")
    assert "lease" in str(report.error)
    assert set(keys_of(three.world.messages("reward-point")).values()) == {1}
    assert three.entry_states() == {"confirmed": 3}
    assert three.findings() == []
    outcomes_of = "SELECT outcome FROM runs ORDER BY started_at"
    assert three.rows(outcomes_of) == [("failed",), ("completed",)]
    three.assert_books_balance()


def test_stalled_after_the_send_was_marked_and_taken_over(three: Rig, proxy: FaultProxy) -> None:
    """Case 15: at most one more message under the same key, reported."""
    stolen, act = steal(three)
    proxy.rules.append(Rule(SEND, callback(act), times=1))
    report = three.run(endpoint=proxy.url)
    assert (stolen, report.outcome) == (["completed"], "failed")
    assert set(keys_of(three.world.messages("reward-point")).values()) == {2}
    assert three.entry_states() == {"confirmed": 3}
    assert three.findings() == [("duplicate", "resent", "open")] * 3
    three.assert_books_balance()


def test_a_lease_that_ends_before_a_call_would_sends_nothing(
    three: Rig, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still lasts, but not for as long as a call may take, and nobody renews it."""
    keepers: list[LeaseKeeper] = []

    def keep_only(keeper: LeaseKeeper) -> None:
        keepers.append(keeper)

    def run_down(_: Any) -> None:
        keepers[0]._renewed_s = clock.monotonic_s() - 3.3

    monkeypatch.setattr(LeaseKeeper, "start", keep_only)
    proxy.rules.append(Rule(on("PUT object"), callback(run_down), times=1))
    report = three.run(endpoint=proxy.url, **SHORT)
    assert (report.outcome, proxy.count("SendMessageBatch")) == ("failed", 0)
    assert "lost its lease" in str(report.error)


def test_what_is_confirmed_while_it_is_recovered_is_not_sent(three: Rig, proxy: FaultProxy) -> None:
    """The run before has stalled, and learns that its messages were taken just before they are marked once more."""

    def confirm(_: Any) -> None:
        three.tell(
            "INSERT INTO attempts (entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, "
            "object_etag, message_id) SELECT entry_id, number, fence, marked_at, ledger_now(), 'accepted', "
            "object_bytes, object_etag, 'm' FROM open_attempts"
        )
        three.tell("DELETE FROM open_attempts")
        three.tell("DELETE FROM payload_parts")

    proxy.rules.append(Rule(SEND, drop_after_effect))
    assert three.run(endpoint=proxy.url).outcome == "failed"
    three.world.messages("reward-point")
    proxy.rules[:] = [Rule(on("PUT object"), callback(confirm), times=1)]
    report = three.run(endpoint=proxy.url)
    assert (report.outcome, report.counts.recovered) == ("completed", 0)
    assert three.world.messages("reward-point") == []
    three.assert_books_balance()


def test_what_a_consumer_has_taken_up_is_not_sent_again(three: Rig, proxy: FaultProxy) -> None:
    """The answers are lost; of one job a consumer's receipt proves that it was sent."""
    proxy.rules.append(Rule(SEND, drop_after_effect))
    assert three.run(endpoint=proxy.url).outcome == "failed"
    taken, *unheard = sorted(keys_of(three.world.messages("reward-point")))
    with Store(three.url) as store:
        receipts.take(store, "reward", bytes.fromhex(taken), "w", timedelta(minutes=1))
    report = three.run()
    assert (report.outcome, report.counts.recovered) == ("completed", 3)
    assert sorted(keys_of(three.world.messages("reward-point"))) == unheard


def test_nothing_is_answered_by_accident(proxy: FaultProxy) -> None:
    """The helper that the tests above lean on: a rule without a document lets the request pass."""
    proxy.rules.append(Rule(SEND, answer(lambda request: None)))
    assert proxy.rules[0].used == 0
