"""The paired scheduled jobs: a timer only wakes them. What is owed is in the ledger; the lease decides who works."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from apscheduler.events import EVENT_JOB_MAX_INSTANCES, JobSubmissionEvent
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from rich.console import Console

from dispatch.dispatcher import Dispatcher, RunReport
from dispatch.run import Cancellation
from ledger import clock
from ledger.errors import DispatchLedgerError
from ledger.instants import format_time
from ledger.settings import Settings
from ops import wiring
from reconcile.reconciler import Reconciler, windows_to_rescan
from reconcile.rescan import Options

LOG = structlog.get_logger(__name__)
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LOOK_S = 0.2
_NAMED_MAX = 3


@dataclass
class Summary:
    """What a scheduler has done so far: how often each job ran, and how often it failed."""

    ran: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """The document of `scheduler --json`."""
        return {
            "jobs": [
                {"job": name, "ran": count, "failed": self.failed.get(name, 0)} for name, count in self.ran.items()
            ]
        }


def run(settings: Settings, cancellation: Cancellation, console: Console, summary: Summary) -> None:
    """Run the jobs until a signal asks for the end, which waits for the step in hand.

    Args:
        summary: kept up to date with what the jobs have done.

    Raises:
        InputError: when table, index, bucket or queues are missing, at the start only.
        UnavailableError: when AWS or the ledger does not answer at the start.
    """
    with started(settings, cancellation, console, summary):
        wait_for_end(cancellation)


def wait_for_end(cancellation: Cancellation) -> None:
    """Wait until a signal asks for the end."""
    while not cancellation.is_asked:
        clock.wait_s(_LOOK_S, cancellation.asked)


@contextmanager
def started(settings: Settings, cancellation: Cancellation, console: Console, summary: Summary) -> Iterator[None]:
    """Run the jobs on their cron lines while the block runs; its end waits for the step in hand.

    Dispatch and then reconcile run once at the start: what was missed while nobody was there is no finding then. A job
    that fails is told of, and runs again at its next time. Any number of schedulers may run: a window that another one
    works on is left to it.

    Args:
        summary: kept up to date with what the jobs have done.

    Raises:
        InputError: when table, index, bucket or queues are missing, at the start only.
        UnavailableError: when AWS or the ledger does not answer at the start.
    """
    jobs = {
        "dispatch": (settings.schedule.dispatch, _dispatch),
        "reconcile": (settings.schedule.reconcile, reconcile_recent),
        "deep_reconcile": (settings.schedule.deep_reconcile, reconcile_deep),
    }
    with wiring.aws_endpoint(settings), wiring.database(settings), wiring.dispatcher(settings, cancellation, _quiet):
        timer = _timer()
        dispatched = threading.Event()
        for name, (line, work) in jobs.items():
            job = _Job(name, work, settings, cancellation, console, summary, dispatched)
            at_once = {} if name == "deep_reconcile" else {"next_run_time": clock.utc_now()}
            timer.add_job(
                job, trigger_of(line), id=name, coalesce=True, max_instances=1, misfire_grace_time=None, **at_once
            )
        timer.start()
        try:
            yield
        finally:
            timer.shutdown(wait=True)


def _timer() -> BackgroundScheduler:
    """Make a timer that says in our words what is worth saying: a job that is still at work is no trouble."""
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    timer = BackgroundScheduler(timezone=UTC)
    timer.add_listener(_say_left_out, EVENT_JOB_MAX_INSTANCES)
    return timer


def _say_left_out(event: JobSubmissionEvent) -> None:
    LOG.info("scheduled job is still at work; this time is left out, and the next one comes", job=event.job_id)


def trigger_of(line: str) -> BaseTrigger:
    """Return the trigger of a cron line, in UTC.

    APScheduler counts weekdays from Monday where cron counts from Sunday, and wants both day fields to match where cron
    is content with either, if both are restricted.
    """
    minute, hour, day, month, weekday = line.split()
    clock_face = {
        "minute": _listed(minute, 0, 59),
        "hour": _listed(hour, 0, 23),
        "month": _listed(month, 1, 12),
        "timezone": UTC,
    }
    weekdays = ",".join(_WEEKDAYS[number] for number in _numbers(weekday, 0, 6 if weekday == "*" else 7))
    by_day = CronTrigger(day=_listed(day, 1, 31), **clock_face)
    by_weekday = CronTrigger(day_of_week=weekdays, **clock_face)
    if weekday == "*":
        return by_day
    return by_weekday if day == "*" else OrTrigger([by_day, by_weekday])


def _numbers(field: str, low: int, high: int) -> list[int]:
    """Expand one field of a cron line, such as `*/20`, `1-5` or `0,30`."""
    chosen: list[int] = []
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last) if last else (high if step else int(first))
        chosen += range(int(first), end + 1, int(step or 1))
    return chosen


def _listed(field: str, low: int, high: int) -> str:
    return ",".join(map(str, sorted(set(_numbers(field, low, high)))))


@dataclass
class _Job:
    name: str
    work: Callable[[Dispatcher], str]
    settings: Settings
    cancellation: Cancellation
    console: Console
    summary: Summary
    dispatched: threading.Event

    def __call__(self) -> None:
        """Do it once, with connections of its own; whatever goes wrong, the next time it is done again."""
        if self.name == "reconcile":
            self._wait_for_the_first_dispatch()
        if not self.cancellation.is_asked:
            self._do()
        if self.name == "dispatch":
            self.dispatched.set()

    def _wait_for_the_first_dispatch(self) -> None:
        while not (self.dispatched.is_set() or self.cancellation.is_asked):
            clock.wait_s(_LOOK_S, self.dispatched)

    def _do(self) -> None:
        self.summary.ran[self.name] = self.summary.ran.get(self.name, 0) + 1
        try:
            with wiring.dispatcher(self.settings, self.cancellation, _quiet) as dispatcher:
                self._tell(self.work(dispatcher))
        except DispatchLedgerError as error:
            self._fail(str(error))
        except Exception as error:
            self._fail(f"unexpected {type(error).__name__}: {error}")
            LOG.exception("scheduled job failed", job=self.name)

    def _tell(self, text: str) -> None:
        self.console.print(f"{_now()}  {self.name:<14}  {text}", soft_wrap=True)

    def _fail(self, reason: str) -> None:
        self.summary.failed[self.name] = self.summary.failed.get(self.name, 0) + 1
        self._tell(f"failed: {reason}")


def _now() -> str:
    moment: datetime = clock.utc_now()
    return format_time(moment.replace(microsecond=0))


def _quiet(_: object) -> None:
    pass


def _dispatch(dispatcher: Dispatcher) -> str:
    reports = list(dispatcher.dispatch_due("schedule"))
    for report in reports:
        if report.error is not None:
            LOG.warning("window was not completed", window=report.window.name, reason=str(report.error))
    return _told(reports) or "nothing is owed"


def _told(reports: list[RunReport]) -> str:
    """Name a few windows one by one, and many by the first and the last."""
    if len(reports) <= _NAMED_MAX:
        return "; ".join(f"{one.window} {one.outcome}, {one.counts.confirmed} jobs" for one in reports)
    outcomes = Counter(one.outcome for one in reports)
    counted = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    jobs = sum(one.counts.confirmed for one in reports)
    return f"{len(reports)} windows from {reports[0].window} to {reports[-1].window}: {counted}, {jobs} jobs"


def reconcile_recent(dispatcher: Dispatcher) -> str:
    """Reconcile the windows within `reconcile.lookback`; returns what came of it, in words."""
    return _rescan(dispatcher, dispatcher.settings.reconcile.lookback)


def reconcile_deep(dispatcher: Dispatcher) -> str:
    """Reconcile the windows within `reconcile.deep_lookback`, for records that came later than `lookback`."""
    return _rescan(dispatcher, dispatcher.settings.reconcile.deep_lookback)


def _rescan(dispatcher: Dispatcher, lookback: timedelta) -> str:
    settings = dispatcher.settings.reconcile
    windows = windows_to_rescan(dispatcher, lookback)
    report = Reconciler(dispatcher, Options(settings, settings.grace)).reconcile(windows)
    failed = [one for one in report.windows if one.error is not None and not one.busy]
    for one in failed:
        LOG.warning("window was not reconciled", window=one.window.name, reason=str(one.error))
    text = f"{len(windows)} windows, {report.count('open')} findings open, {report.count('repaired')} repaired"
    return text + (f", {len(failed)} windows failed or held" if failed else "")
