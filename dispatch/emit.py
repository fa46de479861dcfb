"""The one path from due records to confirmed jobs: open, upload, mark, send, confirm."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

import msgspec
import structlog

from dispatch.aws.objects import Upload
from dispatch.aws.pool import at_once
from dispatch.aws.queues import SENT_AT_ONCE_MAX, Message
from dispatch.feeders import BATCH_RECORDS_MAX, Streamed
from dispatch.grouping import distinct, group_of, group_records
from dispatch.payload import document, document_parts, message_body, object_key
from dispatch.run import Run
from dispatch.verify import still_due, verify, verify_each
from dispatch.witnesses import land, step_on
from ledger import clock, outbox
from ledger.errors import UnavailableError
from ledger.facts import Entry, Record, SendAnswer, StoredObject
from ledger.ids import jitter

LOG = structlog.get_logger(__name__)
_SEND_TRIES_MAX = 5
_FIRST_DELAY_S = 0.2
_RECOVER_MAX = 200
_HOLD_BYTES_MAX = 4 * 1024 * 1024
_STRAYS_MAX = 10_000


def emit(run: Run, candidates: Sequence[Record]) -> None:
    """Send a batch of whole groups: verified, claimed, stored, sent and confirmed."""
    due, repeated = distinct(verify(run, candidates))
    groups = group_records(due, run.rules)
    run.checkpoint()
    opened = outbox.open_entries(run.store, run.tenure, groups, run.destinations) if groups else outbox.Opened()
    run.counts.entries += len(opened.entries)
    run.counts.claimed += opened.claimed
    run.counts.already_claimed += repeated + len(due) - opened.claimed
    finish(run, opened.entries, opened.bodies, "confirmed")
    run.progress()


def emit_streamed(run: Run, streamed: Streamed) -> None:
    """Send one group that is too large to hold, as one job; what turns out to belong elsewhere follows in batches."""
    strays: list[Record] = []
    before = msgspec.structs.replace(run.counts)
    in_place = 0

    def chunks() -> Iterator[list[Record]]:
        nonlocal in_place
        run.counts.due, run.counts.not_due = before.due, before.not_due  # a repeat counts anew
        run.counts.set_aside, in_place = before.set_aside, 0
        strays.clear()
        for kept in _in_place(run, streamed, strays):
            in_place += len(kept)
            yield distinct(kept)[0]

    group = group_of([streamed.first], run.rules)
    entry = outbox.open_streamed(run.store, run.tenure, group, chunks, run.destinations)
    claimed = entry.records_n if entry else 0
    run.counts.claimed += claimed
    run.counts.already_claimed += in_place - claimed
    if entry is not None:
        run.counts.entries += 1
        finish(run, [entry], {}, "confirmed")
    for at in range(0, len(strays), BATCH_RECORDS_MAX):
        emit(run, strays[at : at + BATCH_RECORDS_MAX])
    run.progress()


def _in_place(run: Run, streamed: Streamed, strays: list[Record]) -> Iterator[list[Record]]:
    """Verify a large group chunk by chunk; a record whose group, order or time has changed since is put aside."""
    for chunk in streamed.chunks():
        run.checkpoint()
        kept: list[Record] = []
        for before, now in verify_each(run, chunk):
            in_place = (now.group_key, now.order_key) == (before.group_key, before.order_key)
            (kept if in_place else strays).append(now)
        if len(strays) > _STRAYS_MAX:
            raise UnavailableError(
                f"window {run.tenure.window}: more than {_STRAYS_MAX} records of one group changed their place while "
                "it was being sent; nothing of it was sent, run the window again",
            )
        yield kept


def finish(
    run: Run, entries: Sequence[Entry], bodies: Mapping[UUID, bytes], count_as: Literal["confirmed", "recovered"]
) -> None:
    """Bring opened entries to their end: stored, sent, confirmed.

    Args:
        bodies: the entries' records as JSON; an entry that has none here is streamed from the ledger.
        count_as: where the books count those that are confirmed.

    Raises:
        UnavailableError: when some could not be sent after bounded tries; the ledger knows which.
    """
    if not entries:
        return
    stored = _upload(run, entries, bodies)
    for at in range(0, len(stored), SENT_AT_ONCE_MAX):
        _deliver(run, stored[at : at + SENT_AT_ONCE_MAX], count_as)


def _deliver(run: Run, entries: list[Entry], count_as: Literal["confirmed", "recovered"]) -> None:
    """Mark, send and confirm entries; a process that dies in here leaves no more than these in doubt."""
    waiting = entries
    delay_s = _FIRST_DELAY_S
    step_on(run)
    for _ in range(_SEND_TRIES_MAX):
        run.checkpoint()
        marked = outbox.mark_sending(run.store, run.tenure, waiting)
        answers = _send(run, marked)
        confirmed = outbox.record_answers(run.store, run.tenure, answers)
        setattr(run.counts, count_as, getattr(run.counts, count_as) + confirmed)
        waiting = [_tried(entry, answer) for entry, answer in answers if _may_try_again(entry, answer)]
        open_ended = [answer for _, answer in answers if answer.outcome in {"failed", "unknown"}]
        if not open_ended:
            return
        if len(open_ended) > len(waiting):
            break
        LOG.info("sends are tried again", messages=len(waiting), reason=open_ended[0].error)
        run.checkpoint()
        clock.wait_s(jitter(delay_s), run.cancellation.asked)
        delay_s *= 2
    run.checkpoint()
    raise UnavailableError(
        f"window {run.tenure.window}: {len(open_ended)} of {len(entries)} messages were not confirmed by the queue "
        f"({open_ended[0].outcome}: {open_ended[0].error}); run the window again to finish them",
    )


def _may_try_again(entry: Entry, answer: SendAnswer) -> bool:
    """A failed send may be tried again; an unknown one once more in a run, since each try may become a message."""
    return answer.outcome == "failed" or (answer.outcome == "unknown" and not entry.unproven)


def _tried(entry: Entry, answer: SendAnswer) -> Entry:
    return msgspec.structs.replace(entry, unproven=entry.unproven or answer.outcome == "unknown")


def _upload(run: Run, entries: Sequence[Entry], bodies: Mapping[UUID, bytes]) -> list[Entry]:
    """Store the entries' objects, and beside them how far the window has come, which must lie there before a send."""
    run.checkpoint()
    stored: dict[UUID, StoredObject] = {}
    steps: list[Callable[[], str | None]] = [run.witness.land, lambda: _store(run, entries, bodies, stored)]
    overtaken, _ = at_once(_take, steps, 2)
    land(run, overtaken)
    return [msgspec.structs.replace(entry, stored=stored[entry.id]) for entry in entries]


def _take(step: Callable[[], str | None]) -> str | None:
    return step()


def _store(run: Run, entries: Sequence[Entry], bodies: Mapping[UUID, bytes], stored: dict[UUID, StoredObject]) -> None:
    """Store the entries' objects, many at once; an entry whose payload is not at hand is streamed from the ledger."""
    by_bucket: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.id in bodies:
            by_bucket.setdefault(entry.destination.bucket, []).append(entry)
        else:
            stored[entry.id] = _upload_streamed(run, entry)
    for bucket, here in by_bucket.items():
        uploads = [upload_of(entry, document(entry, bodies[entry.id])) for entry in here]
        answers = run.objects.put_many(bucket, uploads)
        stored |= {entry.id: answer for entry, answer in zip(here, answers, strict=True)}


def _metadata(entry: Entry, sha256_hex: str) -> dict[str, str]:
    return {"idempotency-key": entry.idempotency_key.hex(), "sha256": sha256_hex}


def upload_of(entry: Entry, body: bytes) -> Upload:
    """Return an entry's object as it is stored."""
    return Upload(object_key(entry), body, _metadata(entry, hashlib.sha256(body).hexdigest()))


def _upload_streamed(run: Run, entry: Entry) -> StoredObject:
    """Read the payload twice: once for the digest, which goes in front, and once to send it."""
    digest = hashlib.sha256()
    for part in document_parts(entry, outbox.iter_parts(run.store, run.tenure, entry)):
        run.checkpoint()
        digest.update(part)
    parts = document_parts(entry, outbox.iter_parts(run.store, run.tenure, entry))
    metadata = _metadata(entry, digest.hexdigest())
    return run.objects.put_streamed(entry.destination.bucket, object_key(entry), parts, metadata)


def _send(run: Run, entries: Sequence[Entry]) -> list[tuple[Entry, SendAnswer]]:
    by_queue: dict[str, list[Entry]] = {}
    for entry in entries:
        by_queue.setdefault(entry.destination.queue, []).append(entry)
    answers: list[tuple[Entry, SendAnswer]] = []
    for name, here in by_queue.items():
        messages = [Message(message_body(one), one.group_digest.hex(), one.idempotency_key.hex()) for one in here]
        answers += zip(here, run.sqs.send(run.queue(name), messages, run.before_send), strict=True)
    return answers


def recover(
    run: Run, quiet: timedelta = timedelta(), count_as: Literal["confirmed", "recovered"] = "recovered"
) -> None:
    """Finish what earlier runs of this window left unfinished, from the ledger alone.

    What was never sent and is no longer due is void, and its claims are free; what may have been sent is confirmed when
    a receipt proves it, else sent again under the same idempotency key. What a redo has opened is finished as it is: a
    person wanted it, and the jobs that it replaces may not be worked any more.

    Args:
        quiet: leave alone what was opened or tried more recently than this.
        count_as: where the books count those that are confirmed.
    """
    run.counts.recovered += outbox.prove_received(run.store, run.tenure)
    after: UUID | None = None
    while unfinished := outbox.list_unfinished(run.store, run.tenure, after, _RECOVER_MAX, quiet):
        after = unfinished[-1].id
        sizes = outbox.payload_bytes(run.store, run.tenure, unfinished)
        batch: list[Entry] = []
        held_bytes = 0
        for entry in unfinished:
            run.checkpoint()
            if run.verify_due and not entry.unproven and not entry.generation and not still_due(run, entry):
                outbox.void_entries(run.store, run.tenure, [entry], "no longer due before it was sent")
                LOG.info("entry is void", entry_id=str(entry.id), reason="no longer due before it was sent")
                continue
            if batch and held_bytes + sizes[entry.id] > _HOLD_BYTES_MAX:
                _finish_from_ledger(run, batch, sizes, count_as)
                batch, held_bytes = [], 0
            batch.append(entry)
            held_bytes += sizes[entry.id]
        if batch:
            _finish_from_ledger(run, batch, sizes, count_as)
    run.progress()


def _finish_from_ledger(
    run: Run, entries: Sequence[Entry], sizes: Mapping[UUID, int], count_as: Literal["confirmed", "recovered"]
) -> None:
    small = [entry for entry in entries if sizes[entry.id] <= _HOLD_BYTES_MAX]
    bodies = outbox.payloads(run.store, run.tenure, small) if small else {}
    finish(run, entries, bodies, count_as)
