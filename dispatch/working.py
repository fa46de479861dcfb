"""Three ways to work a job that was taken: in this thread, in a transaction with its receipt, in a child process."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from dispatch.aws.inbox import Delivery, Inbox
from dispatch.children import AttemptFailedError, Child
from dispatch.handlers import NotRunError, Result, end_copy, result_of, said
from dispatch.jobs import JobMessage, decode_document
from dispatch.outages import Outage
from ledger import clock, receipts
from ledger.errors import ClaimLostError, DispatchLedgerError, UnavailableError
from ledger.receipts import Claim
from ledger.store import Connection, Store

Document = dict[str, Any]
_RECORD_AGAIN_S = 1.0


class HandedBackError(Exception):
    """The consumer stops, and the job was not done in the time that it had left."""


class UnrecordedError(Exception):
    """The job was done, but the consumer stops before the ledger could be told; it will be done again."""


@dataclass
class Job:
    """A job in hand.

    Attributes:
        passed_on: set when it turns out that the job is no longer ours.
        lock: held while the job is renewed; whoever ends it sets `ended` under it, so that nothing is renewed after.
    """

    delivery: Delivery
    message: JobMessage
    claim: Claim
    attempts: int
    passed_on: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    ended: bool = False

    def renew(self, store: Store, inbox: Inbox, lease: timedelta) -> str | None:
        """Renew its claim and keep its message hidden; notes when the claim is lost.

        Returns:
            Why its message is not hidden, such as after twelve hours: whoever gets it finds the job held. Else None.

        Raises:
            UnavailableError: when the ledger does not answer.
        """
        with self.lock:
            if self.ended or self.passed_on.is_set():
                return None
            try:
                receipts.heartbeat(store, self.claim, lease)
            except ClaimLostError:
                self.passed_on.set()
                return None
            try:
                inbox.hide(self.delivery, inbox.held_s)
            except DispatchLedgerError as error:
                return str(error)
            return None

    def end(self) -> None:
        """Let nobody renew it any more."""
        with self.lock:
            self.ended = True


class Way(Protocol):
    """How a job is worked and completed; used by one thread."""

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Wait until it can work; what `watch` raises ends the wait."""

    def work(self, job: Job, body: bytes, watch: Callable[[], None]) -> Result:
        """Work a job and complete its receipt; what `watch` raises ends the work, or keeps it from beginning.

        Returns:
            What the receipt keeps.

        Raises:
            AttemptFailedError: when the handler failed, or its work has not run; nothing has been told to the receipt.
            ClaimLostError: when the job is no longer ours.
            UnrecordedError: when it was done, and its receipt could not be completed before the consumer stops.
        """

    def close(self) -> None:
        """End what it has started."""


@dataclass
class InThread:
    """Calls a function of this process."""

    store: Store
    handler: Callable[[Document], Any]

    def await_ready(self, watch: Callable[[], None]) -> None:
        """There is nothing to wait for."""

    def work(self, job: Job, body: bytes, watch: Callable[[], None]) -> Result:
        """Call the function, then complete the receipt."""
        watch()
        document = decode_document(body)
        with _failing():
            result = result_of(self.handler(document))
        return _record(self.store, job, result, watch)

    def close(self) -> None:
        """There is nothing to end."""


@dataclass
class InTransaction:
    """Calls a function of this process with the transaction that completes the receipt: both commit, or neither."""

    store: Store
    handler: Callable[[Document, Connection], Any]

    def await_ready(self, watch: Callable[[], None]) -> None:
        """There is nothing to wait for."""

    def work(self, job: Job, body: bytes, watch: Callable[[], None]) -> Result:
        """Call the function and complete the receipt in one transaction, once, also when its answer is lost."""
        watch()

        results: list[Result] = []

        def both(connection: Connection) -> None:
            if receipts.completed_at(connection, job.claim) is not None:
                return  # the first try has committed, and only its answer was lost
            document = decode_document(body)
            with _failing():
                results.append(result_of(self.handler(document, connection)))
            receipts.complete_within(connection, job.claim, msgspec.Raw(results[-1].json))

        self.store.transaction(both)
        return results[-1]

    def close(self) -> None:
        """There is nothing to end."""


@dataclass
class InChild:
    """Has a function called in a child process, whose death costs one attempt and nothing else."""

    store: Store
    child: Child

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Wait until the child has loaded its handler."""
        self.child.await_ready(watch)

    def work(self, job: Job, body: bytes, watch: Callable[[], None]) -> Result:
        """Have it worked, then complete the receipt."""
        return _record(self.store, job, self.child.work(body, watch), watch)

    def close(self) -> None:
        """End the child."""
        self.child.close()


def _record(store: Store, job: Job, result: Result, watch: Callable[[], None]) -> Result:
    """Complete the receipt of a job that was done, however long the ledger does not answer: it must not be repeated."""
    while True:
        try:
            receipts.complete(store, job.claim, msgspec.Raw(result.json))
        except UnavailableError:
            try:
                watch()
            except HandedBackError as stopped:
                raise UnrecordedError from stopped
            clock.wait_s(_RECORD_AGAIN_S)
        else:
            return result


class _failing:  # noqa: N801 - reads as a statement
    """Turns whatever a handler raises into a failed attempt; what asks the process to end passes.

    A copy of this process that comes back from the handler is ended: it shares our connections.
    """

    def __enter__(self) -> None:
        """Note who we are."""
        self._own = os.getpid()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        end_copy(self._own)
        if isinstance(error, NotRunError):
            raise AttemptFailedError(str(error), str(error)) from None
        if isinstance(error, Exception):
            raise AttemptFailedError(said(error), type(error).__name__) from error


class Keeper:
    """Renews the jobs in hand every third of their lease, from a thread and a connection of its own."""

    def __init__(self, url: str, inbox: Inbox, lease: timedelta, outage: Outage) -> None:
        self._url, self._inbox, self._lease, self._outage = url, inbox, lease, outage
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; waits for a renewal in flight, 15 seconds at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(15)

    def add(self, job: Job) -> None:
        """Keep this job from now on."""
        with self._lock:
            self._jobs.append(job)

    def remove(self, job: Job) -> None:
        """Let go of a job; when this returns, it is not renewed any more."""
        job.end()
        with self._lock:
            self._jobs.remove(job)

    def _renew_until_stopped(self) -> None:
        with Store(self._url) as store:
            while not clock.wait_s(self._lease.total_seconds() / 3, self._stop):
                with self._lock:
                    jobs = list(self._jobs)
                self._renew(store, jobs)

    def _renew(self, store: Store, jobs: list[Job]) -> None:
        troubles = []
        for job in jobs:
            try:
                troubles.append(job.renew(store, self._inbox, self._lease))
            except DispatchLedgerError as error:
                troubles.append(str(error))
                break  # the rest would wait as long, and in vain
        said = [one for one in troubles if one is not None]
        if said:
            self._outage.met(said[0])
        elif jobs:
            self._outage.over()
