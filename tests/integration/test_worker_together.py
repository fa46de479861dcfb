"""Jobs that meet: two for one window at once, good ones behind one that kills its workers, and those that follow."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from ledger import jobs
from ledger.errors import CancelledError, UnavailableError
from ledger.facts import RunCounts
from ledger.ids import new_id
from ledger.jobs import Held, Job
from ledger.store import Store
from ops.jobs import kinds
from ops.jobs.kinds import Kind, Outcome, Task
from tests.breaking import KilledError
from tests.fault.windows import DUE, drained, fill
from tests.job_kit import TIMING, JobRig
from tests.rig import WINDOW, Rig

FOLLOWING = {"follow_up": {"kind": "report", "params": {"report": "windows"}}}


@pytest.fixture
def bench(rig: Rig, store: Store) -> Iterator[JobRig]:
    with JobRig(rig, store, reconcile__grace="0s") as bench:
        yield bench


def relayed(bench: JobRig) -> int:
    """Let the relay send what waits for it, at once."""
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    return bench.sender.relay(bench.store, "reward")


# Two for one window


def test_two_dispatches_of_one_window_at_once(bench: JobRig) -> None:
    """One works; the other waits without an attempt counted, and finds nothing to do then. Each record is sent once."""
    fill(bench.world, WINDOW)
    first, second = (bench.post("dispatch", {"window": WINDOW}) for _ in range(2))
    reading, go = threading.Event(), threading.Event()
    usual = kinds.Task.count_records

    def pause(task: Task) -> None:
        usual(task)
        note = task.dispatcher.on_progress

        def progress(counts: RunCounts) -> None:
            note(counts)
            reading.set()
            assert go.wait(60)

        task.dispatcher.on_progress = progress

    one, other = bench.slot(), bench.slot()
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Task, "count_records", pause)
        working = pool.submit(one.step)
        assert reading.wait(60)
        for _ in range(4):  # more often than there are attempts
            assert other.step()
        states = sorted((bench.job(job).status, bench.job(job).attempts) for job in (first, second))
        assert states == [("pending", 0), ("processing", 1)]
        go.set()
        assert working.result(60)
        assert other.step()
    ended = [bench.job(job) for job in (first, second)]
    assert [(job.status, job.attempts, job.error) for job in ended] == [("completed", 1, None)] * 2
    books = sorted((bench.result(job)["claimed"], bench.result(job)["already_claimed"]) for job in (first, second))
    assert books == [(0, DUE), (DUE, 0)]
    assert other._worker.ended == {"returned": 4, "completed": 1}
    assert len(drained(bench.world)) == 5
    assert bench.count() == 0
    assert bench.waiting("dead") == []
    bench.rig.assert_books_balance()


# Case 22


def test_case_22_a_job_that_kills_its_workers_with_twenty_good_ones_behind_it(bench: JobRig) -> None:
    """Three attempts, then dead-lettered with the reason; the good ones all finish."""
    done: list[Any] = []

    def work(task: Task) -> Outcome:
        if task.job.id == killer:
            raise KilledError
        done.append(task.job.id)
        return Outcome({})

    killer, *good = (bench.post("report", {}) for _ in range(21))
    killed = 0
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setitem(kinds.KINDS, "report", Kind(work))
        while bench.job(killer).status != "failed":
            try:
                if not bench.slot().step():
                    break
            except KilledError:  # nobody holds its claim any more, and its message comes back, or is sent again
                killed += 1
                bench.expire(killer, "2 minutes")
                assert relayed(bench) >= 1
        while bench.slot().step():
            pass
    assert (killed, sorted(done)) == (3, sorted(good))
    assert {bench.job(job).status for job in good} == {"completed"}
    ended = bench.job(killer)
    assert (ended.status, ended.attempts, ended.result) == ("failed", 3, None)
    assert (ended.error or "").startswith("its worker was lost in attempt 3, the last")
    answer = bench.world.sqs.receive_message(
        QueueUrl=bench.world.queue_url(bench.name("dead")), MessageAttributeNames=["All"]
    )
    (letter,) = answer["Messages"]
    assert letter["Body"] == str(killer)
    assert letter["MessageAttributes"]["reason"]["StringValue"] == ended.error


# Those that follow


def test_what_follows_a_job_that_was_cancelled_never_comes(bench: JobRig) -> None:
    before = bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)
    jobs.cancel_job(bench.store, "reward", before)

    def work(task: Task) -> Outcome:
        jobs.cancel_job(bench.store, "reward", task.job.id)
        assert task.dispatcher.cancellation.asked.wait(60)
        raise CancelledError(15)

    meanwhile = bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kinds.KINDS, "dispatch", Kind(work))
        slot = bench.slot()
        while slot.step():
            pass
    assert {bench.job(job).status for job in (before, meanwhile)} == {"cancelled"}
    assert bench.all() == [("dispatch", "cancelled")] * 2
    assert relayed(bench) == 0


def test_what_follows_a_job_that_failed_never_comes(bench: JobRig) -> None:
    def work(task: Task) -> Outcome:
        raise UnavailableError("away")

    bench.post("dispatch", {"window": "2999-01-01T00:00:00Z"}, **FOLLOWING)
    bench.slot().step()
    bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)
    with pytest.MonkeyPatch.context() as patch, capture_logs():
        patch.setitem(kinds.KINDS, "dispatch", Kind(work))
        for _ in range(3):
            bench.slot().step()
    assert bench.all() == [("dispatch", "failed")] * 2
    assert relayed(bench) == 0


def test_what_follows_a_job_whose_workers_were_lost_never_comes(bench: JobRig) -> None:
    job = bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)
    for _ in range(jobs.ATTEMPTS_MAX):
        assert isinstance(jobs.claim_job(bench.store, "reward", Held(job, new_id()), TIMING.lease), Job)
        bench.expire(job, "2 minutes")
    with capture_logs():
        assert bench.slot().step()
    assert bench.all() == [("dispatch", "failed")]


@pytest.mark.parametrize("when", ["before it is written down", "before its message is deleted"])
def test_what_follows_a_job_whose_worker_was_killed_comes_once(bench: JobRig, when: str) -> None:
    fill(bench.world, WINDOW)
    job = bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        if when == "before it is written down":
            patch.setattr(jobs, "complete_job", die)
        else:
            patch.setattr(bench.sender.control, "delete", die)
        bench.slot().step()
        pytest.fail("it lives")
    if when == "before it is written down":
        bench.expire(job, "2 minutes")
        assert relayed(bench) == 1
    else:
        assert bench.sender.send(bench.store, job, "fast"), "its message comes again"
    slot = bench.slot()
    assert slot.step()
    relayed(bench)
    while slot.step():
        pass
    assert bench.all() == [("dispatch", "completed"), ("report", "completed")]
    assert bench.rig.rows("SELECT follows FROM jobs WHERE kind = 'report'") == [(job,)]
    assert len(drained(bench.world)) == 5
    bench.rig.assert_books_balance()


def test_what_follows_a_job_that_was_busy_or_stopped_comes_once(bench: JobRig) -> None:
    job = bench.post("dispatch", {"window": WINDOW}, **FOLLOWING)
    slot = bench.slot()

    def work(_: Task) -> Outcome:
        slot.stop()
        raise CancelledError(15)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kinds.KINDS, "dispatch", Kind(work))
        slot.step()
    assert bench.all() == [("dispatch", "pending")]
    last: Any = bench.slot()
    last.step()
    assert bench.job(job).status == "completed"
    assert bench.all() == [("dispatch", "completed"), ("report", "pending")]
