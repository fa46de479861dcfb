"""Long-running jobs in the ledger: one key one job, claims that run out, and nothing written by who has lost one."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from ledger import jobs
from ledger.errors import ClaimLostError, CorruptError
from ledger.ids import new_id
from ledger.jobs import FollowUp, Held, Job, KeyTakenError, NewJob, Refused, TooManyPendingError, Wanted
from ledger.store import Connection, Store

LEASE = timedelta(seconds=60)
SOON = timedelta()
REPORT = FollowUp("report", "fast", msgspec.Raw(b'{"report":"windows"}'))


def new(**fields: Any) -> NewJob:
    values: dict[str, Any] = {"kind": "dispatch", "params": '{"due":true}', "queue": "fast", "created_by": "test"}
    return NewJob(**({"id": new_id()} | values | fields))


def keyed(key: str, body: bytes = b"one") -> NewJob:
    return new(idempotency_key=key, request_hash=body)


def create(store: Store, request: NewJob | None = None, *, depth_max: int = 100) -> Job:
    return jobs.create_job(store, "reward", request or new(), depth_max)


def claim(store: Store, job: Job, lease: timedelta = LEASE) -> Held:
    held = Held(job.id, new_id())
    claimed = jobs.claim_job(store, "reward", held, lease)
    assert isinstance(claimed, Job), claimed
    assert claimed.claim == held.claim
    return held


def refused(store: Store, job_id: UUID, pipeline: str = "reward") -> Refused:
    answer = jobs.claim_job(store, pipeline, Held(job_id, new_id()), LEASE)
    assert isinstance(answer, Refused), answer
    return answer


def now(store: Store, job: Job) -> Job:
    found = jobs.find_job(store, "reward", job.id)
    assert found is not None
    return found


def tell(store: Store, statement: Any, *parameters: object) -> None:
    store.transaction(lambda connection: connection.execute(statement, parameters))


def expire(store: Store, job: Job, by: str = "1 second") -> None:
    tell(store, "UPDATE jobs SET expires_at = ledger_now() - %s::interval WHERE id = %s", by, job.id)


def due_for_relay(store: Store) -> list[UUID]:
    tell(store, "UPDATE jobs SET relay_at = ledger_now() - interval '1 second'")
    return [job_id for job_id, _ in jobs.take_unsent(store, "reward", 100)]


def test_the_life_of_a_job(store: Store) -> None:
    job = create(store)
    assert (job.status, job.attempts, job.sent_at) == ("pending", 0, None)
    held = claim(store, job)
    assert (now(store, job).status, now(store, job).attempts) == ("processing", 1)
    assert jobs.renew_claim(store, held, LEASE, 3, 7) == "held"
    assert jobs.job_document(now(store, job))["progress"] == {"done": 3, "total": 7}
    jobs.complete_job(store, held, None, b'{"runs":[]}', (7, 7))
    ended = now(store, job)
    assert (ended.status, ended.result, ended.error, ended.done) == ("completed", '{"runs":[]}', None, 7)
    assert ended.finished_at is not None
    assert refused(store, job.id).reason == "ended"


def test_fifty_requests_at_once_with_one_key_are_one_job(store: Store, ledger_url: str) -> None:
    start = threading.Barrier(10, timeout=60)

    def ask(_: int) -> list[UUID]:
        with Store(ledger_url) as mine:
            start.wait()
            return [create(mine, keyed("k")).id for _ in range(5)]

    with ThreadPoolExecutor(10) as pool:
        made = {job_id for ids in pool.map(ask, range(10)) for job_id in ids}
    assert len(made) == 1
    assert len(jobs.list_jobs(store, "reward", Wanted())["jobs"]) == 1


def test_a_key_belongs_to_one_request(store: Store) -> None:
    job = create(store, keyed("k"))
    assert create(store, keyed("k")).id == job.id
    with pytest.raises(KeyTakenError):
        create(store, keyed("k", b"other"))
    jobs.cancel_job(store, "reward", job.id)
    assert create(store, keyed("k")).status == "cancelled", "also when it has ended"
    assert jobs.create_job(store, "another", keyed("k", b"other"), 1).id != job.id, "each pipeline has its own keys"


def test_the_last_place_is_given_away_once(store: Store, ledger_url: str) -> None:
    start = threading.Barrier(8, timeout=60)

    def ask(_: int) -> bool:
        with Store(ledger_url) as mine:
            start.wait()
            try:
                create(mine, depth_max=3)
            except TooManyPendingError:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 3
    job = jobs.list_jobs(store, "reward", Wanted())["jobs"][0]
    claim(store, create(store, new(id=UUID(job["job_id"])), depth_max=3))
    assert create(store, depth_max=3).status == "pending", "what is being worked on is not pending"


def test_a_repeat_is_answered_when_too_many_are_pending(store: Store) -> None:
    job = create(store, keyed("k"), depth_max=1)
    assert create(store, keyed("k"), depth_max=1).id == job.id
    with pytest.raises(TooManyPendingError, match="1 jobs are pending"):
        create(store, depth_max=1)


def test_one_of_many_workers_claims(store: Store, ledger_url: str) -> None:
    job = create(store)
    start = threading.Barrier(6, timeout=60)

    def ask(_: int) -> Job | Refused:
        with Store(ledger_url) as mine:
            start.wait()
            return jobs.claim_job(mine, "reward", Held(job.id, new_id()), LEASE)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    assert sum(isinstance(one, Job) for one in answers) == 1
    waits = [one.wait_s for one in answers if isinstance(one, Refused) and one.reason == "claimed"]
    assert len(waits) == 5
    assert all(50 < wait <= 60 for wait in waits)
    assert now(store, job).attempts == 1


def test_the_same_claim_counts_once(store: Store) -> None:
    """The answer to the first claim was lost."""
    job = create(store)
    held = claim(store, job)
    again = jobs.claim_job(store, "reward", held, LEASE)
    assert isinstance(again, Job)
    assert again.attempts == 1


def test_a_worker_that_lost_its_claim_writes_nothing(store: Store) -> None:
    job = create(store)
    lost = claim(store, job)
    expire(store, job)
    held = claim(store, job)
    assert now(store, job).attempts == 2
    before = now(store, job)
    assert jobs.renew_claim(store, lost, LEASE, 99, 99) == "lost"
    for write in late_writes(store, lost):
        with pytest.raises(ClaimLostError):
            write()
    assert now(store, job) == before
    assert jobs.list_parts(store, job.id) == {}
    jobs.complete_job(store, held, None, b"{}", (1, 1))
    for write in late_writes(store, lost):
        with pytest.raises(ClaimLostError):
            write()
    assert now(store, job).status == "completed"


def late_writes(store: Store, held: Held) -> list[Callable[[], None]]:
    return [
        lambda: jobs.add_part(store, held, "w", b"{}"),
        lambda: jobs.complete_job(store, held, None, b"[]", (9, 9)),
        lambda: jobs.fail_job(store, held, "no", None),
        lambda: jobs.hand_back(store, held, queue="slow", delay=SOON, counts=False, error="not now"),
    ]


def test_a_claim_that_ran_out_and_that_nobody_took_still_holds(store: Store) -> None:
    job = create(store)
    held = claim(store, job)
    expire(store, job)
    assert jobs.renew_claim(store, held, LEASE, 0, None) == "held"
    assert refused(store, job.id).reason == "claimed"


def test_cancelled_in_every_state_it_stays_so(store: Store) -> None:
    pending, working, ended = create(store), create(store), create(store)
    held = claim(store, working)
    jobs.add_part(store, held, "w", b"{}")
    jobs.complete_job(store, claim(store, ended), None, b"{}", (0, 0))
    answers = [jobs.cancel_job(store, "reward", one.id) for one in (pending, working, ended, pending)]
    assert [one.status for one in answers if one] == ["cancelled", "cancelled", "completed", "cancelled"]
    assert jobs.renew_claim(store, held, LEASE, 1, 1) == "cancelled"
    for write in late_writes(store, held):
        with pytest.raises(ClaimLostError):
            write()
    assert refused(store, pending.id).reason == refused(store, working.id).reason == "ended"
    assert now(store, working).status == "cancelled"
    assert jobs.list_parts(store, working.id) == {}
    assert jobs.cancel_job(store, "reward", new_id()) is None
    assert jobs.cancel_job(store, "another", pending.id) is None


def test_three_attempts_and_no_more(store: Store) -> None:
    job = create(store)
    for attempt in (1, 2, 3):
        jobs.hand_back(store, claim(store, job), queue="fast", delay=SOON, counts=False, error="not now")
        held = claim(store, job)
        assert now(store, job).attempts == attempt, "handed back uncounted is no attempt"
        if attempt < 3:
            jobs.hand_back(store, held, queue="fast", delay=SOON, counts=True, error=f"no \0 {attempt}")
            assert now(store, job).error == f"no \\0 {attempt}"
    jobs.add_part(store, held, "done before", b"{}")
    assert refused(store, job.id).reason == "claimed"
    expire(store, job)
    assert list(jobs.list_parts(store, job.id)) == ["done before"]
    answer = refused(store, job.id)
    assert answer.reason == "exhausted"
    assert jobs.list_parts(store, job.id) == {}, "nothing of it is left"
    assert answer.error.startswith("its worker was lost in attempt 3")
    assert (now(store, job).status, now(store, job).attempts) == ("failed", 3)
    with pytest.raises(ClaimLostError):
        jobs.complete_job(store, held, None, b"{}", (0, 0))


def test_a_waiting_job_says_why_and_one_in_work_does_not(store: Store) -> None:
    job = create(store)
    for reason in ("window busy", "worker stopped"):
        jobs.hand_back(store, claim(store, job), queue="fast", delay=SOON, counts=False, error=reason)
        assert jobs.job_document(now(store, job))["error"] == reason
        (listed,) = jobs.list_jobs(store, "reward", Wanted())["jobs"]
        assert listed["error"] == reason
    held = claim(store, job)
    assert jobs.job_document(now(store, job))["error"] is None
    jobs.complete_job(store, held, None, b"{}", (0, 0))
    assert jobs.job_document(now(store, job))["error"] is None
    other = create(store)
    jobs.hand_back(store, claim(store, other), queue="fast", delay=SOON, counts=False, error="window busy")
    jobs.cancel_job(store, "reward", other.id)
    assert jobs.job_document(now(store, other))["error"] is None, "it waits for nothing any more"


def test_progress_does_not_go_back_when_another_worker_begins(store: Store) -> None:
    job = create(store)
    held = claim(store, job)
    assert jobs.renew_claim(store, held, LEASE, 5, 9) == "held"
    jobs.hand_back(store, held, queue="slow", delay=SOON, counts=False, error="moved")
    held = claim(store, job)
    for done, total, shown in ((0, None, (5, 9)), (4, 9, (5, 9)), (6, 9, (6, 9))):
        assert jobs.renew_claim(store, held, LEASE, done, total) == "held"
        assert (now(store, job).done, now(store, job).total) == shown


def test_who_does_not_know_a_job_says_so(store: Store) -> None:
    job = create(store)
    assert refused(store, new_id()).reason == "unknown"
    assert refused(store, job.id, "another").reason == "foreign"
    assert now(store, job).attempts == 0


def test_what_ends_a_hold_can_be_repeated(store: Store) -> None:
    for end in (
        lambda held: jobs.complete_job(store, held, None, b"{}", (1, 1)),
        lambda held: jobs.fail_job(store, held, "no", b"{}"),
        lambda held: jobs.hand_back(store, held, queue="slow", delay=SOON, counts=False, error="not now"),
    ):
        job = create(store)
        held = claim(store, job)
        end(held)
        before = now(store, job)
        end(held)
        assert now(store, job) == before


def test_the_job_that_follows_comes_with_the_completion_or_not_at_all(store: Store) -> None:
    chain = FollowUp("reconcile", "slow", msgspec.Raw(b'{"lookback":"2d"}'), REPORT)
    job = create(store, new(follow_up=chain))
    held = claim(store, job)
    follow_up = now(store, job).follow_up

    def die(connection: Connection) -> None:
        store_work[0](connection)
        raise psycopg.DataError

    store_work: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        usual = Store._transact
        patch.setattr(Store, "_transact", lambda self, work: usual(self, lambda c: (store_work.append(work), die(c))))
        with pytest.raises(CorruptError):
            jobs.complete_job(store, held, follow_up, b"{}", (1, 1))
    assert [one["status"] for one in jobs.list_jobs(store, "reward", Wanted())["jobs"]] == ["processing"]
    for _ in range(2):
        jobs.complete_job(store, held, follow_up, b"{}", (1, 1))
    following, first = jobs.list_jobs(store, "reward", Wanted())["jobs"]
    assert (first["status"], following["status"], following["kind"]) == ("completed", "pending", "reconcile")
    assert following["follows"] == first["job_id"]
    assert (following["queue"], bytes(following["params"])) == ("slow", b'{"lookback":"2d"}')
    second = jobs.find_job(store, "reward", UUID(following["job_id"]))
    assert second is not None
    jobs.complete_job(store, claim(store, second), second.follow_up, b"{}", (1, 1))
    assert [one["kind"] for one in jobs.list_jobs(store, "reward", Wanted())["jobs"]] == [
        "report",
        "reconcile",
        "dispatch",
    ]


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_nothing_follows_what_did_not_complete(store: Store, end: str) -> None:
    job = create(store, new(follow_up=REPORT))
    held = claim(store, job)
    if end == "fail":
        jobs.fail_job(store, held, "no", None)
    else:
        jobs.cancel_job(store, "reward", job.id)
    assert len(jobs.list_jobs(store, "reward", Wanted())["jobs"]) == 1


def test_the_next_attempt_sees_what_the_last_has_kept(store: Store) -> None:
    job = create(store)
    held = claim(store, job)
    jobs.add_part(store, held, "b", b'{"n":1}')
    jobs.add_part(store, held, "a", b'{"n":2}')
    jobs.add_part(store, held, "b", b'{"n":3}')
    jobs.hand_back(store, held, queue="slow", delay=SOON, counts=False, error="not now")
    assert list(jobs.list_parts(store, job.id).items()) == [("a", b'{"n":2}'), ("b", b'{"n":3}')]
    jobs.complete_job(store, claim(store, job), None, b"{}", (2, 2))
    assert jobs.list_parts(store, job.id) == {}


def test_the_relay_sends_what_was_not_sent_and_what_was_lost(store: Store) -> None:
    job = create(store)
    assert jobs.take_unsent(store, "reward", 10) == [], "its creator sends it first"
    assert due_for_relay(store) == [job.id]
    assert jobs.take_unsent(store, "reward", 10) == [], "taken for a while"
    jobs.note_sent(store, [job.id])
    assert now(store, job).sent_at is not None
    tell(store, "UPDATE jobs SET relay_at = relay_at - interval '59 minutes'")
    assert jobs.take_unsent(store, "reward", 10) == []
    tell(store, "UPDATE jobs SET relay_at = relay_at - interval '2 minutes'")
    assert jobs.take_unsent(store, "reward", 10) == [(job.id, "fast")], "nobody has received it for an hour"
    assert due_for_relay(store) == [job.id]
    assert jobs.take_unsent(store, "another", 10) == []


def test_the_relay_wakes_another_worker_for_one_that_is_gone(store: Store) -> None:
    job = create(store)
    claim(store, job)
    jobs.note_sent(store, [job.id])
    assert due_for_relay(store) == [], "it is being worked on"
    expire(store, job, "50 seconds")
    assert due_for_relay(store) == [], "its message should come back by itself"
    expire(store, job, "61 seconds")
    assert due_for_relay(store) == [job.id]
    jobs.cancel_job(store, "reward", job.id)
    assert due_for_relay(store) == []


def test_two_relays_do_not_take_the_same(store: Store, ledger_url: str) -> None:
    made = {create(store).id for _ in range(20)}
    tell(store, "UPDATE jobs SET relay_at = ledger_now()")
    start = threading.Barrier(4, timeout=60)

    def take(_: int) -> list[UUID]:
        with Store(ledger_url) as mine:
            start.wait()
            return [job_id for job_id, _ in jobs.take_unsent(mine, "reward", 20)]

    with ThreadPoolExecutor(4) as pool:
        taken = [job_id for ids in pool.map(take, range(4)) for job_id in ids]
    assert sorted(taken) == sorted(made)


def test_a_list_is_read_page_by_page(store: Store) -> None:
    made = [str(create(store).id) for _ in range(5)]
    jobs.cancel_job(store, "reward", UUID(made[1]))
    seen, before = [], None
    while True:
        page = jobs.list_jobs(store, "reward", Wanted(limit=2, before=before))
        seen += [one["job_id"] for one in page["jobs"]]
        if page["next"] is None:
            break
        before = UUID(page["next"])
    assert seen == sorted(made, reverse=True)
    only = jobs.list_jobs(store, "reward", Wanted(statuses=("cancelled",)))
    assert ([one["job_id"] for one in only["jobs"]], only["next"]) == ([made[1]], None)
    assert jobs.list_jobs(store, "reward", Wanted(kind="redo"))["jobs"] == []
