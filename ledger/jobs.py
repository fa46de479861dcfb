"""Long-running jobs, a row each: who asked for what, how far it has come, and who works on it until when.

A message on a queue only wakes a worker; what is true stands here. Whoever works on a job holds a claim: it is renewed
by heartbeats, runs out on the database's clock, and every write of a worker shows it, so that one who has lost it can
write nothing any more.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from ledger.documents import Document, Row, plain, rows
from ledger.errors import ClaimLostError, InputError, Refusal, UnavailableError
from ledger.ids import new_id
from ledger.runs import pipeline_id
from ledger.store import Connection, Store, count_refusal, sql

Kind = Literal["dispatch", "reconcile", "redo", "report"]
Status = Literal["pending", "processing", "completed", "failed", "cancelled"]
Lane = Literal["fast", "slow"]
STATUSES: tuple[Status, ...] = ("pending", "processing", "completed", "failed", "cancelled")
FINAL: tuple[Status, ...] = ("completed", "failed", "cancelled")
ATTEMPTS_MAX = 3
LIST_MAX = 200
# Whoever creates a job, or hands it back, puts its id on the queue; after this long the relay does.
RELAY_AFTER = timedelta(seconds=5)
# A message that nobody has received after this long may be lost: the relay sends another.
RESEND_AFTER = timedelta(hours=1)
# The message of a lost worker comes back when its claim runs out; if it has not by then, the relay sends another.
LOST_AFTER = timedelta(seconds=60)
_LOST = f"its worker was lost in attempt {ATTEMPTS_MAX}, the last: killed, out of memory, or its machine is gone"


class TooManyPendingError(UnavailableError):
    """So many jobs are waiting that no more are taken for now. Exit 1, 503."""


class KeyTakenError(InputError):
    """The idempotency key belongs to another request. Exit 2, 422."""


class FollowUp(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job to start when another one completes.

    Attributes:
        params: a JSON object.
        follow_up: the job that follows that one.
    """

    kind: Kind
    queue: Lane
    params: msgspec.Raw
    follow_up: "FollowUp | None" = None


class NewJob(msgspec.Struct, frozen=True):
    """A request for work, checked, and not yet written down.

    Attributes:
        id: made by the writer, so that a repeat after a lost answer finds it.
        params: a JSON object.
        queue: where it waits: `fast`, or `slow` for what is known to take long.
        created_by: who asked.
        idempotency_key, request_hash: what tells a repeat of the request from another one; both or neither.
    """

    id: UUID
    kind: Kind
    params: str
    queue: Lane
    created_by: str
    idempotency_key: str | None = None
    request_hash: bytes | None = None
    follow_up: FollowUp | None = None


class Job(msgspec.Struct, frozen=True):
    """A job as its row has it. `done` and `total` count what the kind counts; `total` is None while unknown."""

    id: UUID
    pipeline_id: int
    kind: Kind
    params: str
    queue: Lane
    status: Status
    attempts: int
    done: int
    total: int | None
    claim: UUID | None
    heartbeat_at: datetime | None
    expires_at: datetime | None
    sent_at: datetime | None
    relay_at: datetime
    idempotency_key: str | None
    request_hash: bytes | None
    follow_up: str | None
    follows: UUID | None
    result: str | None
    error: str | None
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.status in FINAL


class Held(msgspec.Struct, frozen=True):
    """A worker's hold on a job: what each of its writes has to show."""

    id: UUID
    claim: UUID

    def key(self) -> Row:
        """The parameters that identify this hold in a statement."""
        return {"id": self.id, "claim": self.claim}

    def lost(self) -> ClaimLostError:
        """The error that says that this hold is over."""
        return ClaimLostError(
            f"job {self.id} is no longer this worker's: it was cancelled, or another worker has claimed it; nothing "
            "more was written",
            Refusal("job", job_id=self.id),
        )


class Refused(msgspec.Struct, frozen=True):
    """Why a job could not be claimed.

    Attributes:
        reason: `unknown` in this ledger, of a `foreign` pipeline, `ended`, `claimed` by a live worker, or `exhausted`:
            failed now, because its workers were lost in every attempt.
        wait_s: how long the live worker's claim still lasts, in seconds.
        error: why it failed, when it is exhausted, or has ended as failed before.
    """

    reason: Literal["unknown", "foreign", "ended", "claimed", "exhausted"]
    wait_s: float = 0.0
    error: str = ""


def job_document(job: Job) -> Document:
    """Return a job as every list and answer shows it; why it waits or has failed is no error while it is worked on."""
    return {
        "job_id": str(job.id),
        "kind": job.kind,
        "status": job.status,
        "progress": {"done": job.done, "total": job.total},
        "attempts": job.attempts,
        "heartbeat_at": plain(job.heartbeat_at),
        "result": None if job.result is None else msgspec.Raw(job.result.encode()),
        "error": job.error if job.status in {"pending", "failed"} else None,
        "params": msgspec.Raw(job.params.encode()),
        "queue": job.queue,
        "follows": plain(job.follows),
        "created_by": job.created_by,
        "created_at": plain(job.created_at),
        "started_at": plain(job.started_at),
        "finished_at": plain(job.finished_at),
    }


def create_job(store: Store, pipeline: str, new: NewJob, depth_max: int) -> Job:
    """Write a request down as a pending job, or return the job that the same request made before; safe to repeat.

    Args:
        depth_max: with so many jobs pending, none is added.

    Raises:
        KeyTakenError: when the idempotency key belongs to another request.
        TooManyPendingError: when too many jobs are pending.
    """
    return store.transaction(lambda connection: _create(connection, pipeline, new, depth_max))


def _create(connection: Connection, pipeline: str, new: NewJob, depth_max: int) -> Job:
    owner = pipeline_id(connection, pipeline)
    # One at a time, so that neither a key nor the last place is given away twice.
    connection.execute("SELECT 1 FROM pipelines WHERE id = %s FOR NO KEY UPDATE", (owner,))
    query = "SELECT * FROM jobs WHERE id = %(id)s OR (pipeline_id = %(owner)s AND idempotency_key = %(key)s)"
    found = rows(connection, query, {"id": new.id, "owner": owner, "key": new.idempotency_key})
    if found:
        if found[0]["request_hash"] != new.request_hash:
            raise KeyTakenError("this Idempotency-Key was used for another request; give each request a key of its own")
        return Job(**found[0])
    depth = (
        "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE pipeline_id = %s AND status = 'pending' LIMIT %s) AS waiting"
    )
    pending = connection.execute(depth, (owner, depth_max)).fetchone()
    if pending is not None and pending[0] >= depth_max:
        raise TooManyPendingError(
            f"{pending[0]} jobs are pending, which is as many as jobs.max_depth allows; try later"
        )
    insert = (
        "INSERT INTO jobs (id, pipeline_id, kind, params, queue, status, idempotency_key, request_hash, follow_up, "
        "created_by, created_at, relay_at) VALUES (%(id)s, %(owner)s, %(kind)s, %(params)s, %(queue)s, 'pending', "
        "%(idempotency_key)s, %(request_hash)s, %(follow_up)s, %(created_by)s, ledger_now(), "
        "ledger_now() + %(relay_after)s::interval) RETURNING *"
    )
    follow_up = None if new.follow_up is None else msgspec.json.encode(new.follow_up).decode()
    values = msgspec.structs.asdict(new) | {"owner": owner, "follow_up": follow_up, "relay_after": RELAY_AFTER}
    return Job(**rows(connection, insert, values)[0])


def claim_job(store: Store, pipeline: str, held: Held, lease: timedelta) -> Job | Refused:
    """Claim a job for a worker, or say why not; the attempt counts from here. Safe to repeat with the same claim.

    A job whose workers were lost in all its attempts is failed by this.

    Args:
        lease: how long the claim lasts unless it is renewed.
    """
    parameters = {**held.key(), "pipeline": pipeline, "lease": lease, "attempts_max": ATTEMPTS_MAX, "reason": _LOST}

    def work(connection: Connection) -> Job | Refused:
        _await_row(connection, held)
        claimed = rows(connection, sql("claim_job"), parameters)
        return Job(**claimed[0]) if claimed else _refusal(connection, parameters)

    return store.transaction(work)


def _await_row(connection: Connection, held: Held) -> None:
    """Wait until nobody else writes the job: what runs out is counted by a clock that is read after that."""
    connection.execute("SELECT 1 FROM jobs WHERE id = %(id)s FOR NO KEY UPDATE", held.key())


def _refusal(connection: Connection, parameters: Row) -> Refused:
    query = (
        "SELECT status, error, pipelines.name = %(pipeline)s AS ours, attempts, "
        "greatest(extract(epoch FROM expires_at - ledger_now()), 0)::float8 AS wait_s "
        "FROM jobs JOIN pipelines ON pipelines.id = pipeline_id WHERE jobs.id = %(id)s"
    )
    found = rows(connection, query, parameters)
    if not found or not found[0]["ours"]:
        return Refused("foreign" if found else "unknown")
    if found[0]["status"] in FINAL:
        return Refused("ended", error=found[0]["error"] if found[0]["status"] == "failed" else "")
    ended = rows(connection, sql("exhaust_job"), parameters)
    return Refused("exhausted", error=ended[0]["error"]) if ended else Refused("claimed", found[0]["wait_s"] or 0.0)


def renew_claim(
    store: Store, held: Held, lease: timedelta, done: int, total: int | None
) -> Literal["held", "lost", "cancelled"]:
    """Renew a claim and note how far the work has come; says whether the job is still this worker's.

    What an earlier attempt has told is kept until this one has come as far.
    """
    update = (
        "UPDATE jobs SET heartbeat_at = ledger_now(), expires_at = ledger_now() + %(lease)s::interval, "
        "done = greatest(done, %(done)s), total = coalesce(%(total)s, total) "
        "WHERE id = %(id)s AND claim = %(claim)s AND status = 'processing' "
        "RETURNING id"
    )
    parameters = {**held.key(), "lease": lease, "done": done, "total": total}

    def work(connection: Connection) -> Literal["held", "lost", "cancelled"]:
        _await_row(connection, held)
        if rows(connection, update, parameters):
            return "held"
        left = rows(connection, "SELECT status, claim FROM jobs WHERE id = %(id)s", parameters)
        if left and left[0]["status"] == "cancelled":
            return "cancelled"
        if left and left[0]["claim"] != held.claim:  # else this worker has just ended it
            count_refusal(connection, Refusal("job", job_id=held.id))
        return "lost"

    return store.transaction(work)


def add_part(store: Store, held: Held, name: str, document: bytes) -> None:
    """Keep what came of one step, so that the next attempt goes on after it; safe to repeat.

    Raises:
        ClaimLostError: when the job is no longer this worker's.
    """
    lock = "SELECT 1 FROM jobs WHERE id = %(id)s AND claim = %(claim)s AND status = 'processing' FOR NO KEY UPDATE"
    insert = (
        "INSERT INTO job_parts (job_id, name, document) VALUES (%(id)s, %(name)s, %(document)s) "
        "ON CONFLICT (job_id, name) DO UPDATE SET document = EXCLUDED.document"
    )
    parameters = {**held.key(), "name": name, "document": document.decode()}

    def work(connection: Connection) -> None:
        if not rows(connection, lock, parameters):
            raise held.lost()
        connection.execute(insert, parameters)

    store.transaction(work)


def list_parts(store: Store, job_id: UUID) -> dict[str, bytes]:
    """Return what earlier attempts have kept, by name, in the order of names; as many as the job has steps."""
    query = "SELECT name, document FROM job_parts WHERE job_id = %s ORDER BY name"
    found = store.transaction(lambda connection: connection.execute(query, (job_id,)).fetchall())
    return {name: document.encode() for name, document in found}


def complete_job(
    store: Store, held: Held, follow_up: str | None, result: bytes, progress: tuple[int, int | None]
) -> None:
    """Complete a job, and create the one that follows it in the same transaction; safe to repeat.

    Args:
        follow_up: as the job's row has it.
        progress: done and total.

    Raises:
        ClaimLostError: when the job is no longer this worker's.
    """
    following = None if follow_up is None else msgspec.json.decode(follow_up, type=FollowUp)
    done, total = progress
    parameters = {**held.key(), "result": result.decode(), "done": done, "total": total, **_following(following)}
    _end(store, held, sql("complete_job"), parameters, "completed")


def _following(follow_up: FollowUp | None) -> Row:
    if follow_up is None:
        return dict.fromkeys(("next_id", "next_kind", "next_params", "next_queue", "next_follow_up"))
    then = None if follow_up.follow_up is None else msgspec.json.encode(follow_up.follow_up).decode()
    return {
        "next_id": new_id(),
        "next_kind": follow_up.kind,
        "next_params": bytes(follow_up.params).decode(),
        "next_queue": follow_up.queue,
        "next_follow_up": then,
    }


def fail_job(store: Store, held: Held, error: str, result: bytes | None) -> None:
    """End a job that cannot be done; safe to repeat. What its steps have kept is dropped.

    Raises:
        ClaimLostError: when the job is no longer this worker's.
    """
    update = (
        "WITH failed AS (UPDATE jobs SET status = 'failed', error = %(error)s, result = %(result)s, "
        "finished_at = ledger_now(), expires_at = NULL "
        "WHERE id = %(id)s AND claim = %(claim)s AND status = 'processing' RETURNING id), "
        "dropped AS (DELETE FROM job_parts WHERE job_id IN (SELECT id FROM failed)) SELECT id FROM failed"
    )
    parameters = {**held.key(), "error": _line(error), "result": None if result is None else result.decode()}
    _end(store, held, update, parameters, "failed")


def hand_back(store: Store, held: Held, *, queue: Lane, delay: timedelta, counts: bool, error: str) -> None:
    """Give a job back to wait for another worker; safe to repeat. Its id has to be put on the queue again.

    Args:
        queue: where it waits now.
        delay: how long the sender of its id makes it wait; after that, and a little more, the relay sends it.
        counts: whether this was an attempt; not when the window was busy, the worker was stopped, or the job moved.
        error: why the attempt failed, or what the job waits for.

    Raises:
        ClaimLostError: when the job is no longer this worker's.
    """
    update = (
        "UPDATE jobs SET status = 'pending', queue = %(queue)s, expires_at = NULL, sent_at = NULL, error = %(error)s, "
        "attempts = attempts - %(uncounted)s, relay_at = ledger_now() + %(relay_after)s::interval "
        "WHERE id = %(id)s AND claim = %(claim)s AND status = 'processing' RETURNING id"
    )
    parameters = {
        **held.key(),
        "queue": queue,
        "relay_after": delay + RELAY_AFTER,
        "uncounted": 0 if counts else 1,
        "error": _line(error),
    }
    _end(store, held, update, parameters, "pending")


def _end(store: Store, held: Held, statement: Any, parameters: Row, status: Status) -> None:
    """Execute what ends a hold; when it changes nothing, make sure that it is because it was done before."""

    def work(connection: Connection) -> None:
        if rows(connection, statement, parameters):
            return
        query = "SELECT 1 FROM jobs WHERE id = %(id)s AND claim = %(claim)s AND status = %(status)s"
        if not rows(connection, query, {**held.key(), "status": status}):
            raise held.lost()

    store.transaction(work)


def _line(text: str) -> str:
    """Return a message as PostgreSQL can keep it."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def cancel_job(store: Store, pipeline: str, job_id: UUID) -> Job | None:
    """Cancel a job, for good; one that has ended stays as it is. Safe to repeat.

    Returns:
        The job as it is now; None when the pipeline has no such job.
    """

    def work(connection: Connection) -> Job | None:
        connection.execute(sql("cancel_job"), {"id": job_id, "pipeline": pipeline})
        return _find(connection, pipeline, job_id)

    return store.transaction(work)


def has_key(store: Store, pipeline: str, key: str) -> bool:
    """Say whether a job was asked for under this idempotency key."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id "
        "WHERE pipelines.name = %s AND jobs.idempotency_key = %s)"
    )
    row = store.transaction(lambda connection: connection.execute(query, (pipeline, key)).fetchone())
    return bool(row and row[0])


def find_job(store: Store, pipeline: str, job_id: UUID) -> Job | None:
    """Return a job of this pipeline, or None."""
    return store.transaction(lambda connection: _find(connection, pipeline, job_id))


_OURS = "SELECT jobs.* FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id WHERE pipelines.name = %(pipeline)s "


def _find(connection: Connection, pipeline: str, job_id: UUID) -> Job | None:
    found = rows(connection, _OURS + "AND jobs.id = %(id)s", {"pipeline": pipeline, "id": job_id})
    return Job(**found[0]) if found else None


class Wanted(msgspec.Struct, frozen=True):
    """Which jobs to list: newest first, those before one that was listed already; 1 to `LIST_MAX` at a time."""

    statuses: Sequence[str] = STATUSES
    kind: str | None = None
    before: UUID | None = None
    limit: int = 50


def list_jobs(store: Store, pipeline: str, wanted: Wanted) -> Document:
    """List jobs, newest first, a page at a time.

    Returns:
        The document: `jobs`, without their results, and `next`, the `before` of the next page, None on the last.
    """
    query = _OURS + (
        "AND jobs.status = ANY(%(statuses)s) AND (%(kind)s::text IS NULL OR jobs.kind = %(kind)s) "
        "AND (%(before)s::uuid IS NULL OR jobs.id < %(before)s) ORDER BY jobs.id DESC LIMIT %(limit)s"
    )
    limit = min(max(wanted.limit, 1), LIST_MAX)
    parameters = {
        "pipeline": pipeline,
        "statuses": list(wanted.statuses),
        "kind": wanted.kind,
        "before": wanted.before,
        "limit": limit + 1,
    }
    found = store.transaction(lambda connection: rows(connection, query, parameters))
    listed = [job_document(Job(**row)) for row in found[:limit]]
    for document in listed:
        del document["result"]
    return {"jobs": listed, "next": listed[-1]["job_id"] if len(found) > limit else None}


def take_unsent(store: Store, pipeline: str, limit: int) -> list[tuple[UUID, Lane]]:
    """Take jobs whose id must be put on a queue: never sent, sent and lost, or left by a worker that is gone.

    What is taken and not noted as sent comes up again half a minute later.
    """
    parameters = {"pipeline": pipeline, "lost_after": LOST_AFTER, "limit": limit}
    return store.transaction(lambda connection: connection.execute(sql("jobs_to_relay"), parameters).fetchall())


def note_sent(store: Store, ids: Sequence[UUID]) -> None:
    """Note that the ids of jobs are on their queue; safe to repeat.

    A crash of the database may forget it again, which costs no more than an id that is sent twice.
    """
    update = (
        "UPDATE jobs SET sent_at = ledger_now(), relay_at = ledger_now() "
        "+ CASE status WHEN 'pending' THEN %(resend_after)s::interval ELSE %(lost_after)s::interval END "
        "WHERE id = ANY(%(ids)s::uuid[]) AND status IN ('pending', 'processing')"
    )
    parameters = {"ids": list(ids), "resend_after": RESEND_AFTER, "lost_after": LOST_AFTER}

    def work(connection: Connection) -> None:
        connection.execute("SET LOCAL synchronous_commit = off")
        connection.execute(update, parameters)

    if ids:
        store.transaction(work)
