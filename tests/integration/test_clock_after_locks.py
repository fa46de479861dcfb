"""What runs out is counted from when a row was free, not from when it was waited for; on the database's clock.

Each test lets one transaction keep a row while another waits for it, sets the clock ten minutes ahead, and lets go.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ledger import clock, jobs, leases, receipts, runs
from ledger.errors import LeaseLostError
from ledger.facts import RunCounts
from ledger.ids import new_id
from ledger.jobs import Held, Job, NewJob
from ledger.leases import LeaseKeeper
from ledger.receipts import GoAhead
from ledger.store import Store, connect_arguments
from tests import ledger_kit as kit
from tests.product import until
from tests.report_kit import Planter
from tests.rig import Rig

LEASE = timedelta(minutes=1)
LATE = "clock_timestamp() + interval '10 minutes'"


@pytest.fixture(autouse=True)
def setting_of_the_clock(rig: Rig) -> None:
    """The ledger's clock, which a test can set ahead, for every transaction at once."""
    rig.tell("CREATE TABLE clock_ahead AS SELECT interval '0' AS by")
    rig.tell(
        "CREATE OR REPLACE FUNCTION ledger_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
        "AS 'SELECT clock_timestamp() + by FROM clock_ahead'"
    )


@pytest.fixture
def other(rig: Rig) -> Iterator[psycopg.Connection[Any]]:
    """Another transaction."""
    with closing(psycopg.connect(**connect_arguments(rig.url))) as connection:
        yield connection


def waited_for(rig: Rig, other: psycopg.Connection[Any], act: Callable[[Store], Any]) -> Any:
    """Do something that waits for the other transaction; ten minutes pass meanwhile, and nothing is changed."""

    def work() -> Any:
        with Store(rig.url) as mine:
            return act(mine)

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(work)
        until(lambda: rig.value(waiting), "it waits")
        rig.tell("UPDATE clock_ahead SET by = interval '10 minutes'")
        other.rollback()
        return acting.result(60)


def a_job(store: Store) -> Job:
    new = NewJob(id=new_id(), kind="report", params="{}", queue="fast", created_by="test")
    return jobs.create_job(store, "reward", new, 100)


@pytest.mark.parametrize("lost", [False, True], ids=["pending", "of a lost worker"])
def test_a_claim_on_a_job(rig: Rig, store: Store, other: psycopg.Connection[Any], *, lost: bool) -> None:
    job = a_job(store)
    if lost:
        jobs.claim_job(store, "reward", Held(job.id, new_id()), timedelta())
    other.execute("SELECT 1 FROM jobs FOR UPDATE")
    claimed = waited_for(rig, other, lambda mine: jobs.claim_job(mine, "reward", Held(job.id, new_id()), LEASE))
    assert isinstance(claimed, Job), claimed
    assert rig.value(f"SELECT expires_at > {LATE} AND heartbeat_at > {LATE} - interval '30 s' FROM jobs")


def test_the_renewal_of_a_claim(rig: Rig, store: Store, other: psycopg.Connection[Any]) -> None:
    held = Held(a_job(store).id, new_id())
    jobs.claim_job(store, "reward", held, LEASE)
    other.execute("SELECT 1 FROM jobs FOR UPDATE")
    assert waited_for(rig, other, lambda mine: jobs.renew_claim(mine, held, LEASE, 1, 2)) == "held"
    assert rig.value(f"SELECT expires_at > {LATE} FROM jobs")


def test_the_lease_on_a_window(rig: Rig, store: Store, other: psycopg.Connection[Any]) -> None:
    before = kit.take(store)
    runs.end_run(store, before, "failed", "test", RunCounts())
    other.execute("SELECT 1 FROM windows FOR UPDATE")
    wanted = kit.request(before.window.name)
    started = waited_for(rig, other, lambda mine: runs.start_run(mine, wanted))
    assert started.tenure.fence == before.fence + 1
    assert rig.value(f"SELECT lease_until > {LATE} FROM windows")


def test_a_lease_that_runs_out_while_its_fence_is_waited_for(
    rig: Rig, store: Store, other: psycopg.Connection[Any]
) -> None:
    tenure = kit.take(store)
    other.execute("SELECT 1 FROM windows FOR UPDATE")
    with pytest.raises(LeaseLostError):
        waited_for(rig, other, lambda mine: mine.transaction(lambda one: leases.check_fence(one, tenure)))


def test_a_run_counts_its_lease_from_when_it_asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer took longer than the lease lasts."""
    now_s = [1000.0]
    usual = Store.transaction

    def slow(self: Store, work: Any) -> Any:
        answer = usual(self, work)
        now_s[0] += 3600
        return answer

    monkeypatch.setattr(clock, "monotonic_s", lambda: now_s[0])
    monkeypatch.setattr(Store, "transaction", slow)
    started = runs.start_run(store, kit.request())
    with pytest.raises(LeaseLostError):
        LeaseKeeper(started.tenure, store.url, started.asked_s).require_s(0)


@pytest.fixture
def key(planter: Planter) -> bytes:
    """The idempotency key of a job that was sent."""
    return planter.dispatch(10, (1,))[0].idempotency_key


def take(store: Store, key: bytes) -> GoAhead:
    taken = receipts.take(store, "reward", key, "w", LEASE)
    assert isinstance(taken, GoAhead), taken
    return taken


@pytest.mark.parametrize("state", ["new", "failed"])
def test_a_claim_on_a_receipt(rig: Rig, store: Store, other: psycopg.Connection[Any], key: bytes, state: str) -> None:
    if state == "failed":
        receipts.fail(store, take(store, key).claim, "no")
        other.execute("SELECT 1 FROM receipts FOR UPDATE")
    else:
        other.execute(
            "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, attempts, finished_at) "
            "SELECT pipeline_id, idempotency_key, window_id, 'superseded', 0, ledger_now() "
            "FROM entries JOIN windows ON windows.id = window_id"
        )
    taken = waited_for(rig, other, lambda mine: take(mine, key))
    assert taken.attempts == (2 if state == "failed" else 1)
    assert rig.value(f"SELECT expires_at > {LATE} AND claimed_at > {LATE} - interval '30 s' FROM receipts")
    assert rig.value("SELECT expires_at FROM receipts") == taken.expires_at


def test_the_heartbeat_of_a_receipt(rig: Rig, store: Store, other: psycopg.Connection[Any], key: bytes) -> None:
    taken = take(store, key)
    other.execute("SELECT 1 FROM receipts FOR UPDATE")
    until_when = waited_for(rig, other, lambda mine: receipts.heartbeat(mine, taken.claim, LEASE))
    assert rig.value(f"SELECT expires_at > {LATE} FROM receipts")
    assert rig.value("SELECT expires_at FROM receipts") == until_when
