"""The life of a receipt: a worker takes a job, keeps it with heartbeats, and completes or fails it.

At most one worker has a job at a time, and a job is completed at most once. All of it is compare-and-set on the claim,
a token that the worker shows with each call, on the database's clock. Every function that takes a store may be repeated
after a lost answer; the `…_within` functions belong to a transaction of the caller, so that an effect can commit with
them.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from ledger.canonical import is_plain_text
from ledger.errors import ClaimLostError, InputError, Refusal, UnknownKeyError
from ledger.ids import new_id
from ledger.results import bounded_reason, encode_result
from ledger.store import Connection, Store, sql

WORKER_CHARS_MAX = 200
LEASE_MIN, LEASE_MAX = timedelta(milliseconds=500), timedelta(hours=12)
_KEY_DIGITS = 64
# A receipt that is not given out is looked at; when it was given back in between, it is asked for again.
_TRIES_MAX = 3

_NOW = (
    "SELECT receipts.state, claim, receipts.worker, attempts, expires_at, finished_at, result, reason "
    "FROM receipts JOIN pipelines ON pipelines.id = receipts.pipeline_id "
    "WHERE pipelines.name = %(pipeline)s AND receipts.idempotency_key = %(key)s"
)

_LOCK = (
    "SELECT 1 FROM receipts JOIN pipelines ON pipelines.id = receipts.pipeline_id "
    "WHERE pipelines.name = %(pipeline)s AND receipts.idempotency_key = %(key)s FOR NO KEY UPDATE OF receipts"
)


class Claim(msgspec.Struct, frozen=True):
    """A worker's right to a job, until it runs out and somebody else takes the job.

    Attributes:
        key: the idempotency key, 32 bytes.
        token: what the worker shows with each call.
    """

    pipeline: str
    key: bytes
    token: UUID


class GoAhead(msgspec.Struct, frozen=True):
    """The job is yours.

    Attributes:
        attempts: how often it was claimed, this time included.
    """

    claim: Claim
    expires_at: datetime
    attempts: int


class Completed(msgspec.Struct, frozen=True):
    """The job was worked to its end; do not work.

    Attributes:
        result: what its worker handed in, as JSON.
    """

    finished_at: datetime
    result: msgspec.Raw


class Superseded(msgspec.Struct, frozen=True):
    """A redo has replaced the job; do not work."""


class Held(msgspec.Struct, frozen=True):
    """Another worker has the job; come again.

    Attributes:
        until: when its claim runs out, unless it is renewed.
        remaining: how long that is, on the database's clock.
    """

    worker: str
    until: datetime
    remaining: timedelta


class UnknownKey(msgspec.Struct, frozen=True):
    """The pipeline's ledger holds no promise under this key, or only one that it has taken back."""


Taken: TypeAlias = GoAhead | Completed | Superseded | Held | UnknownKey


class _Now(msgspec.Struct, frozen=True):
    """A receipt as it is."""

    state: Literal["in_work", "completed", "failed", "superseded"]
    claim: UUID | None
    worker: str | None
    attempts: int
    expires_at: datetime | None
    finished_at: datetime | None
    result: str | None
    reason: str | None


def parse_key(text: str) -> bytes:
    """Read an idempotency key: 64 hexadecimal digits.

    Raises:
        InputError: when it is none.
    """
    try:
        if len(text) == _KEY_DIGITS and text.isalnum():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise InputError(f"{text[:80]!r} is no idempotency key; it has 64 hexadecimal digits")


def take(store: Store, pipeline: str, key: bytes, worker: str, lease: timedelta) -> Taken:
    """Ask for a job. It is given to one worker at a time: one that is new, has failed, or whose claim has run out.

    Args:
        worker: who asks, for people; 1 to 200 characters.
        lease: how long the claim lasts without a heartbeat; 500 milliseconds to 12 hours.

    Raises:
        InputError: when worker or lease are not allowed.
    """
    if not worker.strip() or len(worker) > WORKER_CHARS_MAX or not is_plain_text(worker):
        raise InputError(f"the worker's name must be text of 1 to {WORKER_CHARS_MAX} characters")
    claim = Claim(pipeline, key, new_id())
    parameters = {**_parameters(claim), "worker": worker, "lease": _checked(lease)}
    return store.transaction(lambda connection: _take(connection, claim, parameters))


def _take(connection: Connection, claim: Claim, parameters: dict[str, object]) -> Taken:
    for _ in range(_TRIES_MAX):
        given = connection.execute(sql("take_receipt"), parameters).fetchone()
        if given is not None and given[2]:  # late: it asks once more, for the whole of its time
            given = connection.execute(sql("take_receipt"), parameters).fetchone()
        if given is not None:
            return GoAhead(claim, *given[:2])
        now = _now(connection, claim)
        if now is None:
            return UnknownKey()
        if now.state == "completed":
            assert now.finished_at is not None, "what is completed has ended"
            return Completed(now.finished_at, msgspec.Raw((now.result or "null").encode()))
        if now.state == "superseded":
            return Superseded()
        remaining = _remaining(connection, now)
        if now.expires_at is not None and remaining > timedelta(0):
            return Held(now.worker or "", now.expires_at, remaining)
    return UnknownKey()  # it could be taken, were its promise still there


def _remaining(connection: Connection, now: _Now) -> timedelta:
    row = connection.execute("SELECT coalesce(%s - ledger_now(), interval '0')", (now.expires_at,)).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return timedelta(seconds=row[0].total_seconds())


def heartbeat(store: Store, claim: Claim, lease: timedelta) -> datetime:
    """Renew a claim; also one that has run out, as long as nobody else has taken the job.

    Returns:
        When it runs out now.

    Raises:
        ClaimLostError: when the job is no longer this claim's.
        UnknownKeyError: when nobody ever took a job of this key.
    """
    parameters = {**_parameters(claim), "lease": _checked(lease)}

    def work(connection: Connection) -> datetime:
        connection.execute(_LOCK, parameters)  # the clock is read after that
        renewed = connection.execute(sql("renew_receipt"), parameters).fetchone()
        if renewed is None:
            raise _refusal(claim, _existing(connection, claim))
        return _moment(renewed[0])

    return store.transaction(work)


def complete(store: Store, claim: Claim, result: Any) -> datetime:
    """End a job that was done. Repeating the same call gives the same answer.

    Args:
        result: what came of it: anything that JSON can say, 64 KiB at most as canonical JSON.

    Returns:
        When it ended.

    Raises:
        InputError: when the result is no JSON, or too long; the job is still in work then.
        ClaimLostError: when the job is no longer this claim's, or was ended otherwise.
        UnknownKeyError: when nobody ever took a job of this key.
    """
    return store.transaction(_ending(claim, "completed", result=result))


def complete_within(connection: Connection, claim: Claim, result: Any) -> datetime:
    """Do as `complete` in a transaction of the caller's, who rolls it back when this raises."""
    return _ending(claim, "completed", result=result)(connection)


def fail(store: Store, claim: Claim, reason: str) -> datetime:
    """End an attempt that failed; the job may be taken again. Repeating the same call gives the same answer.

    Args:
        reason: what went wrong; cut after 1,000 characters.

    Returns:
        When it ended.

    Raises:
        ClaimLostError: when the job is no longer this claim's, or was ended otherwise.
        UnknownKeyError: when nobody ever took a job of this key.
    """
    return store.transaction(_ending(claim, "failed", reason=reason))


def fail_within(connection: Connection, claim: Claim, reason: str) -> datetime:
    """Do as `fail` in a transaction of the caller's, who rolls it back when this raises."""
    return _ending(claim, "failed", reason=reason)(connection)


def completed_at(connection: Connection, claim: Claim) -> datetime | None:
    """Say when this very claim has completed its job, None while it is in work; for a transaction that may be repeated.

    Raises:
        ClaimLostError: when the job is no longer this claim's.
    """
    now = _existing(connection, claim)
    if now.claim == claim.token and now.state == "completed":
        return now.finished_at
    if now.claim != claim.token or now.state != "in_work":
        raise _refusal(claim, now)
    return None


def _ending(
    claim: Claim, state: Literal["completed", "failed"], *, result: Any = None, reason: str | None = None
) -> Callable[[Connection], datetime]:
    try:
        told = encode_result(result).decode() if state == "completed" else None
    except ValueError as error:
        raise InputError(str(error)) from None
    why = None if reason is None else bounded_reason(reason)
    parameters = {**_parameters(claim), "state": state, "result": told, "reason": why}

    def work(connection: Connection) -> datetime:
        ended = connection.execute(sql("end_receipt"), parameters).fetchone()
        if ended is not None:
            return _moment(ended[0])
        now = _existing(connection, claim)
        if (now.claim, now.state, now.result, now.reason) != (claim.token, state, told, why):
            raise _refusal(claim, now)
        return _moment(now.finished_at)

    return work


def _refusal(claim: Claim, now: _Now) -> ClaimLostError:
    refusal: Refusal | None = Refusal("receipt", claim.pipeline)
    if now.claim == claim.token and now.state in {"completed", "failed"}:
        refusal = None  # it asks for two ends, and has lost nothing
        why = f"it has ended the job already, as {now.state}"
    elif now.state == "superseded":
        why = "a redo has replaced the job"
    else:
        why = f"the job was taken by another worker, and is {now.state.replace('_', ' ')} there"
    return ClaimLostError(
        f"the claim on job {claim.key.hex()} is no longer good: {why}; stop, and do not repeat the call", refusal
    )


def _existing(connection: Connection, claim: Claim) -> _Now:
    now = _now(connection, claim)
    if now is None:
        raise UnknownKeyError(f"nobody has taken a job {claim.key.hex()} in pipeline {claim.pipeline}; take it first")
    return now


def _now(connection: Connection, claim: Claim) -> _Now | None:
    row = connection.execute(_NOW, _parameters(claim)).fetchone()
    return None if row is None else _Now(*row)


def _parameters(claim: Claim) -> dict[str, object]:
    return {"pipeline": claim.pipeline, "key": claim.key, "claim": claim.token}


def _checked(lease: timedelta) -> timedelta:
    if not LEASE_MIN <= lease <= LEASE_MAX:
        raise InputError(f"a claim lasts from {LEASE_MIN} to {LEASE_MAX}, not {lease}")
    return lease


def _moment(value: Any) -> datetime:
    assert isinstance(value, datetime), "the column is a timestamptz"
    return value
