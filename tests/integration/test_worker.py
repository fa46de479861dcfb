"""Workers: what was asked for is done once, also when a worker dies, pauses, is stopped, or the queue is down."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from rich.console import Console
from structlog.testing import capture_logs

from dispatch.aws.control import ControlQueue, ControlQueues, Received
from dispatch.aws.session import Session
from dispatch.run import Cancellation
from ledger import jobs, runs
from ledger.errors import (
    BusyError,
    CancelledError,
    ClaimLostError,
    CorruptError,
    DispatchLedgerError,
    GuardError,
    InputError,
    LeaseLostError,
    NotFoundError,
    UnavailableError,
)
from ledger.ids import new_id
from ledger.instants import parse_window
from ledger.jobs import Held, Job
from ledger.store import Store
from ops.jobs import kinds, worker
from ops.jobs.kinds import Kind, Outcome, Task, first_of
from ops.jobs.sending import JobSender
from ops.jobs.worker import Beat, Stop, Verdict, judge, lanes_of
from tests.breaking import KilledError
from tests.fault.windows import DUE, drained, fill
from tests.job_kit import NOW, TIMING, JobRig
from tests.rig import WINDOW, Rig

OTHER = "2026-09-17T16:00:00Z"
PAUSE = timedelta(seconds=7)


@pytest.fixture
def bench(rig: Rig, store: Store) -> Iterator[JobRig]:
    with JobRig(rig, store, reconcile__grace="0s") as bench:
        yield bench


@contextmanager
def doing(work: Any, kind: str = "report", *, moves: bool = False) -> Iterator[None]:
    """Let a kind of job be done in another way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kinds.KINDS, kind, Kind(work, moves=moves))
        yield


# What becomes of a job


def test_what_becomes_of_a_job() -> None:
    job = Job(**dict.fromkeys(Job.__struct_fields__) | {"queue": "fast", "attempts": 1})  # type: ignore[arg-type]
    last = msgspec.structs.replace(job, attempts=3)
    again, later = Verdict("return", "fast", PAUSE, counts=True), Verdict("return", "fast", PAUSE)
    cases: list[tuple[Job, DispatchLedgerError | None, Stop | None, Verdict]] = [
        (job, None, None, Verdict("complete")),
        (job, None, "stopped", Verdict("complete")),
        (job, None, "moved", Verdict("complete")),
        (job, None, "lost", Verdict("drop")),
        (job, None, "cancelled", Verdict("drop")),
        (job, UnavailableError("x"), None, again),
        (job, LeaseLostError("x"), None, again),
        (last, UnavailableError("x"), None, Verdict("fail")),
        (job, BusyError("x"), None, later),
        (last, BusyError("x"), None, later),
        (job, ClaimLostError("x"), None, Verdict("drop")),
        (job, InputError("x"), None, Verdict("fail")),
        (job, GuardError("x"), None, Verdict("fail")),
        (job, CorruptError("x"), None, Verdict("fail")),
        (job, NotFoundError("x"), None, Verdict("fail")),
        (job, CancelledError(15), "stopped", Verdict("return", "fast")),
        (last, CancelledError(15), "stopped", Verdict("return", "fast")),
        (job, CancelledError(15), "moved", Verdict("return", "slow")),
        (job, CancelledError(15), "cancelled", Verdict("drop")),
    ]
    for given, error, stop, expected in cases:
        assert judge(given, error, stop, PAUSE) == expected, (error, stop)


def test_of_several_errors_the_one_that_a_repeat_may_mend_decides() -> None:
    guard, busy, unavailable, cancelled = GuardError("g"), BusyError("b"), UnavailableError("u"), CancelledError(15)
    assert first_of([]) is None
    assert first_of([None, guard]) is guard
    assert first_of([guard, busy, None]) is busy
    assert first_of([guard, busy, unavailable]) is unavailable
    assert first_of([unavailable, cancelled]) is cancelled


def test_the_queues_of_a_worker(bench: JobRig) -> None:
    settings = bench.settings
    assert lanes_of(settings, []) == ["fast", "slow"]
    assert lanes_of(settings, [settings.jobs.slow_queue, "slow"]) == ["slow"]
    with pytest.raises(InputError, match=r"neither jobs\.queue"):
        lanes_of(settings, ["reward-point"])


def test_what_waits_on_the_slow_queue_from_the_start(bench: JobRig) -> None:
    """A redo never waits on the fast queue, also when it follows another job, so it need not move."""
    plan = {"plan": {"window": WINDOW, "reason": "ticket 4711"}}
    apply = {"apply": str(new_id())}
    for params in (plan, apply):
        assert bench.job(bench.post("redo", params, send=False)).queue == "slow"
        first = bench.job(
            bench.post("dispatch", {"window": WINDOW}, send=False, follow_up={"kind": "redo", "params": params})
        )
        assert first.queue == "fast"
        assert msgspec.json.decode(first.follow_up or "")["queue"] == "slow"
    assert bench.job(bench.post("reconcile", {"lookback": "25h"}, send=False)).queue == "slow"
    assert bench.job(bench.post("reconcile", {"lookback": "24h"}, send=False)).queue == "fast"


# The kinds


def test_a_dispatch_and_the_reconcile_that_follows(bench: JobRig) -> None:
    fill(bench.world, WINDOW)
    first = bench.post("dispatch", {"window": WINDOW}, follow_up={"kind": "reconcile", "params": {"window": WINDOW}})
    slot = bench.slot()
    assert slot.step()
    run = bench.result(first)
    assert (run["outcome"], run["claimed"], run["window"]["start"]) == ("completed", DUE, WINDOW)
    assert bench.job(first).done == bench.job(first).total == run["evaluated"]
    assert len(drained(bench.world)) == 5
    assert bench.all() == [("dispatch", "completed"), ("reconcile", "pending")]
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    assert bench.sender.relay(bench.store, "reward") == 1
    assert slot.step()
    (second,) = bench.rig.rows("SELECT id FROM jobs WHERE follows = %s", first)
    document = bench.result(second[0])
    assert (document["open"], document["repaired"]) == (0, 0)
    assert [one["coverage"]["claimed"] for one in document["windows"]] == [DUE]
    assert bench.count() == 0
    bench.rig.assert_books_balance()


def test_everything_that_is_owed(rig: Rig, store: Store) -> None:
    with JobRig(rig, store, schedule__catch_up="3h") as bench:
        job = bench.post("dispatch", {"due": True})
        bench.slot().step()
    runs = bench.result(job)["runs"]
    assert len(runs) in {2, 3}
    assert [one["window"]["start"] for one in runs] == sorted(one["window"]["start"] for one in runs)
    assert (bench.job(job).done, bench.job(job).total) == (len(runs), len(runs))
    assert rig.value("SELECT count(*) FROM windows WHERE completed_at IS NOT NULL") == len(runs)


@pytest.mark.parametrize(("form", "begins"), [("json", b'{"windows":['), ("csv", b"window,"), ("html", b"<!doctype")])
def test_a_report_is_a_file_in_the_bucket(bench: JobRig, form: str, begins: bytes) -> None:
    bench.rig.run()
    params = {"report": "windows", "format": form, "from": WINDOW, "to": OTHER}
    job = bench.post("report", params)
    bench.slot().step()
    result = bench.result(job)
    key = f"reward-dispatch/_results/reward/{job}.{form}"
    assert result["object"] == {"bucket": bench.world.bucket, "key": key}
    body = bench.world.objects("reward-dispatch/_results/")[key]
    assert body.lower().startswith(begins)
    assert result["bytes"] == len(body)
    assert WINDOW.encode() in body
    kind = bench.world.s3.head_object(Bucket=bench.world.bucket, Key=key)["ContentType"]
    assert kind.startswith({"json": "application/json"}.get(form, f"text/{form}"))
    assert bench.rig.reconcile()["windows"][0]["findings"] == [], "a result is no orphan"


def test_a_report_of_findings(bench: JobRig) -> None:
    job = bench.post("report", {"report": "missed"})
    bench.slot().step()
    assert bench.world.objects("reward-dispatch/_results/") == {bench.result(job)["object"]["key"]: b'{"findings":[]}'}


def test_a_large_result_goes_into_the_bucket(bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "RESULT_BYTES_MAX", 100)
    job = bench.post("reconcile", {"window": WINDOW})
    bench.slot().step()
    result = bench.result(job)
    assert set(result) == {"run_id", "open", "repaired", "object", "bytes"}
    (body,) = bench.world.objects("reward-dispatch/_results/").values()
    assert msgspec.json.decode(body)["windows"][0]["window"] == WINDOW


@pytest.mark.parametrize("params", [{"window": "2999-01-01T00:00:00Z"}, {"execute_time": "2999-01-01T00:00:00Z"}])
def test_what_cannot_be_done_fails_at_once(bench: JobRig, params: dict[str, str]) -> None:
    job = bench.post("dispatch", params)
    bench.slot().step()
    ended = bench.job(job)
    assert (ended.status, ended.attempts) == ("failed", 1)
    assert "has not ended yet" in (ended.error or "")
    assert bench.waiting() == []
    assert bench.waiting("dead") == [str(job)]


# Busy, held, failed


def test_a_busy_window_is_no_attempt(bench: JobRig) -> None:
    fill(bench.world, WINDOW)
    with bench.rig.dispatcher() as dispatcher:
        runs.start_run(dispatcher.store, dispatcher.request(parse_window(WINDOW), "manual"))
    job = bench.post("dispatch", {"window": WINDOW})
    slot = bench.slot()
    for _ in range(5):
        assert slot.step()
        assert (bench.job(job).status, bench.job(job).attempts) == ("pending", 0)
        assert "is being worked on by" in (bench.job(job).error or "")
    bench.rig.expire_leases("reward")
    slot.step()
    assert (bench.job(job).status, bench.job(job).attempts, bench.job(job).error) == ("completed", 1, None)
    assert len(drained(bench.world)) == 5


def test_a_held_window_fails_the_job_and_the_others_are_done(bench: JobRig) -> None:
    bench.rig.run()
    bench.rig.run(window=OTHER)
    bench.rig.tell(
        "UPDATE windows SET held_at = ledger_now(), held_reason = 'test' WHERE start_s = %s",
        parse_window(OTHER).start_s,
    )
    job = bench.post("reconcile", {"windows": [OTHER, WINDOW]})
    bench.slot().step()
    ended = bench.job(job)
    assert (ended.status, ended.attempts) == ("failed", 1)
    assert "held" in (ended.error or "")
    assert [(one["window"], one["held"]) for one in bench.result(job)["windows"]] == [(OTHER, True), (WINDOW, False)]


def test_three_attempts_then_failed_and_dead_lettered_with_the_reason(bench: JobRig) -> None:
    tries: list[int] = []

    def fail(task: Task) -> Outcome:
        tries.append(task.job.attempts)
        if len(tries) == 2:
            raise ZeroDivisionError("no")
        raise UnavailableError("S3 is away")

    job = bench.post("report", {})
    slot = bench.slot()
    with doing(fail), capture_logs():
        while slot.step():
            pass
    assert tries == [1, 2, 3]
    assert (bench.job(job).status, bench.job(job).error) == ("failed", "S3 is away")
    assert bench.waiting("dead") == [str(job)]


def test_a_failed_attempt_says_why_while_it_waits(bench: JobRig) -> None:
    def fail(_: Task) -> Outcome:
        raise ZeroDivisionError("no")

    job = bench.post("report", {})
    with doing(fail), capture_logs():
        bench.slot().step()
    assert bench.job(job).status == "pending"
    assert "unexpected ZeroDivisionError: no" in (bench.job(job).error or "")
    bench.slot().step()
    assert (bench.job(job).status, bench.job(job).error, bench.job(job).attempts) == ("completed", None, 2)


def test_windows_that_are_done_are_not_done_again_by_the_next_attempt(bench: JobRig) -> None:
    seen: list[str] = []
    usual = kinds.Reconciler.reconcile_window

    def look(self: Any, window: Any, **options: Any) -> Any:
        report = usual(self, window, **options)
        seen.append(window.name)
        if len(seen) == 2:
            report.error = UnavailableError("away")
        return report

    bench.rig.run()
    job = bench.post("reconcile", {"windows": [OTHER, WINDOW]})
    slot = bench.slot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Reconciler, "reconcile_window", look)
        slot.step()
        assert (bench.job(job).status, bench.job(job).error) == ("pending", "away")
        assert list(jobs.list_parts(bench.store, job)) == [OTHER]
        slot.step()
    assert seen == [OTHER, WINDOW, WINDOW]
    assert [one["window"] for one in bench.result(job)["windows"]] == [OTHER, WINDOW]
    assert (bench.job(job).done, bench.job(job).total) == (2, 2)


# Workers that die, pause, are stopped


def test_another_worker_goes_on_after_one_that_is_gone(bench: JobRig) -> None:
    fill(bench.world, WINDOW)
    job = bench.post("dispatch", {"window": WINDOW})
    dead = jobs.claim_job(bench.store, "reward", Held(job, new_id()), TIMING.lease)
    assert isinstance(dead, Job)
    slot = bench.slot()
    assert slot.step(), "its message came, but the claim may be alive"
    assert bench.job(job).claim == dead.claim
    assert bench.count() == 1
    bench.expire(job, "2 minutes")
    assert bench.sender.relay(bench.store, "reward") == 1
    assert slot.step()
    assert (bench.job(job).status, bench.job(job).attempts) == ("completed", 2)
    assert len(drained(bench.world)) == 5


def test_a_worker_that_was_paused_wakes_up_fenced(bench: JobRig, ledger_url: str) -> None:
    """It does its work to the end, but another one has the job: its result is not the job's."""
    other: list[bool] = []

    def pause(task: Task) -> Outcome:
        if other:
            return Outcome({"by": "the second"})
        other.append(True)
        bench.expire(task.job.id, "2 minutes")
        bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
        with Store(ledger_url) as store:
            bench.sender.relay(store, "reward")
        assert bench.slot().step()
        return Outcome({"by": "the first"})

    still = replace(TIMING, beat=timedelta(hours=1))
    job = bench.post("report", {})
    slot = bench.slot(timing=still)
    with doing(pause):
        slot.step()
    assert bench.result(job) == {"by": "the second"}
    assert slot._worker.ended == {"dropped": 1}
    assert bench.job(job).attempts == 2


def test_the_claim_is_renewed_while_the_work_lasts(bench: JobRig) -> None:
    waited = threading.Event()

    def work(task: Task) -> Outcome:
        task.progress.done, task.progress.total = 3, 9
        first = bench.job(task.job.id)
        while bench.job(task.job.id).heartbeat_at == first.heartbeat_at or bench.job(task.job.id).done != 3:
            assert not waited.wait(0.01)
        return Outcome({"total": bench.job(task.job.id).total})

    job = bench.post("report", {})
    with doing(work):
        bench.slot().step()
    assert bench.result(job) == {"total": 9}


def until_asked(task: Task) -> Outcome:
    """Work until somebody asks for the end."""
    assert task.dispatcher.cancellation.asked.wait(60)
    raise CancelledError(15)


def test_cancelled_while_it_is_worked_on(bench: JobRig) -> None:
    def work(task: Task) -> Outcome:
        jobs.cancel_job(bench.store, "reward", task.job.id)
        return until_asked(task)

    job = bench.post("report", {})
    slot = bench.slot()
    with doing(work):
        slot.step()
    assert (bench.job(job).status, bench.job(job).result) == ("cancelled", None)
    assert slot._worker.ended == {"dropped": 1}
    assert bench.count() == 0


def test_cancelled_before_and_after(bench: JobRig) -> None:
    job = bench.post("report", {})
    jobs.cancel_job(bench.store, "reward", job)
    bench.slot().step()
    assert (bench.job(job).status, bench.count()) == ("cancelled", 0)
    job = bench.post("report", {})
    bench.slot().step()
    jobs.cancel_job(bench.store, "reward", job)
    assert bench.job(job).status == "completed"


def test_a_dispatch_that_is_cancelled_sends_nothing_more(bench: JobRig) -> None:
    fill(bench.world, WINDOW)
    bench.settings = bench.rig.settings(dispatch__page_size="1")
    usual = kinds.Task.count_records

    def cancel_early(task: Task) -> None:
        usual(task)
        note = task.dispatcher.on_progress

        def cancel(counts: Any) -> None:
            note(counts)
            jobs.cancel_job(bench.store, "reward", task.job.id)
            assert task.dispatcher.cancellation.asked.wait(60)

        task.dispatcher.on_progress = cancel

    job = bench.post("dispatch", {"window": WINDOW})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Task, "count_records", cancel_early)
        bench.slot().step()
    assert bench.job(job).status == "cancelled"
    assert bench.rig.value("SELECT outcome FROM runs") == "cancelled"
    assert drained(bench.world) == []


def test_a_stopped_worker_gives_its_job_back_at_once(bench: JobRig) -> None:
    slot = bench.slot()

    def work(task: Task) -> Outcome:
        slot.stop()
        return until_asked(task)

    job = bench.post("report", {})
    with doing(work):
        slot.step()
    waiting = bench.job(job)
    assert (waiting.status, waiting.attempts, waiting.queue, waiting.error) == (
        "pending",
        0,
        "fast",
        "its worker was stopped",
    )
    assert waiting.sent_at is not None
    assert bench.count() == 1
    assert bench.slot().step()
    assert bench.job(job).status == "completed"


def test_a_message_that_comes_while_a_worker_stops_is_left_to_others(bench: JobRig) -> None:
    job = bench.post("report", {})
    slot = bench.slot()
    slot.stop()
    assert slot.step()
    assert bench.job(job).status == "pending"
    assert bench.waiting() == [str(job)]


def test_what_takes_too_long_moves_to_the_slow_queue_and_goes_on_there(bench: JobRig) -> None:
    windows: list[str] = []
    usual = kinds.Reconciler.reconcile_window

    def look(self: Any, window: Any, **options: Any) -> Any:
        windows.append(window.name)
        if len(windows) == 2:
            assert self.dispatcher.cancellation.asked.wait(60)
        return usual(self, window, **options)

    bench.rig.run()
    job = bench.post("reconcile", {"windows": [OTHER, WINDOW]})
    hasty = replace(TIMING, fast_limit=timedelta(milliseconds=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Reconciler, "reconcile_window", look)
        patch.setattr(Beat, "_left_s", lambda _: 60.0 if len(windows) < 2 else 0.0)
        bench.slot(timing=hasty).step()
        moved = bench.job(job)
        assert (moved.status, moved.queue, moved.attempts) == ("pending", "slow", 0)
        assert "longer than jobs.fast_limit" in (moved.error or "")
        assert (bench.count("fast"), bench.count("slow")) == (0, 1)
        assert bench.slot("slow", hasty).step()
    assert (bench.job(job).status, bench.job(job).queue, bench.job(job).attempts) == ("completed", "slow", 1)
    assert windows == [OTHER, WINDOW, WINDOW], "the first window was not looked at again"
    assert [one["window"] for one in bench.result(job)["windows"]] == [OTHER, WINDOW]


def test_a_kind_that_does_not_move_stays(bench: JobRig) -> None:
    def work(task: Task) -> Outcome:
        while bench.job(task.job.id).done != 1:
            task.progress.done = 1
        assert not task.dispatcher.cancellation.asked.is_set()
        return Outcome({})

    job = bench.post("report", {})
    with doing(work):
        bench.slot(timing=replace(TIMING, fast_limit=NOW)).step()
    assert bench.job(job).status == "completed"


# Queues that are down, and messages that are odd


def test_a_queue_that_is_down_when_the_job_is_made(bench: JobRig) -> None:
    session = Session("http://127.0.0.1:9", "us-east-1")
    down = JobSender(ControlQueues(session, send=timedelta(milliseconds=200), wait=NOW), bench.settings.jobs)
    down._queues = {"fast": bench.sender.queue("fast"), "slow": bench.sender.queue("slow")}
    job = bench.post("report", {}, send=False)
    assert not down.send(bench.store, job, "fast")
    assert bench.job(job).sent_at is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(down.control, "send", lambda *_: pytest.fail("it was tried again at once"))
        assert not down.send(bench.store, job, "fast")
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    with pytest.raises(UnavailableError):
        down.relay(bench.store, "reward")
    assert bench.sender.relay(bench.store, "reward") == 0, "left alone for a while"
    bench.rig.tell("UPDATE jobs SET relay_at = ledger_now()")
    assert bench.sender.relay(bench.store, "reward") == 1
    assert bench.job(job).sent_at is not None
    assert bench.slot().step()
    assert bench.job(job).status == "completed"


def test_the_job_that_is_given_back_while_the_queue_is_down_is_relayed(bench: JobRig) -> None:
    def fail(_: Task) -> Outcome:
        raise UnavailableError("away")

    job = bench.post("report", {})
    with doing(fail), pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.sender, "send", lambda *_: False)
        bench.slot().step()
    assert (bench.job(job).status, bench.job(job).sent_at) == ("pending", None)
    assert bench.count() == 1, "the message in hand is kept when no other could be sent"


def test_a_message_that_comes_twice_is_worked_once(bench: JobRig) -> None:
    done: list[Any] = []

    def work(task: Task) -> Outcome:
        done.append(task.job.id)
        assert bench.slot().step(), "the second message comes while the first is worked on"
        return Outcome({})

    job = bench.post("report", {})
    assert bench.sender.send(bench.store, job, "fast")
    slot = bench.slot()
    with doing(work):
        slot.step()
    assert done == [job]
    assert bench.job(job).attempts == 1


def test_the_second_message_of_a_long_job_is_hidden_longer_each_time(bench: JobRig) -> None:
    """Each time is one hand-out nearer to the dead letters, where it would alarm somebody for nothing."""
    hidden_s: list[float] = []
    usual = bench.sender.control.hide

    def hide(queue: ControlQueue, received: Received, visibility: timedelta) -> None:
        hidden_s.append(visibility.total_seconds())
        usual(queue, received, NOW)

    job = bench.post("report", {})
    held = Held(job, new_id())
    assert isinstance(jobs.claim_job(bench.store, "reward", held, TIMING.lease), Job)
    slot = bench.slot()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.sender.control, "hide", hide)
        for _ in range(4):
            assert slot.step()
    assert TIMING.lease.total_seconds() - 10 < hidden_s[0] <= TIMING.lease.total_seconds() + 1
    assert hidden_s[1:] == [60, 120, 240]


def test_killed_between_failing_a_job_and_putting_it_aside(bench: JobRig) -> None:
    job = bench.post("report", {})
    held = Held(job, new_id())
    assert isinstance(jobs.claim_job(bench.store, "reward", held, TIMING.lease), Job)
    jobs.fail_job(bench.store, held, "no \0 more", None)
    assert bench.slot().step(), "its message comes back"
    (letter,) = bench.world.receive_all(bench.name("dead"))
    assert letter["Body"] == str(job)
    assert bench.count() == 0


def test_killed_while_a_message_is_put_aside(bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is put aside first, and deleted then: so it is never nowhere."""
    bench.world.sqs.send_message(QueueUrl=bench.world.queue_url(bench.name("fast")), MessageBody="nonsense")
    monkeypatch.setattr(bench.sender.control, "bury", killed)
    with pytest.raises(KilledError):
        bench.slot().step()
    assert bench.count() == 1


def test_killed_before_a_job_is_completed(bench: JobRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its message comes back when the claim has run out; so does the job."""
    job = bench.post("report", {})
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "complete_job", killed)
        with pytest.raises(KilledError):
            bench.slot().step()
    assert (bench.job(job).status, bench.count()) == ("processing", 1)


def killed(*_: object) -> None:
    raise KilledError


def test_a_message_that_others_have_had_meanwhile_is_let_go(bench: JobRig) -> None:
    """Its worker was paused for so long that it came to somebody else, who is done with it."""

    def work(_: Task) -> Outcome:
        (again,) = bench.waiting()
        assert again == str(job)
        bench.sender.control.hide(bench.sender.queue("fast"), received[0], NOW)
        return Outcome({})

    def seen_at_once(queue: ControlQueue, _: timedelta) -> Received | None:
        received.append(usual(queue, NOW))
        return received[0]

    received: list[Any] = []
    job = bench.post("report", {})
    slot = bench.slot()
    usual = bench.sender.control.receive
    with doing(work), capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.sender.control, "receive", seen_at_once)
        assert slot.step()
    assert bench.job(job).status == "completed"
    assert slot._worker.ended == {"completed": 1}
    assert [one["event"] for one in logs if one["log_level"] == "warning"] == []


@pytest.mark.parametrize("body", ["nonsense", '{"job_id": 1}', "01a22a00-0000-7000-8000-000000000000"])
def test_a_message_that_names_no_job_is_put_aside(bench: JobRig, body: str) -> None:
    bench.world.sqs.send_message(QueueUrl=bench.world.queue_url(bench.name("fast")), MessageBody=body)
    assert bench.slot().step()
    assert bench.count() == 0
    assert bench.waiting("dead") == [body]


def test_a_job_of_another_pipeline_is_left_to_its_workers(bench: JobRig) -> None:
    job = bench.post("report", {})
    bench.settings = bench.rig.settings(pipeline="another")
    assert bench.slot().step()
    assert bench.job(job).status == "pending"
    assert bench.waiting() == [str(job)]


def test_the_reason_goes_with_the_dead_letter(bench: JobRig) -> None:
    bench.world.sqs.send_message(QueueUrl=bench.world.queue_url(bench.name("fast")), MessageBody="nonsense")
    bench.slot().step()
    answer = bench.world.sqs.receive_message(
        QueueUrl=bench.world.queue_url(bench.name("dead")), MessageAttributeNames=["All"]
    )
    (message,) = answer["Messages"]
    assert message["MessageAttributes"]["reason"]["StringValue"] == "this is no id of a job"


@pytest.mark.parametrize("name", ["jobs.fifo", "nowhere-to-be-found"])
def test_a_queue_that_will_not_do(bench: JobRig, name: str) -> None:
    with pytest.raises(InputError, match=r"jobs\.queue"):
        bench.sender.control.resolve(name, "jobs.queue")


@pytest.mark.parametrize("key", ["jobs.queue", "jobs.slow_queue"])
def test_a_worker_without_its_queues_does_not_begin(bench: JobRig, key: str) -> None:
    settings = bench.rig.settings(**{key.replace(".", "__"): "nowhere"})
    with pytest.raises(InputError, match=rf"'nowhere' does not exist .*{key}"):
        worker.run(settings, Cancellation(), Console(quiet=True), ["fast"], 1, Counter())


def test_a_dead_letter_queue_that_may_not_be_used_is_done_without(bench: JobRig) -> None:
    url = bench.world.queue_url(bench.name("dead"))
    bench.world.sqs.delete_queue(QueueUrl=url)
    with capture_logs() as logs:
        queue = bench.sender.control.resolve(bench.name("fast"), "jobs.queue")
    assert queue.dead_letter_url is None
    assert [one["event"] for one in logs] == ["dead-letter queue cannot be used"]
    assert not bench.sender.control.bury(queue, "x", "y")
