"""The workers: they receive ids, claim the jobs, do them, and say what came of it. Any number of machines may run them.

A slot works on one job at a time, from one queue. While it works, a beat renews the job's claim and keeps its message
hidden; it also notices that the job was cancelled or lost, or takes too long for the fast queue, and asks the work to
stop at its next safe point.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

import structlog
from rich.console import Console

from dispatch.aws.control import ControlQueue, Received
from dispatch.dispatcher import Dispatcher, Partners, connect_partners
from dispatch.outages import Outage
from dispatch.run import Cancellation
from dispatch.shift import held_delay_s
from ledger import clock, jobs
from ledger.errors import (
    BusyError,
    CancelledError,
    ClaimLostError,
    DispatchLedgerError,
    InputError,
    UnavailableError,
)
from ledger.ids import new_id
from ledger.instants import format_time
from ledger.jobs import ATTEMPTS_MAX, Held, Job, Lane, Refused
from ledger.settings import Settings
from ledger.store import Store
from ops import wiring
from ops.jobs.kinds import KINDS, Outcome, Progress, Task, result_of
from ops.jobs.sending import LANES, JobSender, relay_until

LOG = structlog.get_logger(__name__)
_LOOK_S = 0.2
_IDLE_ENDS_WITHIN_S = 0.5
_REST_S = 5.0
_BEATS_A_LEASE = 6
_BEAT_MAX = timedelta(seconds=5)
_PAUSE_MAX = timedelta(seconds=30)
# A message comes back a little after the claim has run out, so that who receives it can claim the job.
_HIDDEN_LONGER = timedelta(seconds=2)
Stop = Literal["stopped", "moved", "cancelled", "lost"]


@dataclass(frozen=True)
class Timing:
    """The time limits of a worker.

    Attributes:
        lease: how long a job stays with a worker that no longer renews its claim.
        beat: how often it does.
        pause: how long a job waits that met a busy window, or whose attempt failed.
        fast_limit: how long a job may take on the fast queue.
    """

    lease: timedelta
    beat: timedelta
    pause: timedelta
    fast_limit: timedelta

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Derive them: a dead worker's job is free when the lease on its window is."""
        lease = settings.dispatch.lease
        return cls(lease, min(lease / _BEATS_A_LEASE, _BEAT_MAX), min(lease / 2, _PAUSE_MAX), settings.jobs.fast_limit)

    @property
    def hidden(self) -> timedelta:
        """How long a message is kept from others at a time."""
        return self.lease + _HIDDEN_LONGER


@dataclass(frozen=True)
class Verdict:
    """What becomes of a job after an attempt.

    Attributes:
        act: `complete`, `fail`, `return` to wait for another attempt, or `drop`: it is not this worker's any more.
        counts: whether a returned job's attempt counts.
    """

    act: Literal["complete", "fail", "return", "drop"]
    lane: Lane = "fast"
    delay: timedelta = timedelta()
    counts: bool = False


def judge(job: Job, error: DispatchLedgerError | None, stop: Stop | None, pause: timedelta) -> Verdict:
    """Decide what becomes of a job. Pure.

    Args:
        error: what kept the attempt from being all of the work.
        stop: why the work was asked to stop, if it was.
    """
    if stop in {"lost", "cancelled"} or isinstance(error, ClaimLostError):
        return Verdict("drop")
    if error is None:
        return Verdict("complete")
    if isinstance(error, CancelledError):
        return Verdict("return", "slow" if stop == "moved" else job.queue)
    if isinstance(error, BusyError):
        return Verdict("return", job.queue, pause)
    if isinstance(error, UnavailableError) and job.attempts < ATTEMPTS_MAX:
        return Verdict("return", job.queue, pause, counts=True)
    return Verdict("fail")


class Beat:
    """Keeps a job while it is worked on, from a thread and a connection of its own.

    Attributes:
        stop: why the work was asked to stop; None while it was not.
    """

    def __init__(self, worker: "Worker", lane: Lane, received: Received, held: Held, *, moves: bool) -> None:
        self.cancellation = Cancellation()
        self.progress = Progress()
        self.stop: Stop | None = None
        self._worker, self._lane, self._received, self._held = worker, lane, received, held
        self._moves = moves and lane == "fast"
        self._began_s = clock.monotonic_s()
        # The claim may run out meanwhile; then whoever takes the job fences us.
        self._outage = Outage("job in hand is not kept", "job in hand is kept again", job=str(held.id))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_over, name="beat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(timeout=15)

    def ask(self, stop: Stop) -> None:
        """Ask the work to stop at its next safe point; that the job is gone outweighs every other reason."""
        if self.stop is None or stop in {"cancelled", "lost"}:
            self.stop = stop
        self.cancellation.ask(15)

    def _beat_until_over(self) -> None:
        with Store(self._worker.url) as store:
            while not clock.wait_s(self._next_s(), self._over):
                try:
                    self._beat(store)
                    if self.stop in {"cancelled", "lost"}:
                        return
                    self._outage.over()
                except DispatchLedgerError as error:
                    self._outage.met(str(error))

    def _next_s(self) -> float:
        """Return how long to wait for the next beat, or until the job has had its time."""
        beat_s = self._worker.timing.beat.total_seconds()
        return max(0.0, min(beat_s, self._left_s())) if self._moves and self.stop is None else beat_s

    def _left_s(self) -> float:
        return self._worker.timing.fast_limit.total_seconds() - (clock.monotonic_s() - self._began_s)

    def _beat(self, store: Store) -> None:
        worker, progress = self._worker, self.progress
        state = jobs.renew_claim(store, self._held, worker.timing.lease, progress.done, progress.total)
        if state != "held":
            self.ask(state)
            return
        if self._moves and self._left_s() <= 0:
            self.ask("moved")
        worker.sender.control.hide(worker.sender.queue(self._lane), self._received, worker.timing.hidden)


def worker_document(ended: Counter[str]) -> dict[str, Any]:
    """Return the document of `worker --json`: what became of the jobs in hand."""
    return {"jobs": {name: ended[name] for name in ("completed", "failed", "returned", "dropped")}}


@dataclass
class Worker:
    """What the slots of one process share.

    Attributes:
        ended: what became of the jobs, by how often.
        outages: of ledger or queue, as the slots of each queue meet them.
    """

    settings: Settings
    partners: Partners
    sender: JobSender
    url: str
    timing: Timing
    console: Console
    ended: Counter[str] = field(default_factory=Counter)
    outages: dict[Lane, Outage] = field(
        default_factory=lambda: {one: Outage("worker waits", "worker goes on", queue=one) for one in LANES}
    )

    def tell(self, job: Job, what: str, reason: str = "") -> None:
        """Print one line for a person, and count."""
        self.ended[what] += 1
        now = format_time(clock.utc_now().replace(microsecond=0))
        self.console.print(f"{now}  {job.kind:<9}  {job.id}  {what}{': ' if reason else ''}{reason}", soft_wrap=True)


class Slot:
    """Works on one job at a time, from one queue, until stopped."""

    def __init__(self, worker: Worker, lane: Lane) -> None:
        self._worker, self._lane = worker, lane
        self._stop = threading.Event()
        self._beat: Beat | None = None
        self._store = Store(worker.url)
        self._thread = threading.Thread(target=self._run, name=f"slot-{lane}", daemon=True)

    def start(self) -> None:
        """Begin to receive."""
        self._thread.start()

    def stop(self) -> None:
        """Take no other job, and give the one in hand back at its next safe point."""
        self._stop.set()
        if (beat := self._beat) is not None:
            beat.ask("stopped")

    def join(self) -> None:
        """Wait until the job in hand is given back; who only waits for a message is not waited for."""
        deadline_s = clock.monotonic_s() + _IDLE_ENDS_WITHIN_S
        while self._thread.is_alive() and (self._beat is not None or clock.monotonic_s() < deadline_s):
            self._thread.join(timeout=0.05)

    def close(self) -> None:
        """Close its connection to the ledger."""
        self._store.close()

    def _run(self) -> None:
        outage = self._worker.outages[self._lane]
        while not self._stop.is_set():
            try:
                if outage.lasts:  # a message that is received in vain is one hand-out nearer to the dead letters
                    self._store.transaction(lambda connection: connection.execute("SELECT 1"))
                self.step()
                outage.over()
            except DispatchLedgerError as error:
                if not self._stop.is_set():  # else whoever stops us stops the services, too
                    outage.met(str(error))
                clock.wait_s(_REST_S, self._stop)
            except Exception:
                LOG.exception("worker met what it did not expect", queue=self._lane)
                clock.wait_s(_REST_S, self._stop)
        self.close()

    @property
    def _queue(self) -> ControlQueue:
        return self._worker.sender.queue(self._lane)

    def step(self) -> bool:
        """Wait for one message and do what it asks for; says whether there was one.

        Raises:
            UnavailableError: when the ledger or the queue does not answer; the message comes back by itself.
        """
        control = self._worker.sender.control
        received = control.receive(self._queue, self._worker.timing.hidden)
        if received is None:
            return False
        if self._stop.is_set():
            control.hide(self._queue, received, timedelta())
            return True
        job_id = _job_id(received.body)
        if job_id is None:
            self._bury(received, "this is no id of a job")
            return True
        held = Held(job_id, new_id())
        claimed = jobs.claim_job(self._store, self._worker.settings.pipeline, held, self._worker.timing.lease)
        if isinstance(claimed, Refused):
            self._leave(received, claimed)
        else:
            self._work(received, claimed, held)
        return True

    def _leave(self, received: Received, refused: Refused) -> None:
        control = self._worker.sender.control
        match refused.reason:
            case "ended" if refused.error:  # whoever failed it may have been killed before it was put aside
                self._bury(received, refused.error)
            case "ended":
                control.delete(self._queue, received)
            case "unknown":
                self._bury(received, "no such job in the ledger")
            case "exhausted":
                self._worker.ended["failed"] += 1
                self._bury(received, refused.error)
            case "claimed":  # its worker may be dead, or have long to do: the message comes back, later each time
                delay_s = held_delay_s(received.received, timedelta(seconds=refused.wait_s))
                control.hide(self._queue, received, timedelta(seconds=delay_s))
            case "foreign":  # for the workers of another pipeline
                control.hide(self._queue, received, self._worker.timing.pause)

    def _bury(self, received: Received, reason: str) -> None:
        """Put a message where nobody works on it any more, with the reason."""
        control = self._worker.sender.control
        buried = control.bury(self._queue, received.body, reason)
        LOG.warning("job is given up", job=received.body[:80], reason=reason, dead_lettered=buried)
        control.delete(self._queue, received)

    def _work(self, received: Received, job: Job, held: Held) -> None:
        moves = KINDS[job.kind].moves
        beat = Beat(self._worker, self._lane, received, held, moves=moves)
        with structlog.contextvars.bound_contextvars(job=str(job.id)):
            LOG.info("job claimed", kind=job.kind, attempt=job.attempts, queue=self._lane)
            self._beat = beat
            try:
                with beat:
                    if self._stop.is_set():
                        beat.ask("stopped")
                    outcome, result = self._attempt(job, held, beat)
                verdict = judge(job, outcome.error, beat.stop, self._worker.timing.pause)
                self._end(_InHand(received, job, held, beat), verdict, _reason(outcome.error, beat.stop), result)
            finally:
                self._beat = None

    def _attempt(self, job: Job, held: Held, beat: Beat) -> tuple[Outcome, bytes | None]:
        """Do the work; whatever goes wrong is part of the outcome."""
        worker = self._worker
        dispatcher = Dispatcher(worker.settings, self._store, worker.partners, beat.cancellation, wiring.holder())
        task = Task(job, held, dispatcher, beat.progress)
        try:
            beat.cancellation.check()
            outcome = KINDS[job.kind].work(task)
            return outcome, result_of(task, outcome.document)
        except DispatchLedgerError as error:
            return Outcome(None, error), None
        except Exception as error:
            LOG.exception("job failed in an unexpected way")
            text = f"unexpected {type(error).__name__}: {error}; please report it"
            return Outcome(None, UnavailableError(text)), None

    def _end(self, hand: "_InHand", verdict: Verdict, reason: str, result: bytes | None) -> None:
        """Write down what became of the job, then let its message go; one that is not let go comes again."""
        told = {"complete": "completed", "fail": "failed", "return": "returned", "drop": "dropped"}[verdict.act]
        try:
            self._write_down(hand, verdict, reason, result)
            try:
                self._let_go(hand, verdict, reason)
            except DispatchLedgerError as error:
                LOG.warning("message of a job was not let go; it comes again", reason=str(error))
        except ClaimLostError as error:
            told, reason = "dropped", str(error)
        except UnavailableError as error:
            told, reason = "dropped", f"{error}; its claim runs out, and another worker takes it"
        self._worker.tell(hand.job, told, "" if told == "completed" else reason)
        LOG.info("job let go", outcome=told, reason=reason or None)

    def _write_down(self, hand: "_InHand", verdict: Verdict, reason: str, result: bytes | None) -> None:
        """Tell the ledger, however long it does not answer, so that what was done need not be done again.

        Raises:
            ClaimLostError: when the job is no longer ours.
            UnavailableError: when the ledger does not answer before the worker is stopped.
        """
        outage = self._worker.outages[self._lane]
        while True:
            try:
                self._write(hand, verdict, reason, result)
            except UnavailableError as error:
                if self._stop.is_set():
                    raise
                outage.met(str(error))
                clock.wait_s(_REST_S, self._stop)
            else:
                outage.over()
                return

    def _write(self, hand: "_InHand", verdict: Verdict, reason: str, result: bytes | None) -> None:
        match verdict.act:
            case "complete":
                counts = (hand.beat.progress.done, hand.beat.progress.total)
                jobs.complete_job(self._store, hand.held, hand.job.follow_up, result or b"null", counts)
            case "fail":
                jobs.fail_job(self._store, hand.held, reason, result)
            case "return":
                jobs.hand_back(
                    self._store,
                    hand.held,
                    queue=verdict.lane,
                    delay=verdict.delay,
                    counts=verdict.counts,
                    error=reason,
                )

    def _let_go(self, hand: "_InHand", verdict: Verdict, reason: str) -> None:
        """Do with the message what the ledger says now; the id of a job that waits again is put on its queue first."""
        sender = self._worker.sender
        match verdict.act:
            case "fail":
                self._bury(hand.received, reason)
            case "return" if not sender.send(self._store, hand.held.id, verdict.lane, verdict.delay):
                pass  # the relay will; until then there is this one
            case "drop" if hand.beat.stop != "cancelled":
                pass  # it is another worker's
            case _:
                sender.control.delete(self._queue, hand.received)


@dataclass(frozen=True)
class _InHand:
    """A job that a slot works on."""

    received: Received
    job: Job
    held: Held
    beat: Beat


def _reason(error: DispatchLedgerError | None, stop: Stop | None) -> str:
    """Say what kept the attempt from being all of the work."""
    if isinstance(error, CancelledError):
        return {
            "moved": "it has taken longer than jobs.fast_limit, and goes on on the slow queue",
            "stopped": "its worker was stopped",
        }.get(stop or "", str(error))
    return str(error or "")


def _job_id(body: str) -> UUID | None:
    try:
        return UUID(body.strip())
    except ValueError:
        return None


def lanes_of(settings: Settings, queues: Iterable[str]) -> list[Lane]:
    """Return the lanes that a worker was asked to serve; both when none is named.

    Raises:
        InputError: when a name is that of neither queue.
    """
    names: dict[str, Lane] = {
        settings.jobs.queue: "fast",
        settings.jobs.slow_queue: "slow",
        "fast": "fast",
        "slow": "slow",
    }
    chosen: list[Lane] = []
    for queue in queues:
        if queue not in names:
            raise InputError(
                f"--queue {queue[:80]!r} is neither jobs.queue ({settings.jobs.queue}) nor jobs.slow_queue "
                f"({settings.jobs.slow_queue}); give one of them, or leave it out for both"
            )
        chosen.append(names[queue])
    return list(dict.fromkeys(chosen)) or list(LANES)


def run(
    settings: Settings,
    cancellation: Cancellation,
    console: Console,
    lanes: list[Lane],
    concurrency: int,
    ended: Counter[str],
) -> None:
    """Work on jobs until a signal asks for the end; then give the jobs in hand back.

    Args:
        lanes: which queues to serve.
        concurrency: how many jobs to work on at the same time, from each queue.
        ended: kept up to date with what became of the jobs.

    Raises:
        InputError: when table, index, bucket or queues are missing, at the start only.
        UnavailableError: when AWS or the ledger does not answer at the start.
    """
    with wiring.aws_endpoint(settings) as endpoint:
        sender = JobSender(wiring.control_queues(settings, endpoint), settings.jobs)
        for lane in LANES:
            sender.queue(lane)
        partners = connect_partners(settings, endpoint)
        with wiring.ledger(settings) as store:
            worker = Worker(settings, partners, sender, store.url, Timing.of(settings), console, ended)
            _serve(worker, cancellation, [Slot(worker, lane) for lane in lanes for _ in range(concurrency)])


def _serve(worker: Worker, cancellation: Cancellation, slots: list[Slot]) -> None:
    relay_args = (cancellation.asked, worker.sender, worker.url, worker.settings.pipeline)
    relay = threading.Thread(target=relay_until, args=relay_args, name="relay", daemon=True)
    relay.start()
    for slot in slots:
        slot.start()
    while not cancellation.asked.is_set():
        clock.wait_s(_LOOK_S, cancellation.asked)
    for slot in slots:
        slot.stop()
    for slot in slots:
        slot.join()
    relay.join(timeout=_REST_S)
