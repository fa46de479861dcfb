"""Puts the ids of jobs on their queues: at once where that works, later by the relay where it did not."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import structlog

from dispatch.aws.control import ControlQueue, ControlQueues
from dispatch.outages import Outage
from ledger import clock, jobs
from ledger.errors import DispatchLedgerError
from ledger.jobs import Lane
from ledger.settings import JobsSettings
from ledger.store import Store

LOG = structlog.get_logger(__name__)
LANES: tuple[Lane, ...] = ("fast", "slow")
RELAY_EVERY_S = 2.0
_RELAYED_MAX = 100
_REST_S = 5.0
_LEDGER_SILENCE_S = 15.0
_KEYS = {"fast": "jobs.queue", "slow": "jobs.slow_queue"}


class JobSender:
    """Sends ids of jobs. Safe to share between threads.

    After a send that failed, the next ones within five seconds are left to the relay without being tried: whoever asks
    for a job does not wait for a queue that is down.

    Attributes:
        failing: the lanes whose queue did not do what it was last asked for.
    """

    def __init__(self, control: ControlQueues, settings: JobsSettings) -> None:
        self.control = control
        self._names: dict[Lane, str] = {"fast": settings.queue, "slow": settings.slow_queue}
        self._queues: dict[Lane, ControlQueue] = {}
        self._rest_until_s = 0.0
        self.failing: set[Lane] = set()

    def queue(self, lane: Lane) -> ControlQueue:
        """Return the queue of a lane, found when first needed; that may take a minute when SQS hangs.

        Raises:
            InputError: when it does not exist, or is a FIFO queue.
            UnavailableError: when SQS does not answer.
        """
        if lane not in self._queues:
            with self._asking(lane):
                self._queues[lane] = self.control.resolve(self._names[lane], _KEYS[lane])
        return self._queues[lane]

    def found(self, lane: Lane) -> ControlQueue | None:
        """Return the queue of a lane if it has been found; never waits."""
        return self._queues.get(lane)

    def send(self, store: Store, job_id: UUID, lane: Lane, delay: timedelta = timedelta()) -> bool:
        """Put one id on its queue; False when that failed, or was not tried, and the relay has to do it."""
        queue = self.found(lane)
        if queue is None or clock.monotonic_s() < self._rest_until_s:
            return False
        try:
            with self._asking(lane):
                self.control.send(queue, str(job_id), delay)
            jobs.note_sent(store, [job_id])
        except DispatchLedgerError as error:
            self._rest_until_s = clock.monotonic_s() + _REST_S
            LOG.warning("job id was not sent; the relay will", job=str(job_id), reason=str(error))
            return False
        return True

    def relay(self, store: Store, pipeline: str) -> int:
        """Send the ids that wait for it, up to a hundred; returns how many were sent.

        Raises:
            DispatchLedgerError: when the ledger or the queue does not answer; what was not sent comes up again.
        """
        sent: list[UUID] = []
        try:
            for job_id, lane in jobs.take_unsent(store, pipeline, _RELAYED_MAX):
                queue = self.queue(lane)
                with self._asking(lane):
                    self.control.send(queue, str(job_id))
                sent.append(job_id)
        finally:
            jobs.note_sent(store, sent)
        return len(sent)

    @contextmanager
    def _asking(self, lane: Lane) -> Iterator[None]:
        self.failing.add(lane)
        yield
        self.failing.discard(lane)


def relay_until(stop: threading.Event, sender: JobSender, url: str, pipeline: str) -> None:
    """Find the queues, and relay every two seconds until `stop` is set; what goes wrong is logged, and tried again."""
    outage = Outage("job ids are not relayed; jobs wait in the ledger", "job ids are relayed again")
    with Store(url, _LEDGER_SILENCE_S) as store:
        while not stop.is_set():
            try:
                for lane in LANES:
                    sender.queue(lane)
                if relayed := sender.relay(store, pipeline):
                    LOG.info("job ids relayed", jobs=relayed)
                if not sender.failing:  # a round with nothing to send tells nothing of a queue that was down
                    outage.over()
            except DispatchLedgerError as error:
                outage.met(str(error))
                clock.wait_s(_REST_S, stop)
            clock.wait_s(RELAY_EVERY_S, stop)
