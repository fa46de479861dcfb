"""Whether a job that the ledger does not know may be one that it has forgotten: then its consumer waits."""

from dispatch.aws.inbox import JobObjects
from dispatch.jobs import JobMessage
from ledger import evidence, windows
from ledger.errors import InputError
from ledger.holds import held
from ledger.instants import Window, parse_window
from ledger.keys import window_prefix
from ledger.store import Store
from ledger.witness import FoundWitness, contradiction, decode_witness, witness_key

_WITNESS_BYTES_MAX = 64 * 1024


def reason_to_wait(store: Store, objects: JobObjects, message: JobMessage) -> str | None:
    """Say why nothing of a queue should be worked that has brought this job; None when nothing speaks against it.

    So it is when the ledger does not know the job, and its window is held, or behind its witness.
    """
    if evidence.has_promise(store, message.key):
        return None
    try:
        window = parse_window(message.window.start)
    except InputError:
        return None
    found = _find_witness(objects, message, window)
    origin = windows.read_origin(store, message.pipeline)
    known = windows.how_far(store, message.pipeline, [window]).get(window, windows.HowFar())
    if known.held_kind is not None:
        return str(held(window, known.held_reason or "", known.held_kind))
    reason = contradiction(found, known.seq, origin.ledger_id)
    return None if reason is None else str(held(window, reason, "behind"))


def _find_witness(objects: JobObjects, message: JobMessage, window: Window) -> list[FoundWitness]:
    """Read the witness of a job's window, which lies where its object does."""
    prefix, place, _ = message.object.key.partition(window_prefix("", message.pipeline, window))
    if not place:
        return []
    bucket, key = message.object.bucket, witness_key(prefix, message.pipeline, window)
    body = objects.fetch(bucket, key, _WITNESS_BYTES_MAX)
    return [] if body is None else [FoundWitness(bucket, key, "", decode_witness(body, f"s3://{bucket}/{key}"))]
