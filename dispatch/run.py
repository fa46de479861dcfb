"""What one run works with: its window, its rules, its partners, and its books."""

import _thread
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dispatch.items import Item, record_id
from dispatch.judging import Left, Rules, Verdict, judge
from ledger.errors import CancelledError
from ledger.facts import BadRecord, Destination, Flow, RunCounts
from ledger.leases import LeaseKeeper, Tenure
from ledger.store import Store
from ledger.windows import Origin

if TYPE_CHECKING:  # the AWS SDK takes its time, and a command that only asks to be cancellable does not need it
    from dispatch.aws.objects import S3Objects
    from dispatch.aws.queues import Queue, SqsQueues
    from dispatch.aws.source import DynamoSource
    from dispatch.witnesses import RunWitness


@dataclass
class Cancellation:
    """A request to stop, made by a signal and looked at between steps.

    Attributes:
        is_asked: whether it was made.
        asked: for those who wait; set a moment after `is_asked`.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    is_asked: bool = False
    signal_number: int = 15

    def ask(self, signal_number: int) -> None:
        """Ask for the end of the step in hand, and no further one; safe inside a signal handler."""
        self.signal_number = signal_number
        self.is_asked = True
        # In a thread: the signal may have come in the middle of a wait, which holds the lock that is needed to set it.
        _thread.start_new_thread(self.asked.set, ())

    def check(self) -> None:
        """Raise CancelledError when the end was asked for."""
        if self.is_asked:
            raise CancelledError(self.signal_number)


@dataclass
class Run:
    """One process working on one window with one frozen configuration.

    Attributes:
        skips_claimed: whether what was claimed before this run is left out as soon as it is seen.
        destinations: where the entries of each route go.
        origin: which ledger this is, and where it has ever stored objects.
        objects_checked: whether an earlier run has made sure that the window had no objects before its first.
        witness: says beside the objects how far the window has come.
        queues: the queues found so far, by the name that the destinations use.
        on_progress: called as the work goes on, for whoever shows it to a person.
    """

    store: Store
    tenure: Tenure
    keeper: LeaseKeeper
    source: "DynamoSource"
    objects: "S3Objects"
    sqs: "SqsQueues"
    rules: Rules
    flow: Flow
    page_size: int
    verify_due: bool
    destinations: Mapping[str, Destination]
    origin: Origin
    objects_checked: bool
    witness: "RunWitness"
    queues: "dict[str, Queue]"
    cancellation: Cancellation
    on_progress: Callable[[RunCounts], None]
    counts: RunCounts = field(default_factory=RunCounts)
    skips_claimed: bool = False

    @property
    def places(self) -> list[tuple[str, str]]:
        """Every bucket and prefix where objects of the window may lie, those of this configuration first."""
        here = [(one.bucket, one.prefix) for one in self.destinations.values()]
        return list(dict.fromkeys([*here, *self.origin.places]))

    def checkpoint(self) -> None:
        """Stop here when a signal asked for it, or when the lease is lost.

        Raises:
            CancelledError: when a signal asked.
            LeaseLostError: when the window is no longer this run's.
        """
        self.cancellation.check()
        self.keeper.require_s(0.0)

    def before_send(self) -> None:
        """Make sure, right before a call to a queue, that nobody asked to stop and the lease outlives the call."""
        self.cancellation.check()
        self.keeper.require_s(self.sqs.call.total_seconds())

    def progress(self) -> None:
        """Show how far the run has come."""
        self.on_progress(self.counts)

    def queue(self, name: str) -> "Queue":
        """Return a queue by the name that a destination uses; also one that the settings no longer name."""
        if name not in self.queues:
            self.queues[name] = self.sqs.resolve(name)
        return self.queues[name]

    def saw_again(self, occurrences: int) -> None:
        """Count second sights of occurrences, which are due, as already claimed."""
        self.counts.already_claimed += occurrences

    def identity(self, item: Item) -> str:
        """Return an item's record id."""
        return record_id(item, self.rules.schema)

    def must_read_again(self, item: Item, verdict: Verdict) -> bool:
        """Say whether the index's copy of a record is not enough to decide whether it is due and usable."""
        if not self.verify_due or verdict is Left.OUTSIDE:
            return False
        if verdict is Left.NOT_DUE:
            return not self.rules.schema.projects_all and self.rules.status_attribute not in item
        return isinstance(verdict, BadRecord) or not self.rules.schema.projects_all

    def judge_again(self, record_ids: Sequence[str]) -> Iterator[Verdict]:
        """Judge records by a consistent read of the base table, in the order given; one that is gone is not due."""
        if not record_ids:
            return
        found = self.source.read_again(record_ids)
        for identity in record_ids:
            item = found.get(identity)
            yield Left.NOT_DUE if item is None else judge(item, self.rules)
