"""One look at one window: what it works with, and what it has found out so far."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from dispatch.run import Run
from ledger import clock
from ledger.canonical import utf8
from ledger.facts import Occurrence
from ledger.settings import ReconcileSettings


@dataclass(frozen=True)
class Options:
    """What a reconcile may do.

    Attributes:
        repair: whether it mends what is safe, or only looks.
        delete_orphans: whether quarantined objects may be removed.
        grace: what is younger is left alone.
        guarded: whether more missed records than `max_redispatch` hold the window; not after a person released it.
    """

    settings: ReconcileSettings
    grace: timedelta
    repair: bool = True
    delete_orphans: bool = False
    guarded: bool = True


@dataclass
class Rescan:
    """A reconcile of one window, under its lease.

    Attributes:
        run: what it reads, claims and sends with; its books are the coverage.
        completed: whether a dispatch has completed the window, so that what is unclaimed was missed.
        late: differences that are too young to be called one.
        unclaimed: due records that have no claim, missed or late.
        missed, missed_n: those that are missed, to be sent in the end, and how many there are.
    """

    run: Run
    options: Options
    completed: bool
    late: int = 0
    unclaimed: int = 0
    missed_n: int = 0
    missed: dict[Occurrence, "Sighting"] = field(default_factory=dict)

    def note_missed(self, sighting: "Sighting") -> None:
        """Keep a missed record to be sent later; beyond what the guard allows, only their number."""
        if sighting.occurrence in self.missed:
            return
        self.missed_n += 1
        if not self.options.guarded or self.missed_n <= self.options.settings.max_redispatch + 1:
            self.missed[sighting.occurrence] = sighting

    def is_late(self, changed_at: datetime | None) -> bool:
        """Say whether a record changed so recently that the next look should decide; counts it then.

        A time in the future says nothing: somebody's clock is wrong, and waiting for it would be forever.
        """
        late = changed_at is not None and abs(clock.utc_now() - changed_at) < self.options.grace
        self.late += late
        return late


@dataclass(frozen=True)
class Sighting:
    """A record occurrence as the source shows it.

    Attributes:
        booking_time: as the source spells it.
        changed_at: when the record last changed, by its own word.
    """

    record_id: str
    booking_ns: int
    booking_time: str
    changed_at: datetime | None

    @property
    def occurrence(self) -> Occurrence:
        """The key by which the ledger knows it."""
        return self.booking_ns, self.record_id

    @property
    def subject(self) -> bytes:
        """What a finding of it is about."""
        return utf8(f"{self.record_id}@{self.booking_ns}")


def occurrence_of(subject: bytes) -> Occurrence:
    """Read an occurrence back from the subject of a finding."""
    identity, _, booking_ns = subject.rpartition(b"@")
    return int(booking_ns), identity.decode("utf-8", "surrogatepass")
