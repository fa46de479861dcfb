"""After a lost ledger: what stored objects prove was promised becomes entries again, whose send is unknown."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import msgspec

from dispatch.aws.objects import ListedObject
from dispatch.dispatcher import Dispatcher
from dispatch.feeders import BATCH_BYTES_MAX, BATCH_RECORDS_MAX
from dispatch.judging import Rules, promised
from dispatch.run import Run
from ledger import evidence, outbox, runs
from ledger.canonical import canonical_json, fingerprint, group_digest, idempotency_key, members, sha256
from ledger.errors import BusyError, DispatchLedgerError, InputError
from ledger.facts import Destination, Entry, Record, RunCounts
from ledger.ids import new_id
from ledger.instants import Window, parse_window
from ledger.keys import parse_object_key
from reconcile.documents import DocumentReader
from reconcile.orphans import TAG

_FORMAT = 1


@dataclass
class Adopted:
    """What came of one window.

    Attributes:
        entries, records: what was adopted now.
        known: objects that entries refer to already.
        held: whether the window waits for a person now.
        refused: objects that prove no promise, by key, with the reason.
    """

    window: Window
    entries: int = 0
    records: int = 0
    known: int = 0
    held: bool = False
    refused: dict[str, str] = field(default_factory=dict)


class _NotAPromiseError(Exception):
    """Why an object is no promise of this pipeline."""


@dataclass
class Adoption:
    """What came of it, window by window, and what ended it early."""

    windows: list[Adopted] = field(default_factory=list)
    error: DispatchLedgerError | None = None


def adopt_objects(dispatcher: Dispatcher) -> Adoption:
    """Adopt every object below the pipeline's prefix, window by window, oldest first; each window is held then.

    Safe to repeat: what is known already stays as it is. A failure is in the report, not raised: a window that a run
    works on, which is passed over; a partner that does not answer, or a signal, which end it.
    """
    settings, objects = dispatcher.settings, dispatcher.partners.objects
    place = f"{settings.objects.prefix}{settings.pipeline}/"
    adoption = Adoption()
    try:
        listed = ((_window_of(one.key, place), one) for one in objects.listing(objects.bucket, place))
        for window, group in groupby(listed, key=lambda pair: pair[0]):
            if window is not None:
                adopted = Adopted(window)
                adoption.windows.append(adopted)
                try:
                    _adopt_window(dispatcher, adopted, (one for _, one in group))
                except BusyError as error:
                    adoption.error = error
    except DispatchLedgerError as error:
        adoption.error = error
    return adoption


def _window_of(key: str, place: str) -> Window | None:
    """Read the window back from where an object lies; None when it lies elsewhere."""
    parts = key.removeprefix(place).split("/")
    try:
        return parse_window("{}-{}-{}T{}:00:00Z".format(*parts))
    except (IndexError, InputError):
        return None


def _adopt_window(dispatcher: Dispatcher, adopted: Adopted, listed: Iterable[ListedObject]) -> None:
    window = adopted.window
    held_before = evidence.window_facts(dispatcher.store, dispatcher.settings.pipeline, window).held_reason
    started = runs.start_run(dispatcher.store, dispatcher.request(window, "reconcile"), even_held=True)
    counts = RunCounts()
    with dispatcher.working(started, counts) as run:
        for one in listed:
            run.checkpoint()
            _adopt_object(run, one, adopted)
        counts.entries = adopted.entries
        if adopted.entries or held_before == runs.ADOPTING:
            reason = "objects were adopted as entries; nobody knows whether their jobs were sent"
            runs.hold_window(run.store, run.tenure, reason)
        runs.end_adoption(run.store, run.tenure, counts)
    facts = evidence.window_facts(dispatcher.store, dispatcher.settings.pipeline, window)
    adopted.held = facts.held_reason is not None


def _adopt_object(run: Run, listed: ListedObject, adopted: Adopted) -> None:
    if evidence.is_promised(run.store, run.tenure, listed.key):
        adopted.known += 1
        return
    try:
        entry = _read_promise(run, listed)
        if not adopted.entries:  # before anything is adopted: a process that dies in the middle leaves it held
            runs.hold_window(run.store, run.tenure, runs.ADOPTING)
        if not outbox.adopt(run.store, run.tenure, entry, lambda: _chunks(run, listed), listed.stored):
            raise _NotAPromiseError("some of its records are claimed by another entry")  # noqa: TRY301 - one way to refuse
    except _NotAPromiseError as reason:
        adopted.refused[listed.key] = str(reason)
        return
    run.objects.untag(run.objects.bucket, listed.key, TAG)
    adopted.entries += 1
    adopted.records += entry.records_n


def _read_promise(run: Run, listed: ListedObject) -> Entry:
    """Read an object once, holding nothing, and check that it is what its key says."""
    parts = parse_object_key(listed.key)
    if parts is None:
        raise _NotAPromiseError("its key is none that an entry would have")
    digest, content, generation = parts
    whole, records_n = hashlib.sha256(), 0
    reader = DocumentReader(run.objects.read(run.objects.bucket, listed.key))
    for body in reader:
        records_n += 1
        whole.update(sha256(body))
    if reader.frame is None or not records_n:
        raise _NotAPromiseError("it is no document of a group")
    if whole.digest() != content:
        raise _NotAPromiseError("its records do not have the hash that its key names")
    group = _group_json(reader.frame, run.rules, digest)
    key = idempotency_key(run.tenure.pipeline, run.tenure.window.name, digest, content, generation)
    expected = {"format": _FORMAT, "pipeline": run.tenure.pipeline, "idempotency_key": key.hex()}
    if any(bytes(reader.frame.get(name, b"")) != canonical_json(value) for name, value in expected.items()):
        raise _NotAPromiseError("it belongs to another pipeline, window or format")
    return Entry(
        id=new_id(),
        pipeline=run.tenure.pipeline,
        window=run.tenure.window,
        group_digest=digest,
        content_hash=content,
        idempotency_key=key,
        generation=generation,
        records_n=records_n,
        group_json=group,
        destination=_destination(run, bytes(reader.frame.get("job", b""))),
    )


def _group_json(frame: dict[str, msgspec.Raw], rules: Rules, digest: bytes) -> bytes:
    group = bytes(frame.get("group", b""))
    values = members(group) if group.startswith(b"{") else {}
    if set(values) != set(rules.group_by):
        raise _NotAPromiseError(f"it is not grouped by {', '.join(rules.group_by)}")
    if group_digest([values[name] for name in rules.group_by]) != digest:
        raise _NotAPromiseError("its group is not the one that its key names")
    return group


def _destination(run: Run, job: bytes) -> Destination:
    for one in run.destinations.values():
        if canonical_json(one.job) == job:
            return one
    raise _NotAPromiseError("no route has its job")


def _chunks(run: Run, listed: ListedObject) -> Iterator[list[Record]]:
    """Read an object's records again, a bounded number at a time."""
    chunk: list[Record] = []
    size = 0
    for body in DocumentReader(run.objects.read(run.objects.bucket, listed.key)):
        chunk.append(_record(run.rules, body))
        size += len(body)
        if len(chunk) == BATCH_RECORDS_MAX or size > BATCH_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _record(rules: Rules, body: bytes) -> Record:
    try:
        booking_ns, record_id = promised(body, rules)
    except ValueError as reason:
        raise _NotAPromiseError(f"one of its records cannot be read: {reason}") from None
    return Record(record_id, booking_ns, b"", b"", body, fingerprint(body, rules.updated_at_attribute))


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """Return the document of `recover --json`."""
    windows = [
        {
            "window": one.window.name,
            "entries": one.entries,
            "records": one.records,
            "known": one.known,
            "refused": [{"object_key": key, "reason": reason} for key, reason in one.refused.items()],
            "held": one.held,
        }
        for one in adoption.windows
    ]
    error = None if adoption.error is None else str(adoption.error)
    return {"windows": windows, "entries": sum(one.entries for one in adoption.windows), "error": error}
