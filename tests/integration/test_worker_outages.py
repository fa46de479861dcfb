"""Workers and consumers while ledger or queue are away: nothing is lost or done twice, and the log stays short."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from dispatch.aws.control import ControlQueues
from ledger.errors import CancelledError, UnavailableError
from ledger.store import Store
from ops.jobs import kinds, sending
from ops.jobs.kinds import Kind, Outcome, Task
from ops.jobs.worker import Slot
from tests.breaking import Database
from tests.fault.windows import DUE, drained, fill
from tests.job_kit import JobRig
from tests.product import until
from tests.rig import WINDOW, Rig


@pytest.fixture
def bench(rig: Rig, store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRig]:
    monkeypatch.setattr("ops.jobs.worker._REST_S", 0.01)
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
    with JobRig(rig, store) as bench:
        yield bench


@contextmanager
def at_work(slot: Slot) -> Iterator[Slot]:
    """Let a slot receive, from a thread of its own."""
    slot.start()
    try:
        yield slot
    finally:
        slot.stop()
        slot._thread.join(30)
        assert not slot._thread.is_alive()


@contextmanager
def doing(work: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kinds.KINDS, "report", Kind(work))
        yield


@pytest.fixture
def database(postgres: str, rig: Rig) -> Database:
    return Database(postgres, rig)


def said(lines: list[Any], *events: str) -> list[str]:
    return [line["event"] for line in lines if line["event"] in events]


def failing(times: int, usual: Any) -> Any:
    """Do as usual after so many failures."""
    left = list(range(times))

    def act(*arguments: Any, **named: Any) -> Any:
        if left:
            left.pop()
            raise UnavailableError("no answer")
        return usual(*arguments, **named)

    return act


def test_the_queue_is_away_for_a_while(bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bench.post("report", {})
    monkeypatch.setattr(ControlQueues, "receive", failing(50, ControlQueues.receive))
    with capture_logs() as lines, at_work(bench.slot()):
        until(lambda: bench.job(job).status == "completed", "the job is done")
        until(lambda: "worker goes on" in said(lines, "worker goes on"), "it says so")
    assert said(lines, "worker waits", "worker goes on") == ["worker waits", "worker goes on"]
    assert bench.job(job).attempts == 1


def test_only_a_round_that_has_reached_the_queue_ends_its_outage(
    bench: JobRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_REST_S", 0.001)
    monkeypatch.setattr(sending, "RELAY_EVERY_S", 0.001)
    job = bench.post("report", {}, send=False)
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    rounds, stop, usual_take = Counter[str](), threading.Event(), sending.jobs.take_unsent

    def take(*arguments: Any) -> Any:
        taken = usual_take(*arguments)
        rounds["with some" if taken else "empty"] += 1
        return taken

    monkeypatch.setattr(sending.jobs, "take_unsent", take)
    relay = threading.Thread(
        target=sending.relay_until, args=(stop, bench.sender, bench.rig.url, "reward"), daemon=True
    )
    begins, ends = "job ids are not relayed; jobs wait in the ledger", "job ids are relayed again"
    with capture_logs() as lines:
        with pytest.MonkeyPatch.context() as down:
            down.setattr(ControlQueues, "send", failing(1000, ControlQueues.send))
            relay.start()
            until(lambda: rounds["with some"] == 1 and rounds["empty"] > 3, "rounds with nothing to send")
            assert said(lines, begins, ends) == [begins]
        bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
        until(lambda: said(lines, ends), "it is over")
        with pytest.MonkeyPatch.context() as down:
            down.setattr(sending.jobs, "take_unsent", failing(3, take))
            until(lambda: len(said(lines, ends)) == 2, "the ledger answers again: nothing to send is enough")
        stop.set()
        relay.join(30)
    assert said(lines, begins, ends) == [begins, ends] * 2
    assert bench.job(job).sent_at is not None


@pytest.mark.parametrize("stop", ["lost", "cancelled"])
def test_a_job_that_is_gone_is_not_kept_again(bench: JobRig, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
    monkeypatch.setattr(sending.jobs, "renew_claim", failing(2, lambda *_: stop))

    def work(task: Task) -> Outcome:
        assert task.dispatcher.cancellation.asked.wait(30)
        raise CancelledError(15)

    bench.post("report", {})
    with capture_logs() as lines, doing(work):
        assert bench.slot().step()
    assert said(lines, "job in hand is not kept", "job in hand is kept again") == ["job in hand is not kept"]


def test_the_ledger_is_away_while_a_job_is_worked_on(bench: JobRig, database: Database) -> None:
    """The work is done once, and written down when the ledger is back; the next job is taken as if nothing had been."""
    begun, go, times = threading.Event(), threading.Event(), list[int]()

    def work(_: Task) -> Outcome:
        times.append(1)
        begun.set()
        assert go.wait(60)
        return Outcome({"done": True})

    job = bench.post("report", {})
    with capture_logs() as lines, doing(work), at_work(bench.slot()) as slot:
        assert begun.wait(60)
        with database.away():
            go.set()
            until(lambda: "worker waits" in said(lines, "worker waits"), "it waits")
        until(lambda: slot._worker.ended["completed"] == 1, "the job is written down")
        second = bench.post("report", {})
        until(lambda: bench.job(second).status == "completed", "the next one is done")
    assert (bench.job(job).status, bench.job(job).attempts, bench.result(job)) == ("completed", 1, {"done": True})
    assert len(times) == 2
    assert said(lines, "worker waits", "worker goes on") == ["worker waits", "worker goes on"]
    assert Counter(said(lines, "job in hand is not kept"))["job in hand is not kept"] <= 1
    assert slot._worker.ended == {"completed": 2}
    assert bench.count() == 0


def test_a_dispatch_whose_ledger_goes_away_is_tried_again(bench: JobRig, database: Database) -> None:
    """Its attempt counts; nothing is sent twice."""
    fill(bench.world, WINDOW)
    usual, away = kinds.Task.count_records, list[Any]()

    def go_away(task: Task) -> None:
        usual(task)
        if not away:
            away.append(database.away())
            away[0].__enter__()

    job = bench.post("dispatch", {"window": WINDOW})
    with capture_logs() as lines, at_work(bench.slot()), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Task, "count_records", go_away)
        until(lambda: "worker waits" in said(lines, "worker waits"), "it waits")
        away[0].__exit__(None, None, None)
        until(lambda: bench.job(job).status == "completed", "the job is done")
    assert bench.job(job).attempts == 2
    assert bench.result(job)["claimed"] == DUE
    assert len(drained(bench.world)) == 5
    bench.rig.assert_books_balance()


def test_while_the_ledger_is_away_nothing_is_received(bench: JobRig, database: Database) -> None:
    """A message that is received in vain is one hand-out nearer to the dead letters."""
    received: list[str] = []
    usual = ControlQueues.receive

    def receive(*arguments: Any) -> Any:
        received.append("")
        return usual(*arguments)

    job = bench.post("report", {})
    slot = bench.slot()
    with capture_logs() as lines, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ControlQueues, "receive", receive)
        with database.away(), at_work(slot):
            until(lambda: "worker waits" in said(lines, "worker waits"), "it waits")
            tried = slot._worker.outages["fast"]
            until(lambda: tried._tries > 5, "it tries again and again")
        assert len(received) == 1
    assert bench.job(job).status == "pending"


def test_a_job_that_is_done_counts_though_its_message_cannot_be_deleted(
    bench: JobRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bench.post("report", {})
    slot = bench.slot()
    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(bench.sender.control, "delete", failing(1, None))
        assert slot.step()
    assert (bench.job(job).status, slot._worker.ended) == ("completed", {"completed": 1})
    assert said(lines, "message of a job was not let go; it comes again")
    assert bench.count() == 1


def test_a_worker_that_is_stopped_while_the_ledger_is_away_ends(bench: JobRig, database: Database) -> None:
    begun = threading.Event()

    def work(task: Task) -> Outcome:
        begun.set()
        assert task.dispatcher.cancellation.asked.wait(60)
        return Outcome({})

    job = bench.post("report", {})
    slot = bench.slot()
    with capture_logs(), doing(work):
        slot.start()
        assert begun.wait(60)
        with database.away():
            slot.stop()
            slot._thread.join(60)
            assert not slot._thread.is_alive()
    assert bench.job(job).status == "processing", "its claim runs out, and another worker takes it"
    assert slot._worker.ended == {"dropped": 1}
