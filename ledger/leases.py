"""The time-limited right to work on a window, renewed in the background, counted on the database's clock."""

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import structlog

from ledger import clock
from ledger.errors import DispatchLedgerError, GuardError, LeaseLostError, Refusal
from ledger.holds import held
from ledger.instants import Window
from ledger.store import Connection, Store, count_refusal, sql

LOG = structlog.get_logger(__name__)


class PutBackError(GuardError):
    """The window has another number than this run has given it: the ledger was put back under its feet."""


@dataclass
class Progress:
    """How far a run has brought its window: the number that the ledger has last confirmed."""

    seq: int = 0


@dataclass(frozen=True)
class Tenure:
    """A run's hold on a window: what every ledger write under the lease has to show.

    Attributes:
        fence: grows with each take-over; a write that shows an old one is refused.
        even_held: whether it goes on while the window waits for a person, since it sends nothing.
    """

    pipeline_id: int
    pipeline: str
    window: Window
    window_id: int
    run_id: UUID
    fence: int
    lease: timedelta
    even_held: bool = False
    progress: Progress = field(default_factory=Progress)

    def key(self) -> dict[str, object]:
        """The parameters that identify this tenure in a statement."""
        return {"window_id": self.window_id, "run_id": self.run_id, "fence": self.fence}

    def lost(self) -> LeaseLostError:
        """The error that says that this tenure is over."""
        return LeaseLostError(
            f"window {self.window}: run {self.run_id} lost its lease (fence {self.fence}); another run may have taken "
            "over. Nothing more was written; run the window again to finish what is left",
            Refusal("window", self.pipeline),
        )


def check_fence(connection: Connection, tenure: Tenure) -> None:
    """Lock the lease until the transaction ends.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        GuardError: when it is held for a person by now, and this run does not go on with held windows.
    """
    row = connection.execute(sql("check_fence"), tenure.key()).fetchone()
    if row is None:
        raise tenure.lost()
    reason, kind = row
    if reason is not None and not tenure.even_held:
        raise held(tenure.window, reason, kind)


def raise_seq(connection: Connection, tenure: Tenure, seq: int | None = None) -> None:
    """Count the window on, in the transaction of what is to be counted; safe to repeat with it.

    Once that is committed, the caller moves `tenure.progress` on.

    Args:
        seq: the new number; the next one by default.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        PutBackError: when its number is another than this run has given it.
    """
    before = tenure.progress.seq
    wanted = {"before": before, "seq": before + 1 if seq is None else seq}
    if connection.execute(sql("raise_seq"), tenure.key() | wanted).fetchone() is not None:
        return
    check_fence(connection, tenure)
    check_seq(connection, tenure)


def check_seq(connection: Connection, tenure: Tenure) -> None:
    """Make sure, under the lease, that the window has the number that this run has given it.

    Raises:
        PutBackError: when it has another one.
    """
    before = tenure.progress.seq
    row = connection.execute("SELECT seq FROM windows WHERE id = %s", (tenure.window_id,)).fetchone()
    now = row[0] if row else "none"
    if now == before:
        return
    raise PutBackError(
        f"this run has brought it to number {before}, and the ledger says {now}: it was put back to an earlier state "
        "while the run was going on"
    )


def execute_fenced(store: Store, tenure: Tenure, statement: LiteralString, parameters: Any) -> None:
    """Execute one statement under the fence, in a transaction of its own; so it must be safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
    """

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        connection.execute(statement, parameters)

    store.transaction(work)


def count_on(store: Store, tenure: Tenure) -> None:
    """Count the window on by itself; safe to repeat.

    Raises:
        LeaseLostError: when the window is no longer this run's.
        PutBackError: when its number is another than this run has given it.
    """

    def work(connection: Connection) -> None:
        check_fence(connection, tenure)
        raise_seq(connection, tenure)

    store.transaction(work)
    tenure.progress.seq += 1


@dataclass
class LeaseKeeper:
    """Renews a tenure every third of its lease, from a thread and a connection of its own, until stopped.

    Attributes:
        asked_s: when the lease was asked for, on this machine's monotonic clock: it lasts no longer than from then.
    """

    tenure: Tenure
    url: str
    asked_s: float
    _stop: threading.Event = field(default_factory=threading.Event)
    _lost: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._renewed_s = self.asked_s
        self._thread = threading.Thread(target=self._renew_until_stopped, name="lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; waits for a renewal in flight, 15 seconds at most."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15)

    def require_s(self, needed_s: float) -> None:
        """Make sure that the lease outlives a call that takes up to `needed_s` seconds; waits for a renewal if not.

        Raises:
            LeaseLostError: when it does not, also after as long as a renewal may take.
        """
        while not self._lost.is_set():
            left_s = self._renewed_s + self.tenure.lease.total_seconds() - clock.monotonic_s()
            if left_s >= needed_s:
                return
            if left_s <= 0:
                break
            clock.wait_s(min(0.05, left_s), self._lost)
        raise self.tenure.lost()

    def _renew_until_stopped(self) -> None:
        every_s = self.tenure.lease.total_seconds() / 3
        with Store(self.url) as store:
            while not clock.wait_s(every_s, self._stop):
                asked_s = clock.monotonic_s()
                try:
                    held = store.transaction(self._renew)
                except DispatchLedgerError as error:
                    # The main thread will meet the same database; meanwhile the lease may run out by itself.
                    LOG.info("lease was not renewed", window=self.tenure.window.name, reason=str(error))
                    continue
                if not held:
                    self._lost.set()
                    return
                self._renewed_s = asked_s

    def _renew(self, connection: Connection) -> bool:
        parameters = {**self.tenure.key(), "lease": self.tenure.lease}
        if connection.execute(sql("renew_lease"), parameters).fetchone() is not None:
            return True
        given_back = "SELECT 1 FROM windows WHERE id = %(window_id)s AND fence = %(fence)s AND lease_run_id IS NULL"
        if connection.execute(given_back, parameters).fetchone() is None:
            count_refusal(connection, Refusal("window", self.tenure.pipeline))
        return False
