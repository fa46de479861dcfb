"""What a dispatch would do: the usual run, on a private copy of the ledger, with partners that take nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dispatch.aws.objects import ListedObject, S3Objects, Upload
from dispatch.aws.queues import Message, Queue, SqsQueues
from dispatch.dispatcher import Dispatcher, Partners, RunReport
from dispatch.run import Run
from dispatch.witnesses import neighbours, read_witnesses
from ledger import clock, runs, windows
from ledger.dry_run import DryStore
from ledger.facts import Cause, SendAnswer, StoredObject
from ledger.instants import Window

# Nobody waits for a lease that nobody else sees, so it need not be renewed.
_LEASE = timedelta(days=30)
_NOT_STORED = '"dry-run"'
_NOT_SENT = "dry-run"


class DryObjects(S3Objects):
    """Reads the real objects and writes none: what a run stores is only remembered, and found again.

    It has no client of its own, so that what it does not know how to leave undone fails.
    """

    def __init__(self, real: S3Objects, store: DryStore) -> None:
        self.bucket = real.bucket
        self._real = real
        self._ledger = store
        self._fetched: dict[tuple[str, str], tuple[bytes, str] | None] = {}

    def put_if(self, bucket: str, upload: Upload, etag: str | None) -> str:
        """Store nothing."""
        del bucket, upload, etag
        return _NOT_STORED

    def fetch(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """Return a small object as it was when it was first looked at for this window."""
        if (bucket, key) not in self._fetched:
            self._fetched[bucket, key] = self._real.fetch(bucket, key)
        return self._fetched[bucket, key]

    def forget(self) -> None:
        """Look anew at what was fetched."""
        self._fetched.clear()

    def put_many(self, bucket: str, uploads: Sequence[Upload]) -> list[StoredObject]:
        """Remember objects."""
        stored = {one.key: StoredObject(len(one.body), _NOT_STORED) for one in uploads}
        self._ledger.note_stored(bucket, stored)
        return [stored[one.key] for one in uploads]

    def put_streamed(self, bucket: str, key: str, parts: Iterable[bytes], metadata: dict[str, str]) -> StoredObject:
        """Read all parts of an object, and remember its size."""
        del metadata
        stored = StoredObject(sum(map(len, parts)), _NOT_STORED)
        self._ledger.note_stored(bucket, {key: stored})
        return stored

    def find(self, bucket: str, key: str) -> ListedObject | None:
        """Return an object as it would be by now, or None."""
        found, stored = self._real.find(bucket, key), self._ledger.find_stored(bucket, key)
        if stored is None:
            return found
        return ListedObject(key, stored, clock.utc_now())

    def listing(self, bucket: str, prefix: str) -> Iterator[ListedObject]:
        """Yield the real objects; what was only remembered is found when it is looked for by its key."""
        return self._real.listing(bucket, prefix)

    def read(self, bucket: str, key: str) -> Iterator[bytes]:
        """Yield a real object's body in pieces."""
        return self._real.read(bucket, key)

    def tags(self, bucket: str, key: str) -> dict[str, str]:
        """Return a real object's tags."""
        return self._real.tags(bucket, key)

    def tag(self, bucket: str, key: str, name: str, value: str) -> bool:
        """Say whether there is room for a tag."""
        return self._real.tags_with(bucket, key, name, value) is not None

    def untag(self, bucket: str, key: str, name: str) -> None:
        """Leave the tags as they are."""

    def remove(self, bucket: str, key: str) -> None:
        """Leave the object where it is."""


class DryQueues(SqsQueues):
    """Finds the real queues and sends to none: each message counts as accepted.

    It has no client of its own, so that what it does not know how to leave undone fails.
    """

    def __init__(self, real: SqsQueues) -> None:
        self.call = real.call
        self._real = real

    def resolve(self, name: str, mend: str = "routes") -> Queue:
        """Find a queue by name or URL, as `SqsQueues` does."""
        return self._real.resolve(name, mend)

    def peek_dead_letters(self, queue: Queue) -> set[str] | None:
        """Look into nothing: the queue counts each look at a message as a receipt."""

    def send(self, queue: Queue, messages: Sequence[Message], before_call: Callable[[], None]) -> list[SendAnswer]:
        """Say of each message that it was accepted."""
        del queue
        before_call()
        return [SendAnswer("accepted", message_id=_NOT_SENT)] * len(messages)


def dry_partners(partners: Partners, store: DryStore) -> Partners:
    """Return the same partners, for reading only."""
    return replace(partners, objects=DryObjects(partners.objects, store), sqs=DryQueues(partners.sqs))


@dataclass
class DryDispatcher(Dispatcher):
    """Says of windows, one after another, what dispatching them would do; it needs partners that take nothing."""

    store: DryStore

    def request(self, window: Window, cause: Cause) -> runs.RunRequest:
        """Return what a run of this window would set out to do."""
        return replace(super().request(window, cause), lease=_LEASE)

    def take(self, window: Window) -> None:
        """Copy what the ledger holds of a window, after a look at the witnesses: nobody else is kept from going on."""
        objects = self.partners.objects
        assert isinstance(objects, DryObjects), "a dry run has partners that take nothing"
        objects.forget()
        places = [
            (objects.bucket, self.settings.objects.prefix),
            *windows.read_origin(self.store.whole, self.settings.pipeline).places,
        ]
        read_witnesses(objects, places, self.settings.pipeline, [window, *neighbours(window)])
        self.store.take(window)

    def _start(self, request: runs.RunRequest) -> runs.Started:
        self.take(request.window)
        return super()._start(request)

    def run(self, request: runs.RunRequest, steps: Callable[[Run, runs.Started], datetime]) -> RunReport:
        """Do what `Dispatcher.run` does, on the copy; what counts as confirmed was sent to nobody."""
        report = super().run(request, steps)
        report.dry_run, report.counts.confirmed = True, 0
        return report
