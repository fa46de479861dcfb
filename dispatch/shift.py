"""One run of a consumer: its threads, the way of each message through their hands, and how all of it ends."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, Self, TypeAlias, get_args

import structlog

from dispatch.aws.inbox import Delivery, Inbox, JobObjects
from dispatch.children import AttemptFailedError
from dispatch.forgotten import reason_to_wait
from dispatch.handlers import Result
from dispatch.jobs import JobMessage, UnfitError, check_document, parse_message
from dispatch.outages import Outage
from dispatch.working import HandedBackError, Job, Keeper, UnrecordedError, Way
from ledger import clock, receipts
from ledger.errors import ClaimLostError, DispatchLedgerError, InputError
from ledger.receipts import Completed, GoAhead, Held, Superseded, UnknownKey
from ledger.store import Store

LOG = structlog.get_logger(__name__)

Outcome: TypeAlias = Literal[
    "completed", "failed", "already_completed", "superseded", "held", "unknown_key", "unreadable", "lost",
    "handed_back", "unavailable",
]  # fmt: skip
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

DOCUMENT_BYTES_MAX = 256 * 1024 * 1024
_RETRY_MAX_S, _HELD_FIRST_S = 900, 30
_DOUBLINGS_MAX = 10
_PAUSE_MAX_S = 60
_LOOK_S = 0.1
_ATTEMPTS_EXPECTED = 3
_HANDED_BACK = "handed back: the consumer was stopped before it was done"


def retry_delay_s(received: int) -> int:
    """Return how long a message is hidden when it was handed out so often without success: 1, 2, 4 … 900 seconds."""
    return int(min(_RETRY_MAX_S, 2 ** min(received - 1, _DOUBLINGS_MAX)))


def held_delay_s(received: int, remaining: timedelta) -> float:
    """Return how long a message is hidden whose job another worker has, for so long unless it is renewed.

    Longer each time, since the queue counts each time as a failure: the repeat of a long job must not be put away.
    """
    return max(remaining.total_seconds() + 1, min(_RETRY_MAX_S, _HELD_FIRST_S * retry_delay_s(received)))


@dataclass
class Summary:
    """What became of the messages that were handled; one that came again counts again."""

    counts: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        with self._lock:
            self.counts[outcome] += 1

    @property
    def handled(self) -> int:
        """How many there were."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Station:
    """What all threads of a consumer work with.

    Attributes:
        lease: how long a claim lasts without a heartbeat.
        worker: the name that receipts keep.
        way: makes the way of working of one thread, which has this connection to the ledger.
    """

    inbox: Inbox
    objects: JobObjects
    ledger_url: str
    lease: timedelta
    worker: str
    way: Callable[[Store], Way]


class Quota:
    """How many messages may still be handled, among threads; None for any number."""

    def __init__(self, messages_max: int | None) -> None:
        self._left = messages_max
        self._reserved = 0
        self._changed = threading.Condition()

    def reserve(self, stop: threading.Event) -> bool:
        """Wait for the right to receive one; returns False when there will be none."""
        with self._changed:
            while not stop.is_set():
                if self._left is None or self._reserved < self._left:
                    self._reserved += 1
                    return True
                if self._left == 0:
                    return False
                self._changed.wait(_LOOK_S)
            return False

    def settle(self, *, handled: bool) -> None:
        """Use up the right, or give it back."""
        with self._changed:
            self._reserved -= 1
            if handled and self._left is not None:
                self._left -= 1
            self._changed.notify_all()


class _PutOffError(Exception):
    """A message is left in the queue, uncounted: the ledger has to be put right before anything of it is worked."""


class Shift:
    """Threads that work until they are told to stop, or until so many messages were handled.

    Args:
        drain: how long a job in hand may still go on once they are to stop.
        summary: where the messages are counted; a new one by default.
    """

    def __init__(
        self,
        station: Station,
        stop: threading.Event,
        messages_max: int | None,
        drain: timedelta,
        summary: Summary | None = None,
    ) -> None:
        self.station = station
        self.stop = stop
        self.quota = Quota(messages_max)
        self.summary = summary or Summary()
        keeping = Outage("jobs in hand were not renewed", "jobs in hand are renewed again", queue=station.inbox.name)
        self.keeper = Keeper(station.ledger_url, station.inbox, station.lease, keeping)
        self.outage = Outage("consumer pauses", "consumer goes on", queue=station.inbox.name)
        self.forgotten: JobMessage | None = None  # the last job that the ledger may have forgotten; all wait for it
        self._drain_s = drain.total_seconds()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self, concurrency: int, on_begin: Callable[[], None]) -> Summary:
        """Work; returns what became of the messages.

        Args:
            on_begin: called once, when the handlers are loaded and nothing was received yet.

        Raises:
            InputError: when the handler cannot be loaded, or access to the queue is denied.
        """
        with ExitStack() as stack:
            hands = [stack.enter_context(Hand(self)) for _ in range(concurrency)]
            try:
                for hand in hands:
                    hand.way.await_ready(self._check_begun)
            except HandedBackError:
                return self.summary
            self._say_begun()
            on_begin()
            self._work([threading.Thread(target=self._guarded, args=(hand,), name="consumer") for hand in hands])
        if self._error is not None:
            raise self._error
        return self.summary

    def _work(self, threads: list[threading.Thread]) -> None:
        self.keeper.start()
        try:
            for thread in threads:
                thread.start()
            self._await_end(threads)
        finally:
            self.stop.set()
            self._await_end(threads)
            self.keeper.stop()

    def _await_end(self, threads: list[threading.Thread]) -> None:
        over_s: float | None = None
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(_LOOK_S)
            if self.stop.is_set():
                over_s = over_s or clock.monotonic_s() + self._drain_s
                if clock.monotonic_s() >= over_s:
                    self._over.set()

    def _guarded(self, hand: "Hand") -> None:
        try:
            hand.work()
        except BaseException as error:  # noqa: BLE001 - raised by `run`, when all threads have ended
            self._error = self._error or error
            self.stop.set()

    def _check_begun(self) -> None:
        if self.stop.is_set():
            raise HandedBackError

    def check_over(self) -> None:
        """Raise HandedBackError when the time for the jobs in hand is over."""
        if self._over.is_set():
            raise HandedBackError

    def _say_begun(self) -> None:
        inbox = self.station.inbox
        LOG.info("consumer begins", queue=inbox.name, dead_letters_after=inbox.dead_letters_after)
        if inbox.dead_letters_after is None:
            LOG.warning(
                "queue has no redrive policy: a job that fails is tried again for ever, up to 15 minutes apart",
                queue=inbox.name,
            )


class Hand:
    """One thread of a consumer: receives a message, sees what it is, and does what is right with it."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._station = shift.station
        self._store = Store(shift.station.ledger_url)
        self.way = shift.station.way(self._store)
        self._trouble = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.way.close()
        self._store.close()

    def work(self) -> None:
        """Handle one message after another, until the shift ends.

        Raises:
            InputError: when access is denied.
        """
        quota, stop = self._shift.quota, self._shift.stop
        while self._is_well() and quota.reserve(stop):
            outcome: Outcome | None = None
            try:
                delivery = self._receive()
                if delivery is not None:
                    outcome = self._handle(delivery)
                    self._shift.summary.add(outcome)
                    if outcome != "unavailable":
                        self._end_trouble()
            except _PutOffError:
                pass
            finally:
                quota.settle(handled=outcome is not None)

    def _is_well(self) -> bool:
        """Wait, after trouble, until the ledger answers: a message that is received in vain counts as a failure.

        Wait also while a job that came may be one that the ledger has forgotten.

        Returns:
            False when the shift ends meanwhile.
        """
        while (self._trouble or self._shift.forgotten) and not self._shift.stop.is_set():
            clock.wait_s(min(_PAUSE_MAX_S, 2 ** max(0, self._trouble - 1)), self._shift.stop)
            try:
                self._store.transaction(lambda connection: connection.execute("SELECT 1"))
                reason = self._still_forgotten()
            except DispatchLedgerError:
                reason = "ledger does not answer"
            if reason is None:
                break
            self._note_trouble(reason)
        return not self._shift.stop.is_set()

    def _still_forgotten(self) -> str | None:
        """Ask again about the job that all wait for; returns why they go on waiting."""
        message = self._shift.forgotten
        if message is None:
            return None
        reason = reason_to_wait(self._store, self._station.objects, message)
        if reason is None:
            self._shift.forgotten = None
        return reason

    def _note_trouble(self, reason: str) -> None:
        self._trouble = min(self._trouble + 1, _DOUBLINGS_MAX)
        self._shift.outage.met(reason)

    def _end_trouble(self) -> None:
        self._trouble = 0
        self._shift.outage.over()

    def _receive(self) -> Delivery | None:
        try:
            delivery = self._station.inbox.receive()
        except InputError:
            raise
        except DispatchLedgerError as error:
            self._note_trouble(str(error))
            return None
        if delivery is None:  # the queue answers, and there is nothing that could be received in vain
            self._end_trouble()
        return delivery

    def _handle(self, delivery: Delivery) -> Outcome:
        """See what a message is, and do what is right with it."""
        if self._shift.stop.is_set():  # it came while we were told to stop
            self._hide(delivery, 0)
            return "handed_back"
        try:
            message = parse_message(delivery.body)
        except UnfitError as reason:
            return self._leave(delivery, "unreadable", str(reason))
        try:
            return self._take(delivery, message)
        except ClaimLostError as error:
            LOG.warning("job was lost to another worker", entry_id=str(message.entry_id), reason=str(error))
            return "lost"
        except DispatchLedgerError as error:
            self._note_trouble(str(error))
            self._hide(delivery, retry_delay_s(delivery.received))
            return "unavailable"

    def _take(self, delivery: Delivery, message: JobMessage) -> Outcome:
        station = self._station
        taken = receipts.take(self._store, message.pipeline, message.key, station.worker, station.lease)
        match taken:
            case GoAhead():
                return self._go(Job(delivery, message, taken.claim, taken.attempts))
            case Completed():
                self._delete(delivery)
                return "already_completed"
            case Superseded():
                self._delete(delivery)
                return "superseded"
            case Held():
                self._hide(delivery, held_delay_s(delivery.received, taken.remaining))
                return "held"
            case UnknownKey():
                self._wait_if_forgotten(delivery, message)
                reason = f"the ledger has no promise of it in pipeline {message.pipeline}"
                return self._leave(delivery, "unknown_key", reason)

    def _wait_if_forgotten(self, delivery: Delivery, message: JobMessage) -> None:
        """Leave a job in its queue, and take no more from there, while the ledger may have forgotten its promise."""
        reason = reason_to_wait(self._store, self._station.objects, message)
        if reason is not None:
            self._shift.forgotten = message
            self._note_trouble(reason)
            self._hide(delivery, 0)
            raise _PutOffError

    def _go(self, job: Job) -> Outcome:
        """Work a job that is ours, and tell receipt and queue what came of it."""
        keeper, entry_id = self._shift.keeper, str(job.message.entry_id)
        keeper.add(job)
        try:
            try:
                left_out = self._work(job).left_out
            finally:
                keeper.remove(job)
        except AttemptFailedError as failed:
            return self._fail(job, failed)
        except HandedBackError:
            receipts.fail(self._store, job.claim, _HANDED_BACK)
            self._hide(job.delivery, 0)
            return "handed_back"
        except UnrecordedError:
            LOG.warning("job was done, but the ledger could not be told; it will be done again", entry_id=entry_id)
            return "unavailable"
        except ClaimLostError:
            raise
        except DispatchLedgerError as error:
            receipts.fail(self._store, job.claim, f"not worked: {error}")
            raise
        self._delete(job.delivery)
        LOG.info("job completed", entry_id=entry_id, attempt=job.attempts)
        if left_out is not None:
            LOG.warning(
                "job is completed, and its result was left out of the receipt", entry_id=entry_id, reason=left_out
            )
        return "completed"

    def _work(self, job: Job) -> Result:
        def watch() -> None:
            self._shift.check_over()
            if job.passed_on.is_set():
                raise ClaimLostError("its claim was not renewed in time, and another worker has taken the job")

        try:
            return self.way.work(job, self._fetch(job.message), watch)
        except UnfitError as error:
            raise AttemptFailedError(str(error), str(error)) from None

    def _fetch(self, message: JobMessage) -> bytes:
        """Return a job's object, which is as it was promised."""
        try:
            body = self._station.objects.fetch(message.object.bucket, message.object.key, DOCUMENT_BYTES_MAX)
        except OverflowError as size:
            raise UnfitError(f"its object has {size}; {DOCUMENT_BYTES_MAX} are allowed") from None
        if body is None:
            raise UnfitError("its object is gone")
        check_document(body, message)
        return body

    def _fail(self, job: Job, failed: AttemptFailedError) -> Outcome:
        receipts.fail(self._store, job.claim, failed.reason)
        delay_s, after = self._delay_s(job.delivery), self._station.inbox.dead_letters_after
        what_next = f"tried again after {delay_s} s"
        if after is not None and job.delivery.received >= after:
            what_next = "left to the queue's redrive policy"
        elif after is None and job.attempts >= _ATTEMPTS_EXPECTED:
            what_next += "; the queue has no redrive policy that would put it away"
        LOG.warning(
            "attempt failed",
            entry_id=str(job.message.entry_id),
            attempt=job.attempts,
            reason=failed.kind,
            next=what_next,
        )
        self._hide(job.delivery, delay_s)
        return "failed"

    def _leave(self, delivery: Delivery, outcome: Outcome, reason: str) -> Outcome:
        """Leave a message that cannot be worked to the queue's redrive policy."""
        LOG.warning(
            "message cannot be worked; it is left to the queue's redrive policy",
            message_id=delivery.message_id,
            received=delivery.received,
            reason=reason,
        )
        self._hide(delivery, self._delay_s(delivery))
        return outcome

    def _delay_s(self, delivery: Delivery) -> int:
        """Return how long a message is hidden before it is tried again; what the queue puts away now need not wait."""
        after = self._station.inbox.dead_letters_after
        return 0 if after is not None and delivery.received >= after else retry_delay_s(delivery.received)

    def _hide(self, delivery: Delivery, seconds: float) -> None:
        """Let a message be seen again after a while; when that fails, it is seen again when its time is over."""
        try:
            self._station.inbox.hide(delivery, seconds)
        except DispatchLedgerError as error:
            LOG.info("message was not given back", message_id=delivery.message_id, reason=str(error))

    def _delete(self, delivery: Delivery) -> None:
        """Drop a message that needs no work; when that fails, it comes again, and is dropped then."""
        try:
            self._station.inbox.delete(delivery)
        except DispatchLedgerError as error:
            LOG.warning("message was not deleted", message_id=delivery.message_id, reason=str(error))
