"""The processes of the product, as actors: dispatchers, reconcilers, redoers, consumers and workers of jobs."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
from pydantic import TypeAdapter
from rich.console import Console

from dispatch import shift
from dispatch.aws.control import ControlQueues
from dispatch.aws.inbox import Inbox, JobObjects
from dispatch.aws.source import DynamoSource
from dispatch.dispatcher import Dispatcher, Partners
from dispatch.run import Cancellation
from dispatch.shift import Hand, Shift, Station
from dispatch.working import InTransaction, Job
from ledger import clock, jobs
from ledger.acknowledging import parse_note
from ledger.errors import CorruptError, DispatchLedgerError
from ledger.instants import Window, parse_window
from ledger.plans import Scope
from ledger.settings import Settings, env_name, load_settings
from ledger.store import Store
from ops.jobs.requests import JobRequest, new_job
from ops.jobs.sending import LANES, JobSender
from ops.jobs.worker import Slot, Timing, Worker
from reconcile.reconciler import Reconciler, windows_to_rescan
from reconcile.redo import apply_plan, make_plan
from reconcile.rescan import Options
from tests.fault.sim.aws import SimObjects, SimQueues, SimSession
from tests.fault.sim.boundaries import Boundaries
from tests.fault.sim.scheduler import Actor, Process, Scheduler
from tests.fault.sim.world import World
from tests.rig import FLOWS

PIPELINE = "reward"
LEASE_S = 60
_REQUEST: TypeAdapter[Any] = TypeAdapter(JobRequest)
_DEFAULTS = {
    "pipeline": PIPELINE,
    "ledger.database_url": "postgresql+psycopg://simulated/ledger",
    "objects.bucket": "rewards",
    "source.updated_at_attribute": "UpdatedAt",
    "dispatch.page_size": "3",
    "dispatch.lease": f"{LEASE_S}s",
    "reconcile.grace": "60s",
    "reconcile.orphan_grace": "60s",
    "schedule.not_before": "2026-09-17T14:00:00Z",
    "routes": '{"Point": {"job": "RewardPoint", "queue": "reward-point"}, '
    '"ECoupon": {"job": "RewardECoupon", "queue": "reward-ecoupon.fifo"}}',
}


@cache
def _settings(url: str, flow: str, overrides: tuple[tuple[str, str], ...]) -> Settings:
    keys = {**_DEFAULTS, **FLOWS[flow], **dict(overrides), "ledger.database_url": url}
    return load_settings(environ={env_name(key): value for key, value in keys.items()}, cwd=Path(__file__).parent)


class SimLock:
    """Stands in for a lock that is held across boundaries: who waits for it lets others run."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            clock.wait_s(0.01)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


@contextmanager
def sharable_jobs() -> Iterator[None]:
    """Give the consumer's jobs a lock that the simulation knows."""

    def make(*args: Any, **named: Any) -> Job:
        job = Job(*args, **named)
        job.lock = SimLock()  # type: ignore[assignment]
        return job

    with patch.object(shift, "Job", make):
        yield


class Crew:
    """Starts processes, and starts again those that were killed, as cron and Kubernetes do.

    Attributes:
        outcomes: how the runs ended, by what they were and how.
        wrongs: what a process has met that should be impossible.
        plans: the plans made, and what each covers.
    """

    def __init__(
        self, scheduler: Scheduler, boundaries: Boundaries, world: World, url: str, flow: str, **overrides: str
    ) -> None:
        self.scheduler, self.boundaries, self.world, self.url = scheduler, boundaries, world, url
        self.flow, self.overrides = flow, {name.replace("__", "."): text for name, text in overrides.items()}
        self.odd = False
        self.killed = 0
        self.outcomes: Counter[str] = Counter()
        self.wrongs: list[str] = []
        self.plans: dict[UUID, Scope] = {}
        self.stop = threading.Event()
        self._numbers: Counter[str] = Counter()

    def settings(self, **overrides: str) -> Settings:
        """Load settings as the product does."""
        named = {name.replace("__", "."): text for name, text in overrides.items()}
        return _settings(self.url, self.flow, tuple(sorted((self.overrides | named).items())))

    # Processes

    def start(self, kind: str, body: Callable[[], Any]) -> Actor:
        """Start a process; a new one after a killed one is recovering."""
        self._numbers[kind] += 1
        name = f"{kind}{self._numbers[kind]}"
        process = Process(name, recovering=self.killed > 0)

        def main() -> None:
            try:
                body()
            except CorruptError as error:
                self.wrongs.append(f"{name}: {error}")
            except DispatchLedgerError as error:
                self._note(f"{kind} {type(error).__name__}", str(error))

        return self.scheduler.spawn(name, process, main)

    def join(self, actor: Actor) -> bool:
        """Wait for a process; returns whether it was killed."""
        if not actor.over:
            self.scheduler.join(actor)
        self.killed += actor.process.dead
        return actor.process.dead

    def run(self, kind: str, body: Callable[[], Any], again: int = 0) -> None:
        """Run a process to its end; one that is killed is started again a few times, a little later."""
        for _ in range(again + 1):
            if not self.join(self.start(kind, body)):
                return
            self.scheduler.wait(5.0, None)

    def _note(self, what: str, reason: str = "") -> None:
        self.outcomes[what] += 1
        self.scheduler.note(f"{what}{': ' if reason else ''}{reason[:160]}")

    # What they do

    def partners(self, settings: Settings) -> Partners:
        """Connect to the world, as `connect_partners` does."""
        session: Any = SimSession(self.world, self.boundaries, odd=self.odd)
        call = timedelta(seconds=LEASE_S / 4)
        sqs = SimQueues(session, call=call)
        return Partners(
            DynamoSource(session, settings.source, verify_due=settings.dispatch.verify_due),
            SimObjects(session, self.world.bucket, call=call),
            sqs,
            {name: sqs.resolve(name) for name in sorted({route.queue for route in settings.routes.values()})},
        )

    @contextmanager
    def dispatcher(self, **overrides: str) -> Iterator[Dispatcher]:
        """Make what a process dispatches with."""
        settings = self.settings(**overrides)
        with Store(self.url) as store:
            yield Dispatcher(settings, store, self.partners(settings), Cancellation(), self.scheduler.actor.name)

    def dispatch_due(self) -> None:
        """Do what `dispatch --due` does."""
        with self.dispatcher() as dispatcher:
            for report in dispatcher.dispatch_due("schedule"):
                self._end(f"dispatch {report.outcome}", report.error)

    def dispatch(self, window: str) -> None:
        """Do what `dispatch --window` does."""
        with self.dispatcher() as dispatcher:
            report = dispatcher.dispatch(parse_window(window), "manual")
            self._end(f"dispatch {report.outcome}", report.error)

    def reconcile(self, windows: list[str] | None = None, **overrides: str) -> None:
        """Do what `reconcile` does."""
        with self.dispatcher(**overrides) as dispatcher:
            settings = dispatcher.settings.reconcile
            chosen: list[Window] = (
                windows_to_rescan(dispatcher, settings.lookback)
                if windows is None
                else [parse_window(one) for one in windows]
            )
            report = Reconciler(dispatcher, Options(settings, settings.grace)).reconcile(chosen)
            for one in report.windows:
                self._end(f"reconcile {one.outcome or 'left alone'}", one.error)

    def redo(self, window: str, scope: Scope) -> None:
        """Do what `redo plan` and `redo apply` do; who is killed in between applies the plan that was made."""
        with self.dispatcher() as dispatcher:
            plan = make_plan(dispatcher, parse_window(window), scope, parse_note("ann", "a ticket"))
            self.plans[plan.id] = scope
            self.scheduler.wait(2.0, None)
            self._apply(dispatcher, plan.id)

    def apply_all(self) -> None:
        """Apply every plan that somebody has made, until it is applied or will never be."""
        for plan_id in list(self.plans):
            with self.dispatcher() as dispatcher:
                try:
                    self._apply(dispatcher, plan_id)
                except DispatchLedgerError as error:
                    self._note(f"redo {type(error).__name__}", str(error))

    def _apply(self, dispatcher: Dispatcher, plan_id: UUID) -> None:
        applied = apply_plan(dispatcher, plan_id, "bob")
        self._end(f"redo {applied.document['state']}", applied.error)

    def _end(self, what: str, error: DispatchLedgerError | None) -> None:
        if isinstance(error, CorruptError):
            self.wrongs.append(f"{what}: {error}")
        self._note(what, "" if error is None else str(error))

    def consume(self, queue: str) -> None:
        """Do what a consumer does whose effect shares the receipt's transaction, until told to stop."""
        session: Any = SimSession(self.world, self.boundaries, odd=self.odd)
        inbox = Inbox(session, queue)
        lease = timedelta(seconds=inbox.held_s * 0.9 - 0.5)
        way = lambda store: InTransaction(store, _grant)  # noqa: E731
        station = Station(inbox, JobObjects(session), self.url, lease, self.scheduler.actor.name, way)
        whole = Shift(station, self.stop, None, timedelta(seconds=10))
        whole.keeper.start()
        try:
            with Hand(whole) as hand:
                hand.work()
        finally:
            whole.keeper.stop()

    def post(self, kind: str, params: Mapping[str, Any], **more: Any) -> UUID:
        """Ask for a job and put its id on its queue, as the API does."""
        request = _REQUEST.validate_python({"kind": kind, "params": params, **more})
        with Store(self.url) as store:
            job = jobs.create_job(store, PIPELINE, new_job(request, "test"), 100)
            self._sender().send(store, job.id, job.queue)
        return job.id

    def _sender(self) -> JobSender:
        session: Any = SimSession(self.world, self.boundaries, odd=self.odd)
        control = ControlQueues(session, send=timedelta(seconds=2), wait=timedelta(seconds=10))
        sender = JobSender(control, self.settings().jobs)
        for lane in LANES:
            sender.queue(lane)
        return sender

    def work(self, lane: Any) -> None:
        """Do what one slot of a worker does, until told to stop."""
        settings = self.settings()
        timing = Timing.of(settings)
        worker = Worker(settings, self.partners(settings), self._sender(), self.url, timing, Console(quiet=True))
        slot = Slot(worker, lane)
        while not self.stop.is_set():
            try:
                slot.step()
            except DispatchLedgerError as error:
                self._note(f"worker waits {type(error).__name__}", str(error))
                clock.wait_s(5.0, self.stop)
        slot.close()

    def relay(self) -> None:
        """Send the ids of jobs that wait for it, as a worker's relay does, until told to stop."""
        sender = self._sender()
        with Store(self.url) as store:
            while not self.stop.is_set():
                try:
                    sender.relay(store, PIPELINE)
                except DispatchLedgerError as error:
                    self._note(f"relay waits {type(error).__name__}", str(error))
                clock.wait_s(10.0, self.stop)

    def keep_running(self, kind: str, body: Callable[[], Any]) -> None:
        """Start a process, and another one whenever it is killed, until told to stop."""

        def watch() -> None:
            while not self.stop.is_set():
                self.join(self.start(kind, body))
                clock.wait_s(5.0, self.stop)

        self.scheduler.spawn(f"{kind}'s supervisor", Process("supervisor"), watch)


def _grant(document: dict[str, Any], connection: psycopg.Connection[Any]) -> dict[str, int]:
    key, generation = document["idempotency_key"], document["generation"]
    for record in document["records"]:
        connection.execute(
            "INSERT INTO simulated_effects VALUES (%s, %s, %s, %s)",
            (key, record["Id"], record["BookingTimeUTC"], generation),
        )
    return {"granted": len(document["records"])}
