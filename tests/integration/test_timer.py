"""The scheduler's timer: a job that is still at work when its next time comes is left alone, and nobody is alarmed."""

import threading

import pytest
from apscheduler.triggers.interval import IntervalTrigger
from rich.console import Console
from structlog.testing import capture_logs

from dispatch.run import Cancellation
from ops import schedule
from ops.schedule import Summary
from tests.product import until
from tests.rig import Rig

LEFT_OUT = "scheduled job is still at work; this time is left out, and the next one comes"


def test_a_job_whose_next_time_comes_while_it_is_at_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    monkeypatch.setattr(schedule, "trigger_of", lambda _: IntervalTrigger(seconds=0.02))
    monkeypatch.setattr(schedule._Job, "_do", lambda job: go.wait(60))
    cancellation, summary = Cancellation(), Summary()
    with capture_logs() as logs, schedule.started(rig.settings(), cancellation, Console(quiet=True), summary):
        until(lambda: {one["job"] for one in logs if one["event"] == LEFT_OUT} >= {"dispatch", "deep_reconcile"}, "")
        go.set()
        cancellation.ask(15)
    assert {one["log_level"] for one in logs} == {"info"}
    assert caplog.records == [], "nothing of the library's own"
