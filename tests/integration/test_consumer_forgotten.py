"""A consumer beside a ledger that has forgotten: it waits, instead of using up what its queue delivers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dispatch.consumer import Consumer, Summary
from ledger import windows
from ledger.acknowledging import parse_note
from ledger.instants import parse_window
from ledger.store import Store
from tests.aws_servers import World, booking
from tests.product import until
from tests.rig import WINDOW, Rig

QUEUE = "reward-point"
AT = "2026-09-17T15:%02d:00Z"
_ASKED = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%start_s, seq%'"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again soon, and an empty queue is not waited at for long."""
    monkeypatch.setattr("dispatch.shift._PAUSE_MAX_S", 0.05)
    monkeypatch.setattr("dispatch.aws.inbox._WAIT_S", 1)


@contextmanager
def consuming(rig: Rig, worked: list[str], threads: int = 2) -> Iterator[Summary]:
    """Run a consumer meanwhile; it has come to its end when the block has."""
    summary, stop = Summary(), threading.Event()

    def note(document: Any) -> None:
        worked.append(document["idempotency_key"])

    settings = rig.settings()
    consumer = Consumer(settings, rig.world.queues[QUEUE], note, concurrency=threads)
    thread = threading.Thread(target=lambda: consumer.run(stop=stop, summary=summary))
    thread.start()
    try:
        yield summary
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def received_most(world: World) -> int:
    """Say how often the queue has delivered one of its messages, with looks like this one; 0 while all are hidden."""
    answer = world.sqs.receive_message(
        QueueUrl=world.queue_url(QUEUE),
        MaxNumberOfMessages=10,
        VisibilityTimeout=0,
        MessageSystemAttributeNames=["ApproximateReceiveCount"],
    )
    counts = [int(one["Attributes"]["ApproximateReceiveCount"]) for one in answer.get("Messages", [])]
    return max(counts, default=0)


def test_a_consumer_waits_for_a_ledger_that_has_forgotten(world: World, rig: Rig) -> None:
    copy = rig.back_up()
    world.put_many(booking(f"r{at}", AT % (at + 1), member=at) for at in range(3))
    rig.run()
    rig.put_back(copy)
    worked: list[str] = []
    with consuming(rig, worked) as summary, Store(rig.url) as store:
        # Nobody has held the window: the witness alone says that the ledger must not be trusted.
        until(lambda: rig.rows(_ASKED) != [], "the consumer asks which ledger this is")
        assert windows.how_far(store, "reward") == {}
        until(lambda: received_most(world) >= 1, "the consumer has given a message back")
        assert worked == []
        assert summary.handled == 0
        looks = 3
        for _ in range(looks):
            threading.Event().wait(0.3)  # many of its pauses
            most = received_most(world)
        assert most <= 1 + 2 + looks, "each of two threads, and these looks"
        assert rig.recover()["entries"] == 3
        until(lambda: len(worked) == 3, "all jobs are worked")
    assert summary.counts["completed"] == summary.handled == 3
    assert rig.decide("sent")["released"]
    assert rig.rows("SELECT DISTINCT state FROM receipts") == [("completed",)]


def test_a_consumer_waits_while_a_person_holds_the_window(world: World, rig: Rig) -> None:
    copy = rig.back_up()
    world.put(booking("r1", AT % 1))
    rig.run()
    rig.put_back(copy)
    world.forget_witnesses()
    note = parse_note("ann", "a backup was put back")
    with Store(rig.url) as store:
        windows.hold_by_person(store, "reward", [parse_window(WINDOW)], note)
    worked: list[str] = []
    with consuming(rig, worked, threads=1) as summary:
        until(lambda: received_most(world) >= 1, "the job was delivered")
        assert (worked, summary.handled) == ([], 0)
        rig.adopt()
        until(lambda: len(worked) == 1, "the job is worked")
    assert summary.counts["completed"] == 1


def test_a_job_of_nobody_does_not_keep_the_others_waiting(world: World, rig: Rig) -> None:
    """Its window is neither held nor behind: it is no job of this ledger's, as before."""
    world.put(booking("r1", AT % 1))
    rig.run(pipeline="other")
    rig.tell("TRUNCATE entries, claims, attempts")
    rig.run()
    worked: list[str] = []
    with consuming(rig, worked, threads=1) as summary:
        until(lambda: min(summary.counts[name] for name in ("unknown_key", "completed")) > 0, "both were looked at")
    assert len(worked) == 1
