"""What must be true in the end of a soak of jobs. Each check gives what it found wrong, one line each."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ledger.instants import parse_window
from ledger.jobs import ATTEMPTS_MAX, FINAL
from tests.aws_servers import World
from tests.fault.windows import DUE, drained, jobs
from tests.rig import Rig, records_of

# The database itself writes down whenever a job changes its status or its worker, or is written after its end, whoever
# does it. A claim is lost when another worker takes the job over, or it is given up because of that; an attempt that is
# given back may count, too.
WATCH = """
CREATE TABLE soak_changes (
    job_id uuid NOT NULL, was text NOT NULL, became text NOT NULL, lost bool NOT NULL, counted bool NOT NULL,
    error text, beat timestamptz, expired timestamptz);
CREATE FUNCTION soak_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO soak_changes VALUES (
        OLD.id, OLD.status, NEW.status,
        OLD.status = 'processing'
            AND (NEW.status = 'processing' OR coalesce(starts_with(NEW.error, 'its worker was lost'), false)),
        OLD.status = 'processing' AND NEW.status = 'pending' AND NEW.attempts = OLD.attempts,
        NEW.error, OLD.heartbeat_at, OLD.expires_at);
    RETURN NULL;
END $$;
CREATE TRIGGER soak_watch AFTER UPDATE ON jobs FOR EACH ROW
WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.claim IS DISTINCT FROM NEW.claim OR OLD.finished_at IS NOT NULL)
EXECUTE FUNCTION soak_note()
"""
_LOST_LEASE = "lost its lease"
_SLACK = timedelta(seconds=1)


def jobs_ended_once(rig: Rig, cancelled: set[str]) -> Iterator[str]:
    """Check that each job ended, once; as failed only when three workers were lost with it."""
    final = list(FINAL)
    for job, became in rig.rows(
        "SELECT id::text, array_agg(became) FROM jobs LEFT JOIN soak_changes ON job_id = id AND became = ANY(%s) "
        "GROUP BY id HAVING count(became) <> 1",
        final,
    ):
        yield f"job {job} reached {became}, not one final state"
    for job, was, became in rig.rows("SELECT job_id::text, was, became FROM soak_changes WHERE was = ANY(%s)", final):
        yield f"job {job} was {was} and became {became}"
    for job, status, tries, error, spent in rig.rows(
        "SELECT id::text, status, attempts, jobs.error, count(*) FILTER (WHERE lost OR counted) "
        "FROM jobs LEFT JOIN soak_changes ON job_id = id GROUP BY id"
    ):
        if status == "cancelled" and job not in cancelled:
            yield f"job {job} is cancelled; nobody asked for that"
        if status == "failed":
            lost = spent + (_LOST_LEASE in error and not error.startswith("its worker was lost"))
            if (lost, tries) != (ATTEMPTS_MAX, ATTEMPTS_MAX):
                yield f"job {job} failed; {lost} of {tries} attempts were lost: {error}"
        if status == "completed" and tries != 1 + spent:
            yield f"job {job} completed in attempt {tries}, and {spent} were lost before"


def attempts_were_lost_in_trouble(rig: Rig, troubles: Sequence[tuple[datetime, datetime]]) -> Iterator[str]:
    """Check that a claim ran out, or a run lost its lease, only where a worker was killed or paused just then.

    It need not be the one that held the claim: who is paused in a transaction keeps its locks, and others wait.
    """
    query = "SELECT job_id::text, lost, error, beat, expired FROM soak_changes WHERE lost OR counted"
    for job, lost, error, beat, expired in rig.rows(query):
        if not lost and _LOST_LEASE not in error:
            yield f"job {job}: an attempt failed: {error}"
        if not any(began <= expired and ended >= beat - _SLACK for began, ended in troubles):
            yield f"job {job}: a claim ran out at {expired}, without a kill or a pause since {beat}"


def followers_follow(rig: Rig) -> Iterator[str]:
    """Check that a job has one follower when it completed and one was asked for, else none."""
    query = (
        "SELECT jobs.id::text, jobs.status, count(follower.id) FROM jobs "
        "LEFT JOIN jobs AS follower ON follower.follows = jobs.id GROUP BY jobs.id "
        "HAVING count(follower.id) > 1 OR (jobs.status <> 'completed' AND count(follower.id) > 0)"
    )
    for job, status, followers in rig.rows(query):
        yield f"job {job} is {status} and has {followers} followers"


def results_say_so(rig: Rig) -> Iterator[str]:
    """Check that what completed says that it is all of the work."""
    for job, kind, params, result in rig.rows(
        "SELECT id::text, kind, params, result FROM jobs WHERE status = 'completed'"
    ):
        asked, told = json.loads(params), json.loads(result)
        runs = told.get("runs", [told] if kind == "dispatch" else [])
        if any(run["outcome"] != "completed" for run in runs):
            yield f"job {job} completed with {[run['outcome'] for run in runs]}"
        if kind == "reconcile" and {one["window"] for one in told["windows"]} != set(asked["windows"]):
            yield f"job {job} reconciled {[one['window'] for one in told['windows']]}, not {asked['windows']}"
        if "apply" in asked and told["state"] != "applied":
            yield f"job {job} completed with a plan that is {told['state']}"


def each_window_was_sent(
    rig: Rig, messages: Sequence[Any], objects: Mapping[str, bytes], generations: Mapping[str, int]
) -> Iterator[str]:
    """Check that every job of each window was sent once a generation, and each second message was reported."""
    records = records_of(objects)
    reported = {
        bytes(key).hex()
        for (key,) in rig.rows(
            "SELECT idempotency_key FROM findings JOIN entries ON entries.id = entry_id WHERE kind = 'duplicate'"
        )
    }
    tries: dict[str, int] = {
        bytes(key).hex(): count
        for key, count in rig.rows(
            "SELECT idempotency_key, count(*) FROM all_attempts JOIN entries ON entries.id = entry_id GROUP BY 1"
        )
    }
    for window, wanted in generations.items():
        here = [one for one in messages if one["window"]["start"] == window]
        for generation in range(wanted):
            sent = {one["idempotency_key"]: one["object"]["key"] for one in here if one["generation"] == generation}
            found = sorted(tuple(records.get(key, ["no object"])) for key in sent.values())
            if found != sorted(tuple(f"{window[:13]}-{name}" for name in job) for job in jobs("staged")):
                yield f"{window}, generation {generation}: sent {found}"
        if more := {one["generation"] for one in here} - set(range(wanted)):
            yield f"{window}: sent in generations {more}, which nobody asked for"
        yield from _in_the_ledger(rig, window, wanted)
    for key, count in Counter(one["idempotency_key"] for one in messages).items():
        if count > tries[key] or (count > 1 and key not in reported):
            yield f"{key} was sent {count} times in {tries[key]} attempts, reported: {key in reported}"


def _in_the_ledger(rig: Rig, window: str, generations: int) -> Iterator[str]:
    start = parse_window(window)
    states = rig.rows(
        "SELECT generation, state, count(*)::int FROM entry_states JOIN windows ON windows.id = window_id "
        "WHERE start_s = %s GROUP BY 1, 2 ORDER BY 1, 2",
        start.start_s,
    )
    if states != [(generation, "confirmed", len(jobs("staged"))) for generation in range(generations)]:
        yield f"{window}: entries {states}"
    claims = rig.value("SELECT count(*) FROM claims WHERE booking_ns BETWEEN %s AND %s", start.start_ns, start.end_ns)
    if claims != DUE * generations:
        yield f"{window}: {claims} claims"
    if not rig.value("SELECT completed_at IS NOT NULL FROM windows WHERE start_s = %s", start.start_s):
        yield f"{window}: no dispatch has completed it"


def nothing_is_left(rig: Rig, world: World, queues: Sequence[str]) -> Iterator[str]:
    """Check that no work is left over anywhere, and the dead letters are the jobs that failed."""
    for table in ("job_parts", "payload_parts", "staged_records"):
        if count := rig.value(f"SELECT count(*) FROM {table}"):
            yield f"{table} has {count} rows"
    for name in queues:
        if count := world.message_count(name):
            yield f"queue {name} has {count} messages"
    if open_runs := rig.value("SELECT count(*) FROM runs WHERE outcome IS NULL AND finished_at IS NOT NULL"):
        yield f"{open_runs} runs have ended without an outcome"
    dead = {message["Body"] for message in world.receive_all(f"jobs-dead-{world.suffix}")}
    failed = {job for (job,) in rig.rows("SELECT id::text FROM jobs WHERE status = 'failed'")}
    if dead != failed:
        yield f"dead letters {dead}, failed jobs {failed}"
    for kind, cause, detail in rig.rows("SELECT kind, cause, detail FROM findings WHERE state = 'open'"):
        if (kind, cause) != ("duplicate", "resent"):
            yield f"open finding {kind}, {cause}: {json.loads(detail)}"


def all_wrong(
    rig: Rig,
    world: World,
    troubles: Sequence[tuple[datetime, datetime]],
    *,
    cancelled: set[str],
    generations: Mapping[str, int],
    queues: Sequence[str],
) -> tuple[list[str], list[Any]]:
    """Check everything; gives what is wrong, and the messages that were sent."""
    messages, objects = drained(world), world.objects("reward-dispatch/reward/")
    wrong = [
        *jobs_ended_once(rig, cancelled),
        *attempts_were_lost_in_trouble(rig, troubles),
        *followers_follow(rig),
        *results_say_so(rig),
        *each_window_was_sent(rig, messages, objects, generations),
        *nothing_is_left(rig, world, queues),
    ]
    try:
        rig.assert_books_balance()
    except AssertionError as error:
        wrong.append(f"the books do not balance: {error}")
    return wrong, messages
