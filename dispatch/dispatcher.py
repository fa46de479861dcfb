"""One run of one window, from the lease to the closed books."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import structlog

from dispatch.aws.objects import S3Objects
from dispatch.aws.queues import Queue, SqsQueues
from dispatch.aws.session import Session
from dispatch.aws.source import DynamoSource
from dispatch.emit import emit, emit_streamed, recover
from dispatch.feeders import Streamed, feed
from dispatch.judging import Rules, rules_of
from dispatch.payload import overhead_bytes
from dispatch.run import Cancellation, Run
from dispatch.witnesses import RunWitness, enter
from ledger import clock, findings, outbox, runs, staging, windows
from ledger.errors import BusyError, CancelledError, DispatchLedgerError, GuardError, InputError
from ledger.facts import Cause, Destination, RunCounts, RunOutcome
from ledger.ids import new_id
from ledger.instants import Window, format_time
from ledger.leases import LeaseKeeper, PutBackError
from ledger.settings import Settings
from ledger.store import Store

LOG = structlog.get_logger(__name__)
_CALL_MAX_S = 15.0


@dataclass
class Partners:
    """The outside world, found and checked before anything is written.

    Attributes:
        queues: the queue of each route, by the name that the settings use.
    """

    source: DynamoSource
    objects: S3Objects
    sqs: SqsQueues
    queues: dict[str, Queue]


def connect_partners(settings: Settings, endpoint_url: str | None) -> Partners:
    """Find table, index, bucket and queues.

    Raises:
        InputError: naming the one that is missing or does not fit, and how to mend it.
        UnavailableError: when a service does not answer.
    """
    if not settings.objects.bucket:
        raise InputError("objects.bucket is not set: name the S3 bucket that group payloads go to")
    session = Session(endpoint_url, settings.aws.region, embedded=settings.aws.endpoint_url == "embedded")
    # A call must end well before the lease does, and the lease is renewed every third.
    call = timedelta(seconds=min(_CALL_MAX_S, settings.dispatch.lease.total_seconds() / 4))
    source = DynamoSource(session, settings.source, verify_due=settings.dispatch.verify_due)
    objects = S3Objects(session, settings.objects.bucket, call=max(call, timedelta(seconds=2)))
    sqs = SqsQueues(session, call=call)
    names = {route.queue for route in settings.routes.values()}
    return Partners(source, objects, sqs, {name: sqs.resolve(name) for name in sorted(names)})


@dataclass
class RunReport:
    """What a run leaves behind for people and programs; every field is one of `dispatch --json` (CONTRACT §3).

    Attributes:
        open_findings: findings of the window that are open after the run.
        dry_run: whether it says what a run would do, and there was none.
    """

    run_id: UUID
    pipeline: str
    window: Window
    flow: str
    page_size: int
    cause: Cause
    outcome: RunOutcome
    started_at: datetime
    finished_at: datetime
    counts: RunCounts = field(default_factory=RunCounts)
    error: DispatchLedgerError | None = None
    open_findings: int = 0
    dry_run: bool = False


@dataclass
class Dispatcher:
    """Dispatches windows, one after another, under one configuration.

    Attributes:
        on_progress: called as a run goes on.
    """

    settings: Settings
    store: Store
    partners: Partners
    cancellation: Cancellation
    holder: str
    on_progress: Callable[[RunCounts], None] = field(default=lambda _: None)

    def dispatch(self, window: Window, cause: Cause) -> RunReport:
        """Run one window from the first page to closed books; what an earlier run left behind is finished first.

        A run that fails, is busy, held or cancelled is reported, not raised; its error is in the report.
        """
        return self.run(self.request(window, cause), self._dispatch)

    def dispatch_due(self, cause: Cause) -> Iterator[RunReport]:
        """Run every closed window within `schedule.catch_up` that was never completed, oldest first, each once.

        One that another process completes in the meantime is passed over; a signal ends it after the step in hand.
        """
        schedule, pipeline = self.settings.schedule, self.settings.pipeline
        for window in runs.owed_windows(self.store, pipeline, schedule.catch_up, schedule.not_before):
            try:
                report = self.run(replace(self.request(window, cause), only_owed=True), self._dispatch)
            except runs.NotOwedError:
                continue
            yield report
            if report.outcome == "cancelled":
                return

    def run(self, request: runs.RunRequest, steps: Callable[[Run, runs.Started], datetime]) -> RunReport:
        """Run one window under its lease; how it failed, if it did, is in the report.

        Args:
            steps: does the work and completes the run; returns when it was completed, on the database's clock.

        Raises:
            NotOwedError: when only an owed window was wanted, and this one has been completed.
        """
        window = request.window
        report = RunReport(
            run_id=request.run_id,
            pipeline=request.pipeline,
            window=window,
            flow=request.flow,
            page_size=request.page_size,
            cause=request.cause,
            outcome="failed",
            started_at=clock.utc_now(),
            finished_at=clock.utc_now(),
        )
        try:
            self.cancellation.check()
            started = self._start(request)
        except runs.NotOwedError:
            raise
        except DispatchLedgerError as error:
            report.outcome, report.error = outcome_of(error), error
            report.finished_at = clock.utc_now()
            return report
        report.started_at = started.started_at
        with structlog.contextvars.bound_contextvars(window=window.name, run_id=str(request.run_id)):
            LOG.info("run started", flow=request.flow, cause=request.cause, fence=started.tenure.fence)
            self._work(started, report, steps)
            LOG.info("run ended", outcome=report.outcome, **msgspec.structs.asdict(report.counts))
        return report

    def _start(self, request: runs.RunRequest) -> runs.Started:
        return runs.start_run(self.store, request)

    def request(self, window: Window, cause: Cause) -> runs.RunRequest:
        """Return what a run of this window sets out to do, under this configuration."""
        return runs.RunRequest(
            run_id=new_id(),
            pipeline=self.settings.pipeline,
            window=window,
            flow=self.settings.flow,
            page_size=self.settings.dispatch.page_size,
            cause=cause,
            config=frozen_config(self.settings),
            holder=self.holder,
            lease=self.settings.dispatch.lease,
        )

    def _work(self, started: runs.Started, report: RunReport, steps: Callable[[Run, runs.Started], datetime]) -> None:
        try:
            with self.working(started, report.counts) as run:
                report.finished_at = steps(run, started)
            report.outcome = "completed"
            report.open_findings = findings.count_open(self.store, started.tenure)
        except DispatchLedgerError as error:
            report.outcome, report.error, report.finished_at = outcome_of(error), error, clock.utc_now()

    @staticmethod
    def _dispatch(run: Run, _started: runs.Started) -> datetime:
        _run(run)
        return runs.complete_run(run.store, run.tenure, run.counts)

    @contextmanager
    def working(self, started: runs.Started, counts: RunCounts, begin: Callable[[Run], None] = enter) -> Iterator[Run]:
        """Yield what a run works with, its lease renewed meanwhile; a run that fails in here ends with its books.

        Args:
            begin: makes sure that the ledger knows what was promised in the window.
        """
        keeper = LeaseKeeper(started.tenure, self.store.url, started.asked_s)
        keeper.start()
        try:
            run = self._prepare(started, keeper, counts)
            begin(run)
            staging.discard_others(self.store, started.tenure)
            yield run
        except DispatchLedgerError as error:
            error = self._held_if_put_back(started, error)
            keeper.stop()
            self._end(started, counts, outcome_of(error), str(error))
            raise error from error.__cause__
        except BaseException as error:
            keeper.stop()
            self._end(started, counts, "failed", f"unexpected {type(error).__name__}")
            raise
        finally:
            keeper.stop()

    def _held_if_put_back(self, started: runs.Started, error: DispatchLedgerError) -> DispatchLedgerError:
        """Hold the window when the ledger was put back under the run's feet; returns the error to end with."""
        if not isinstance(error, PutBackError):
            return error
        try:
            return windows.hold_behind(self.store, started.tenure, str(error))
        except DispatchLedgerError as other:
            return other

    def _prepare(self, started: runs.Started, keeper: LeaseKeeper, counts: RunCounts) -> Run:
        tenure = started.tenure
        origin = windows.read_origin(self.store, tenure.pipeline)
        destinations = outbox.destinations(self.store, tenure.pipeline_id, self._destinations())
        place = (self.partners.objects.bucket, self.settings.objects.prefix)
        return Run(
            store=self.store,
            tenure=tenure,
            keeper=keeper,
            source=self.partners.source,
            objects=self.partners.objects,
            sqs=self.partners.sqs,
            rules=self.rules(tenure.window),
            flow=self.settings.flow,
            page_size=self.settings.dispatch.page_size,
            verify_due=self.settings.dispatch.verify_due,
            destinations=destinations,
            origin=origin,
            objects_checked=started.objects_checked,
            witness=RunWitness(self.partners.objects, tenure, place, origin.ledger_id),
            queues=dict(self.partners.queues),
            cancellation=self.cancellation,
            on_progress=self.on_progress,
            counts=counts,
            skips_claimed=outbox.has_claims(self.store, tenure),
        )

    def _destinations(self) -> list[Destination]:
        bucket, prefix = self.partners.objects.bucket, self.settings.objects.prefix
        return [
            Destination(id=0, route=name, job=route.job, queue=route.queue, bucket=bucket, prefix=prefix)
            for name, route in self.settings.routes.items()
        ]

    def rules(self, window: Window) -> Rules:
        """Return what a record of this window is judged by."""
        room = {
            one.route: self.partners.queues[one.queue].message_bytes_max
            - overhead_bytes(self.settings.pipeline, window, one)
            for one in self._destinations()
        }
        return rules_of(self.settings.source, self.partners.source.schema, window, room)

    def _end(self, started: runs.Started, counts: RunCounts, outcome: RunOutcome, error: str) -> None:
        with suppress(DispatchLedgerError):  # the database may be what failed; the next run ends this one then
            runs.end_run(self.store, started.tenure, outcome, error, counts)


def _run(run: Run) -> None:
    """The steps of a run."""
    recover(run)
    for batch in feed(run):
        run.checkpoint()
        if isinstance(batch, Streamed):
            emit_streamed(run, batch)
        else:
            emit(run, batch)
    run.checkpoint()


def run_document(report: RunReport) -> dict[str, Any]:
    """Return a run's report as the document of `dispatch --json`; a dry run says that it is one, and has no run."""
    return {
        **({"dry_run": True} if report.dry_run else {}),
        "run_id": None if report.dry_run else str(report.run_id),
        "pipeline": report.pipeline,
        "window": {"start": report.window.name, "end": report.window.end_name},
        "flow": report.flow,
        "page_size": report.page_size,
        "outcome": report.outcome,
        "cause": report.cause,
        **msgspec.structs.asdict(report.counts),
        "started_at": format_time(report.started_at),
        "finished_at": format_time(report.finished_at),
        "error": None if report.error is None else str(report.error),
    }


def outcome_of(error: DispatchLedgerError) -> RunOutcome:
    """Return how a run ended that raised this."""
    if isinstance(error, CancelledError):
        return "cancelled"
    if isinstance(error, BusyError):
        return "busy"
    return "held" if isinstance(error, GuardError) else "failed"


def frozen_config(settings: Settings) -> str:
    """Return what a run was configured with, as JSON; no address of the database and no tokens."""
    kept = settings.model_dump(mode="json", include={"aws", "source", "objects", "routes", "dispatch", "reconcile"})
    return msgspec.json.encode(kept, order="sorted").decode()
