"""Trouble that lasts is said when it begins, now and then, and when it is over; not for every try."""

import pytest
from structlog.testing import capture_logs

from dispatch.outages import SAID_EVERY, Outage
from ledger import clock


def test_one_line_when_it_begins_some_while_it_lasts_and_one_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s)
    outage = Outage("it waits", "it goes on", queue="q")
    with capture_logs() as lines:
        outage.over()
        for _ in range(1000):
            outage.met("no answer")
            now_s += 1
        assert outage.lasts
        outage.over()
        outage.over()
        outage.met("no answer")
    begun = {"event": "it waits", "reason": "no answer", "queue": "q", "log_level": "warning"}
    ended = {"event": "it goes on", "failed_tries": 1000, "lasted_s": 1000.0, "queue": "q", "log_level": "warning"}
    assert lines == [*[begun] * (1 + int(999 // SAID_EVERY.total_seconds())), ended, begun]
