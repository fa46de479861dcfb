"""A consumer against a real ledger and emulated queues: each job once, whatever comes twice or broken."""

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog

from dispatch import payload
from dispatch.aws.inbox import Inbox
from dispatch.aws.session import Session
from dispatch.consumer import Consumer, Summary
from dispatch.outages import Outage
from dispatch.working import Job, Keeper, _failing
from ledger import canonical, outbox, receipts
from ledger.clock import monotonic_s
from ledger.errors import InputError, UnavailableError
from ledger.facts import Destination, Group, SendAnswer
from ledger.leases import Tenure
from ledger.receipts import GoAhead
from ledger.store import Connection, Store
from tests import ledger_kit as kit
from tests.aws_servers import World, booking
from tests.breaking import Database, LostAnswer
from tests.conftest import MakeRig
from tests.product import until
from tests.rig import Rig

MINUTE = timedelta(minutes=1)
QUEUE = "reward-point"
MEMBER = 2001


@cache
def session(endpoint: str, region: str, *, embedded: bool) -> Session:
    made = Session(endpoint, region, embedded=embedded)
    made.client = cache(made.client)  # type: ignore[method-assign]
    return made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed comes again at once, an empty queue is not waited at for long, and clients are made once."""
    monkeypatch.setattr("dispatch.consumer.Session", session)
    monkeypatch.setattr("dispatch.consumer.schema.require_head", lambda url: None)
    monkeypatch.setattr("dispatch.shift.retry_delay_s", lambda received: 0)
    monkeypatch.setattr("dispatch.shift._PAUSE_MAX_S", 0.01)
    monkeypatch.setattr("dispatch.aws.inbox._WAIT_S", 1)


@pytest.fixture
def effects() -> list[str]:
    """The keys of the jobs that a handler was called for."""
    return []


@pytest.fixture
def note(effects: list[str]) -> Callable[[Any], Any]:
    """A handler that notes whom it was called for."""

    def handler(document: Any) -> Any:
        effects.append(document["idempotency_key"])
        return {"records": len(document["records"])}

    return handler


def send(rig: Rig, *names: str, **more: Any) -> list[str]:
    """Do what a dispatch does: a job of one record for each name; gives the idempotency keys."""
    world, queue = rig.world, rig.world.queues[QUEUE]
    with Store(rig.url) as store:
        tenure = kit.take(store, pipeline="reward")
        place = Destination(0, "Point", "RewardPoint", queue, world.bucket, "jobs/")
        routes = outbox.destinations(store, tenure.pipeline_id, [place])
        groups = [one_group(tenure, name, at, more) for at, name in enumerate(names)]
        entries = outbox.open_entries(store, tenure, groups, routes).entries
        for entry in entries:
            (body,) = [one.records[0].body for one in groups if one.digest == entry.group_digest]
            world.s3.put_object(Bucket=world.bucket, Key=payload.object_key(entry), Body=payload.document(entry, body))
        for entry in outbox.mark_sending(store, tenure, [kit.uploaded(one) for one in entries]):
            key = entry.idempotency_key.hex()
            fifo: Any = {"MessageGroupId": "g", "MessageDeduplicationId": key} if world.fifo else {}
            world.sqs.send_message(QueueUrl=world.queue_url(QUEUE), MessageBody=payload.message_body(entry), **fifo)
            outbox.record_answers(store, tenure, [(entry, SendAnswer("accepted", message_id="m"))])
    return [entry.idempotency_key.hex() for entry in entries]


def one_group(tenure: Tenure, name: str, at: int, more: dict[str, Any]) -> Group:
    record = kit.record(name, tenure.window, at, group=at)
    body = canonical.canonical_json({"Id": name, "MemberId": MEMBER, **more})
    values = canonical.canonical_json({"MemberId": MEMBER, "Number": at})
    digest = canonical.group_digest([MEMBER, at])
    return Group(digest=digest, values_json=values, route="Point", records=[msgspec.structs.replace(record, body=body)])


def consume(
    rig: Rig, handler: Any, messages: int | None, stop: threading.Event | None = None, **options: Any
) -> Summary:
    consumer = Consumer(rig.settings(), rig.world.queues[QUEUE], handler, ledger_url=rig.url, **options)
    chosen = stop or threading.Event()
    at_last = threading.Timer(60, chosen.set)  # so that a test that fails does not wait for ever
    at_last.start()
    try:
        return consumer.run(max_messages=messages, stop=chosen, drain=timedelta(seconds=0.5))
    finally:
        at_last.cancel()


def counts(summary: Summary) -> dict[str, int]:
    return {name: count for name, count in summary.counts.items() if count}


def receipt_rows(rig: Rig) -> list[tuple[Any, ...]]:
    return rig.rows("SELECT state, attempts, result, reason FROM receipts ORDER BY state, reason")


def body_of(rig: Rig) -> str:
    """Take one message out of the queue; gives its body."""
    (message,) = rig.world.receive_all(QUEUE)
    return str(message["Body"])


def put_back(rig: Rig, body: str) -> None:
    rig.world.sqs.send_message(QueueUrl=rig.world.queue_url(QUEUE), MessageBody=body)


@pytest.fixture(params=["ministack", "moto"])
def either(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """A world of each kind of emulator."""
    return make_rig(World(request.getfixturevalue(request.param)))


def test_jobs_are_worked_and_their_messages_dropped(either: Rig, effects: list[str], note: Any) -> None:
    keys = send(either, "a", "b", "c", "d", "e")
    assert counts(consume(either, note, 5, concurrency=3)) == {"completed": 5}
    assert sorted(effects) == sorted(keys)
    assert Counter(receipt_rows(either)) == {("completed", 1, '{"records":1}', None): 5}
    assert either.world.message_count(QUEUE) == 0
    assert "process" in either.value("SELECT min(worker) FROM receipts")


@pytest.fixture(params=["twice in the queue", "after five minutes"])
def twice(request: pytest.FixtureRequest, ministack: str, make_rig: Any) -> Rig:
    """A world whose queue will have the same job twice; a FIFO queue takes a repeat after a while."""
    return make_rig(World(ministack, fifo=request.param == "after five minutes"))  # type: ignore[no-any-return]


def test_case_8_a_resend_after_five_minutes_has_one_effect(twice: Rig, effects: list[str], note: Any) -> None:
    (key,) = send(twice, "a")
    (message,) = twice.world.receive_all(QUEUE)
    url = twice.world.queue_url(QUEUE)
    for number in range(3):
        late = {"MessageGroupId": "g", "MessageDeduplicationId": f"{key[:32]}{number}"} if twice.world.fifo else {}
        twice.world.sqs.send_message(QueueUrl=url, MessageBody=message["Body"], **late)
    assert counts(consume(twice, note, 3)) == {"completed": 1, "already_completed": 2}
    assert effects == [key]
    assert twice.world.message_count(QUEUE) == 0


def test_a_message_that_was_not_deleted_is_dropped_when_it_comes_again(
    rig: Rig, effects: list[str], note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a")
    body = body_of(rig)
    put_back(rig, body)
    with monkeypatch.context() as patch:
        patch.setattr("dispatch.aws.inbox.Inbox.delete", unavailable)
        assert counts(consume(rig, note, 1)) == {"completed": 1}
    put_back(rig, body)
    assert counts(consume(rig, note, 1)) == {"already_completed": 1}
    assert len(effects) == 1


def unavailable(*_: object, **__: object) -> Any:
    raise UnavailableError("no answer")


def test_a_replaced_job_is_dropped_without_work(rig: Rig, effects: list[str], note: Any) -> None:
    send(rig, "a")
    rig.tell(
        "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, attempts, finished_at) "
        "SELECT pipeline_id, idempotency_key, window_id, 'superseded', 0, ledger_now() "
        "FROM entries JOIN windows ON windows.id = window_id"
    )
    assert counts(consume(rig, note, 1)) == {"superseded": 1}
    assert (effects, rig.world.message_count(QUEUE)) == ([], 0)
    assert receipt_rows(rig) == [("superseded", 0, None, None)]


def test_a_job_that_was_redone_is_not_worked_when_its_dead_letter_comes_back(
    rig: Rig, effects: list[str], note: Any
) -> None:
    world, window = rig.world, "2026-09-17T15:00:00Z"
    world.put(booking("r1", "2026-09-17T15:10:00Z"))
    assert rig.run().outcome == "completed"
    dead = world.sqs.create_queue(QueueName=f"{world.queues[QUEUE]}-dead")["QueueUrl"]
    place = world.sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": place, "maxReceiveCount": 1})
    world.sqs.set_queue_attributes(QueueUrl=world.queue_url(QUEUE), Attributes={"RedrivePolicy": policy})

    def fail(_: Any) -> Any:
        raise RuntimeError("the coupon service is down")

    assert counts(consume(rig, fail, 1)) == {"failed": 1}
    assert world.receive_all(QUEUE) == [], "its second receive sends it to the dead letters"
    applied = rig.apply(rig.plan(window))
    assert (applied.error, receipt_rows(rig)[0][:2]) == (None, ("superseded", 1))
    assert counts(consume(rig, note, 1)) == {"completed": 1}
    (letter,) = world.sqs.receive_message(QueueUrl=dead)["Messages"]
    put_back(rig, letter["Body"])
    assert counts(consume(rig, note, 1)) == {"superseded": 1}
    assert len(effects) == 1
    (twice,) = applied.document["reconcile"]["windows"][0]["findings"]
    assert (twice["cause"], twice["state"]) == ("redo", "acknowledged")
    assert rig.reconcile(window)["open"] == 1, "the source still says that r1 waits, though it was worked"


def test_a_job_that_another_worker_has_waits_for_it(
    rig: Rig, effects: list[str], note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.shift._HELD_FIRST_S", 0)
    monkeypatch.setattr("dispatch.shift.held_delay_s", lambda received, remaining: 0)
    (key,) = send(rig, "a")
    with Store(rig.url) as store:
        assert isinstance(receipts.take(store, "reward", bytes.fromhex(key), "other", MINUTE), GoAhead)
    assert counts(consume(rig, note, 2)) == {"held": 2}
    assert effects == []
    rig.tell("UPDATE receipts SET expires_at = ledger_now() - interval '1 second'")
    assert counts(consume(rig, note, 1)) == {"completed": 1}
    assert receipt_rows(rig) == [("completed", 2, '{"records":1}', None)]


def dead_letters(world: World, *, after: int = 3) -> str:
    """Give the queue a dead-letter queue, and a short time to work; gives the former's name."""
    name = f"dead-{world.suffix}"
    url = world.sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = world.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": after})
    world.sqs.set_queue_attributes(
        QueueUrl=world.queue_url(QUEUE), Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "3"}
    )
    return name


def dead(world: World, name: str) -> list[str]:
    """Let the queue put away what was received too often; gives the bodies."""
    world.sqs.receive_message(QueueUrl=world.queue_url(QUEUE), WaitTimeSeconds=0)
    return [message["Body"] for message in world.receive_all(name)]


def broken_bodies(good: str) -> list[str]:
    """Messages that are none of ours, or are not what the product has sent."""
    document = json.loads(good)
    other = {**document["object"], "key": document["object"]["key"].replace("-0.json", "-1.json").replace("/1", "/2")}
    return [
        "not JSON",
        "[" * 100_000,
        json.dumps({"hello": "world"}),
        json.dumps({**document, "content_hash": "0" * 64}),
        json.dumps({**document, "generation": 1}),
        json.dumps({**document, "pipeline": "other"}),
        json.dumps({**document, "object": {**other, "key": "short"}}),
        json.dumps({**document, "records": "1"}),
    ]


def test_messages_that_are_none_are_left_to_the_redrive_policy(rig: Rig, effects: list[str], note: Any) -> None:
    name = dead_letters(rig.world)
    (key,) = send(rig, "a")
    good = body_of(rig)
    broken = broken_bodies(good)
    for body in (*broken, good):
        put_back(rig, body)
    with structlog.testing.capture_logs() as lines:
        summary = consume(rig, note, 3 * len(broken) + 1)
    assert counts(summary) == {"completed": 1, "unreadable": 3 * len(broken)}
    assert effects == [key]
    assert Counter(dead(rig.world, name)) == Counter(broken)
    assert len([line for line in lines if "redrive" in line["event"]]) == 3 * len(broken)
    assert "2001" not in str(lines), "nothing of a member in the log"
    assert len(receipt_rows(rig)) == 1


def test_a_key_that_the_ledger_does_not_have_is_never_dropped(rig: Rig, effects: list[str], note: Any) -> None:
    name = dead_letters(rig.world)
    send(rig, "a")
    body = body_of(rig)
    put_back(rig, body)
    for table in ("payload_parts", "attempts", "claims", "entries"):
        rig.tell(f"DELETE FROM {table}")
    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, note, 3)) == {"unknown_key": 3}
    assert "no promise" in str(lines)
    assert (effects, dead(rig.world, name)) == ([], [body])


def test_an_attempt_that_fails_is_told_and_comes_again(rig: Rig, note: Any) -> None:
    send(rig, "a")
    failing = [ValueError("member 2001 is unknown"), SystemError("once more")]

    def handler(document: Any) -> Any:
        if failing:
            raise failing.pop(0)
        return note(document)

    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, handler, 1)) == {"failed": 1}
    assert receipt_rows(rig) == [("failed", 1, None, "ValueError: member 2001 is unknown")]
    assert "2001" not in str(lines), "what an exception says may name a member"
    assert counts(consume(rig, handler, 2)) == {"failed": 1, "completed": 1}
    assert receipt_rows(rig) == [("completed", 3, '{"records":1}', None)]


@pytest.mark.parametrize("redrive", [True, False], ids=["dead letters", "none"])
def test_after_three_attempts_the_redrive_policy_decides(
    either: Rig, *, redrive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = either
    delays: list[int] = []
    monkeypatch.setattr("dispatch.shift.retry_delay_s", lambda received: delays.append(received) or 0)
    name = dead_letters(rig.world) if redrive else ""
    send(rig, "a")

    def handler(document: Any) -> Any:
        raise ValueError("never")

    with structlog.testing.capture_logs() as lines:
        consume(rig, handler, 3)
    assert receipt_rows(rig) == [("failed", 3, None, "ValueError: never")]
    said = [line["next"] for line in lines if line["event"] == "attempt failed"]
    warned = [line for line in lines if "no redrive policy" in line["event"]]
    if redrive:
        assert "redrive policy" in said[2]
        assert (len(dead(rig.world, name)), warned) == (1, [])
    else:
        assert "no redrive policy" in said[2]
        assert len(warned) == 1
        assert delays == [1, 2, 3], "each time hidden for longer"


def test_an_object_that_is_not_what_was_promised_is_not_worked(rig: Rig, effects: list[str], note: Any) -> None:
    send(rig, "a")
    world = rig.world
    ((key, body),) = world.objects().items()
    good = json.loads(body)
    spoilt = {**good, "records": [{**good["records"][0], "MemberId": 1}]}
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=json.dumps(spoilt).encode())
    assert counts(consume(rig, note, 1)) == {"failed": 1}
    assert "content hash" in receipt_rows(rig)[0][3]
    world.s3.delete_object(Bucket=world.bucket, Key=key)
    assert counts(consume(rig, note, 1)) == {"failed": 1}
    assert receipt_rows(rig) == [("failed", 2, None, "its object is gone")]
    assert effects == []
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=body)
    assert counts(consume(rig, note, 1)) == {"completed": 1}


def test_an_object_that_is_too_large_is_not_worked(rig: Rig, note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.shift.DOCUMENT_BYTES_MAX", 100)
    send(rig, "a")
    assert counts(consume(rig, note, 1)) == {"failed": 1}
    assert "100 are allowed" in receipt_rows(rig)[0][3]


def test_no_digit_and_no_character_is_lost(rig: Rig) -> None:
    numbers = {
        "whole": "12345678901234567890123456789012345678",
        "cents": "0.1",
        "long": "1.2345678901234567890123456789",
    }
    extra = {f"N{name}": canonical.plain_number(digits) for name, digits in numbers.items()}
    send(rig, "a", Odd="nul \0 and é", Half="\ud800", **extra)
    seen: list[Any] = []

    def handler(document: Any) -> Any:
        seen.extend(document["records"])
        return {"sum": document["records"][0]["Ncents"]}

    consume(rig, handler, 1)
    record = seen[0]
    assert (record["Nwhole"], record["Ncents"]) == (int(numbers["whole"]), Decimal("0.1"))
    assert (record["Nlong"], record["Odd"], record["Half"]) == (Decimal(numbers["long"]), "nul \0 and é", "\ud800")
    assert receipt_rows(rig)[0][2] == '{"sum":0.1}'


def test_a_result_that_cannot_be_kept_does_not_repeat_the_work(rig: Rig, effects: list[str], note: Any) -> None:
    send(rig, "a", "b")
    results = iter([object(), "x" * 70_000])

    def handler(document: Any) -> Any:
        note(document)
        return next(results)

    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, handler, 2)) == {"completed": 2}
    assert len(effects) == 2
    assert all("left_out" in row[2] for row in receipt_rows(rig))
    warned = [line["reason"] for line in lines if line["log_level"] == "warning" and "left out" in line["event"]]
    assert [reason.partition(";")[0] for reason in warned] == [
        "the result cannot be written as JSON: TypeError",
        "the result has 70002 bytes as JSON",
    ]


async def pay(*_: Any) -> None:
    raise AssertionError("nobody awaits it")


@pytest.mark.parametrize("transactional", [True, False])
def test_work_that_has_not_run_is_a_failed_attempt(rig: Rig, *, transactional: bool) -> None:
    """The function that is given has returned, and what it gave back would do the work."""
    rig.tell("CREATE TABLE granted (key text)")
    send(rig, "a")

    def handler(_: Any, connection: Connection | None = None) -> Any:
        if connection is not None:
            connection.execute("INSERT INTO granted VALUES ('begun')")
        return pay()

    assert counts(consume(rig, handler, 1, transactional=transactional)) == {"failed": 1}
    said = "the handler returned a coroutine; its body has not run"
    assert (receipt_rows(rig), granted(rig)) == ([("failed", 1, None, said)], 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_copy_of_the_process_that_comes_back_from_the_function_is_ended() -> None:
    """It has our connections, so what it told ledger and queue would be taken for ours."""
    with _failing():  # as a function is called in this process
        copy = os.fork()
    if copy == 0:
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]) == 1


def test_a_function_that_a_call_does_not_run_is_refused_at_the_start(rig: Rig) -> None:
    send(rig, "a")
    with pytest.raises(InputError, match="handler pay: it is, or wraps, an async function"):
        consume(rig, pay, 1)
    assert len(rig.world.messages(QUEUE)) == 1


# A job in hand


def test_a_slow_job_is_kept(rig: Rig, effects: list[str], note: Any) -> None:
    """Longer than its claim and its message's time: both are renewed, and nobody else gets it."""
    dead_letters(rig.world)
    send(rig, "a")
    renewed = (
        "SELECT count(*) FROM receipts WHERE ledger_now() BETWEEN claimed_at + interval '4 seconds' AND expires_at"
    )

    def handler(document: Any) -> Any:
        until(lambda: rig.value(renewed), "both times are long over")
        shown = rig.world.sqs.receive_message(QueueUrl=rig.world.queue_url(QUEUE), WaitTimeSeconds=0)
        return note(document) if not shown.get("Messages") else "it was shown"

    assert counts(consume(rig, handler, 1)) == {"completed": 1}
    assert receipt_rows(rig) == [("completed", 1, '{"records":1}', None)]
    assert rig.world.message_count(QUEUE) == 0


def replace(rig: Rig) -> None:
    """Do what a redo does to a job in work."""
    rig.tell("UPDATE receipts SET state = 'superseded', expires_at = NULL")


def test_a_job_that_is_lost_is_neither_completed_nor_dropped(rig: Rig) -> None:
    send(rig, "a")
    assert counts(consume(rig, lambda document: replace(rig), 1)) == {"lost": 1}
    assert receipt_rows(rig)[0][0] == "superseded"
    assert rig.world.message_count(QUEUE) == 1


def test_while_the_ledger_does_not_answer_nothing_is_received(
    rig: Rig, note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is received in vain is one hand-out nearer to the dead letters."""
    send(rig, "a")
    usual, failing = Store.transaction, [1, 2, 3]

    def transaction(store: Store, work: Any) -> Any:
        if failing and threading.current_thread().name == "consumer":
            failing.pop()
            unavailable()
        return usual(store, work)

    monkeypatch.setattr(Store, "transaction", transaction)
    assert counts(consume(rig, note, 2)) == {"unavailable": 1, "completed": 1}
    assert receipt_rows(rig) == [("completed", 1, '{"records":1}', None)]


def outages(lines: Any) -> list[str]:
    return [line["event"] for line in lines if line["event"] in {"consumer pauses", "consumer goes on"}]


def test_a_queue_that_is_down_for_a_while_is_said_once(
    rig: Rig, effects: list[str], note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a")
    usual, failing = Inbox.receive, list(range(30))
    monkeypatch.setattr(Inbox, "receive", lambda inbox: (failing and unavailable(failing.pop())) or usual(inbox))
    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, note, 1)) == {"completed": 1}
    assert (outages(lines), len(effects)) == (["consumer pauses", "consumer goes on"], 1)


def test_an_empty_answer_ends_the_pauses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after an outage is not waited for as long as the outage was."""
    stop, pauses = threading.Event(), list[float]()
    answers: Any = iter([unavailable, unavailable, unavailable, lambda: None, unavailable, stop.set])
    monkeypatch.setattr(Inbox, "receive", lambda _: next(answers)())
    monkeypatch.setattr("dispatch.shift._PAUSE_MAX_S", 60)
    monkeypatch.setattr(
        "dispatch.shift.clock", SimpleNamespace(wait_s=lambda s, *_: pauses.append(s), monotonic_s=monotonic_s)
    )
    with structlog.testing.capture_logs() as lines:
        consume(rig, lambda _: None, None, stop)
    assert pauses == [1, 2, 4, 1]
    assert outages(lines) == ["consumer pauses", "consumer goes on"] * 2


def test_while_objects_cannot_be_read_the_pauses_grow(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is received in vain, and is one hand-out nearer to the dead letters."""
    send(rig, "a", "b", "c")
    pauses: list[float] = []
    monkeypatch.setattr("dispatch.aws.inbox.JobObjects.fetch", unavailable)
    monkeypatch.setattr("dispatch.shift.retry_delay_s", lambda received: 60)
    monkeypatch.setattr("dispatch.shift._PAUSE_MAX_S", 60)
    monkeypatch.setattr(
        "dispatch.shift.clock", SimpleNamespace(wait_s=lambda s, *_: pauses.append(s), monotonic_s=monotonic_s)
    )
    assert counts(consume(rig, lambda _: None, 3)) == {"unavailable": 3}
    assert pauses == [1, 2, 4][: len(pauses)]
    assert len(pauses) >= 2


def test_a_job_that_was_done_is_recorded_however_long_it_takes(
    rig: Rig, effects: list[str], note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a")
    monkeypatch.setattr("dispatch.working._RECORD_AGAIN_S", 0)
    usual, failing = receipts.complete, [1, 2, 3]
    monkeypatch.setattr(
        receipts, "complete", lambda *told: unavailable() if failing and failing.pop() else usual(*told)
    )
    assert counts(consume(rig, note, 1)) == {"completed": 1}
    assert (len(effects), failing) == (1, [])


def test_the_ledger_goes_away_while_a_job_is_worked_on(
    rig: Rig, effects: list[str], note: Any, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is told when the ledger is back; no job is worked twice, and the consumer goes on."""
    send(rig, "a", "b")
    monkeypatch.setattr("dispatch.working._RECORD_AGAIN_S", 0.01)
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
    usual, failed = receipts.complete, list[int]()

    def complete(*told: Any) -> Any:
        try:
            return usual(*told)
        except UnavailableError:
            failed.append(1)
            if len(failed) == 2:
                outage.close()
            raise

    def handler(document: Any) -> Any:
        if not effects:
            outage.enter_context(Database(postgres, rig).away())
        return note(document)

    monkeypatch.setattr(receipts, "complete", complete)
    with ExitStack() as outage:
        assert counts(consume(rig, handler, 2)) == {"completed": 2}
    assert (len(effects), len(failed)) == (2, 2)
    assert receipt_rows(rig) == [("completed", 1, '{"records":1}', None)] * 2


def test_a_job_that_was_done_is_not_called_a_failure(rig: Rig, note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is silent until the consumer has to stop."""
    send(rig, "a")
    stop = threading.Event()
    monkeypatch.setattr("dispatch.working._RECORD_AGAIN_S", 0.05)
    monkeypatch.setattr(receipts, "complete", lambda *_: stop.set() or unavailable())
    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, note, None, stop)) == {"unavailable": 1}
    assert "will be done again" in str(lines)
    assert receipt_rows(rig) == [("in_work", 1, None, None)]


def test_one_message_that_cannot_be_hidden_keeps_no_other_job_from_being_renewed(rig: Rig) -> None:
    """SQS refuses after twelve hours."""
    keys = send(rig, "a", "b")
    inbox = SimpleNamespace(hide=unavailable, held_s=3)
    outage = Outage("not renewed", "renewed")
    keeper = Keeper(rig.url, inbox, timedelta(seconds=0.6), outage)  # type: ignore[arg-type]
    message, delivery = SimpleNamespace(), SimpleNamespace()
    with Store(rig.url) as store:
        for key in keys:
            taken = receipts.take(store, "reward", bytes.fromhex(key), "w", MINUTE)
            assert isinstance(taken, GoAhead)
            keeper.add(Job(delivery, message, taken.claim, 1))  # type: ignore[arg-type]
    keeper.start()
    until(
        lambda: not rig.value("SELECT count(*) FROM receipts WHERE expires_at > claimed_at + interval '30 s'"), "both"
    )
    keeper.stop()
    assert outage.lasts


def test_objects_that_cannot_be_read_now_are_read_later(
    rig: Rig, effects: list[str], note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a")
    with monkeypatch.context() as patch:
        patch.setattr("dispatch.aws.inbox.JobObjects.fetch", unavailable)
        assert counts(consume(rig, note, 1)) == {"unavailable": 1}
    assert receipt_rows(rig) == [("failed", 1, None, "not worked: no answer")]
    assert counts(consume(rig, note, 1)) == {"completed": 1}


# Receipt and effect in one transaction


@pytest.fixture
def bank(rig: Rig) -> Callable[[Any, Connection], Any]:
    """A handler whose effect is a row in the ledger's own database."""
    rig.tell("CREATE TABLE granted (key text)")

    def handler(document: Any, connection: Connection) -> Any:
        connection.execute("INSERT INTO granted VALUES (%s)", (document["idempotency_key"],))

    return handler


def granted(rig: Rig) -> int:
    return int(rig.value("SELECT count(*) FROM granted"))


def test_effect_and_receipt_commit_together(rig: Rig, bank: Any) -> None:
    send(rig, "a", "b")
    assert counts(consume(rig, bank, 2, transactional=True)) == {"completed": 2}
    assert granted(rig) == 2


@pytest.mark.parametrize("what", ["raises", "sql", "lost", "committed"])
def test_what_fails_leaves_no_effect(rig: Rig, bank: Any, what: str) -> None:
    """Whatever goes wrong after the effect was written, it is written once in the end."""
    send(rig, "a")
    body = body_of(rig)
    put_back(rig, body)

    def handler(document: Any, connection: Connection) -> Any:
        bank(document, connection)
        match what:
            case "raises":
                raise ValueError("after the effect")
            case "sql":
                connection.execute("SELECT 1 / 0")
            case "lost":
                rig.tell("UPDATE receipts SET claim = gen_random_uuid()")  # another worker has it
            case "committed":
                connection.commit()

    expected = {"lost": 1} if what == "lost" else {"failed": 1}
    assert counts(consume(rig, handler, 1, transactional=True)) == expected
    assert granted(rig) == 0
    rig.tell("UPDATE receipts SET state = 'failed', expires_at = NULL")
    put_back(rig, body)  # where it was lost, the message stays hidden for a while
    assert counts(consume(rig, bank, 1, transactional=True)) == {"completed": 1}
    assert granted(rig) == 1


@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
def test_a_lost_commit_answer_makes_no_second_effect(
    rig: Rig, bank: Any, *, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, "a")
    calls: list[int] = []
    breaking = LostAnswer(0, after=after)
    usual = Store._transact

    def transact(store: Store, work: Any) -> Any:
        if work.__qualname__.startswith("InTransaction.work") and not calls:
            calls.append(1)
            breaking.at, breaking.seen = 1, [""]
            return breaking._break(usual, store, work)
        return usual(store, work)

    monkeypatch.setattr(Store, "_transact", transact)
    assert counts(consume(rig, bank, 1, transactional=True)) == {"completed": 1}
    assert (granted(rig), calls) == (1, [1])


# Child processes


def child(name: str) -> str:
    return f"tests.handlers:{name}"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the handlers in child processes leave their traces."""
    monkeypatch.setenv("HANDLERS_PLACE", str(tmp_path))
    return tmp_path


def traces(place: Path) -> list[str]:
    return (place / "effects").read_text().split() if (place / "effects").exists() else []


def test_a_child_is_kept_and_a_lost_one_replaced(rig: Rig, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.shift.retry_delay_s", lambda received: 60)
    send(rig, "a", "killed", "raises", "exits", "b")
    with structlog.testing.capture_logs() as lines:
        assert counts(consume(rig, child("grant"), 5)) == {"completed": 2, "failed": 3}
    reasons = {reason for _, _, _, reason in receipt_rows(rig)}
    assert reasons == {
        None,
        "ValueError: raises of 2001",
        "SystemExit: 3",
        "the handler's process was killed by signal 9",
    }
    assert "2001" not in str(lines)
    assert sorted(line.split(":")[0] for line in traces(place)) == ["a", "b"]
    assert len({line.split(":")[1] for line in traces(place)}) <= 2, "a process is used for many jobs"
    assert receipt_rows(rig)[0][2] == '{"printed":true}'


def test_a_job_in_hand_is_handed_back_when_the_time_is_over(rig: Rig, place: Path) -> None:
    send(rig, "waits")
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consume, rig, child("grant"), None, stop)
        until((place / "begun").exists, "the job is begun")
        stop.set()
        assert counts(running.result(60)) == {"handed_back": 1}
    assert receipt_rows(rig)[0][:2] == ("failed", 1)
    assert "handed back" in receipt_rows(rig)[0][3]
    pid = int((place / "begun").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert len(rig.world.messages(QUEUE)) == 1, "it is seen at once"


def test_a_job_in_hand_may_come_to_its_end(rig: Rig, place: Path) -> None:
    send(rig, "waits")
    stop = threading.Event()
    consumer = Consumer(rig.settings(), rig.world.queues[QUEUE], child("grant"), ledger_url=rig.url)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consumer.run, stop=stop)
        until((place / "begun").exists, "the job is begun")
        stop.set()
        (place / "go").touch()
        assert counts(running.result(60)) == {"completed": 1}
    assert rig.world.message_count(QUEUE) == 0


def test_a_child_whose_job_was_lost_is_ended(rig: Rig, place: Path) -> None:
    dead_letters(rig.world)
    send(rig, "waits")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(consume, rig, child("grant"), 1)
        until((place / "begun").exists, "the job is begun")
        replace(rig)
        assert counts(running.result(60)) == {"lost": 1}
    assert traces(place) == []


def test_a_handler_that_cannot_be_loaded_receives_nothing(rig: Rig) -> None:
    send(rig, "a")
    with pytest.raises(InputError, match="no function no_such"):
        consume(rig, child("no_such"), 1, concurrency=2)
    assert len(rig.world.messages(QUEUE)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 65}, "concurrency"),
        ({"transactional": True}, "transaction"),
    ],
)
def test_options_that_are_not_allowed(rig: Rig, options: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        consume(rig, child("grant"), 1, **options)
    with pytest.raises(InputError, match="messages at most"):
        consume(rig, child("grant"), 0)
    with pytest.raises(InputError, match="--queue"):
        Consumer(rig.settings(), "no-such-queue", child("grant"), ledger_url=rig.url)
    with pytest.raises(InputError, match="database_url"):
        Consumer(rig.settings(), "q", child("grant"), ledger_url="embedded")
    with pytest.raises(InputError, match=r"^ledger\.database_url is not set"):
        Consumer(rig.settings(endpoint="http://127.0.0.1:9", ledger__database_url=""), "q", child("grant"))


def test_told_to_stop_before_it_began(rig: Rig, effects: list[str], note: Any) -> None:
    send(rig, "a")
    stop = threading.Event()
    stop.set()
    assert counts(consume(rig, note, None, stop)) == {}
    assert (effects, rig.world.message_count(QUEUE)) == ([], 1)
