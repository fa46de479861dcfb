"""The ledger counts the writes of those whose right to a window, a job or a receipt has passed on."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from ledger import clock, jobs, leases, receipts, runs
from ledger.errors import ClaimLostError, FencedError, LeaseLostError
from ledger.gauges import read_gauges
from ledger.ids import new_id
from ledger.jobs import Held, Job
from ledger.leases import LeaseKeeper
from ledger.receipts import Claim, GoAhead
from ledger.store import Store
from ops.jobs.requests import new_job
from tests.fault.windows import fill
from tests.job_kit import REQUEST
from tests.ledger_kit import expire, take, take_over
from tests.rig import WINDOW, Rig

LEASE = timedelta(seconds=60)


def counted(store: Store, pipeline: str = "test") -> dict[str, int]:
    return read_gauges(store, pipeline, LEASE, None).refusals


def refused(write: Callable[[], object], error: type[FencedError]) -> None:
    with pytest.raises(error):
        write()


def test_a_run_that_lost_its_window(store: Store) -> None:
    late = take(store)
    winner = take_over(store, late)
    late_keeper, keeper = (LeaseKeeper(one, store.url, clock.monotonic_s()) for one in (late, winner))
    refused(lambda: leases.execute_fenced(store, late, "SELECT 1", None), LeaseLostError)
    assert counted(store) == {"window": 1}
    assert not store.transaction(late_keeper._renew)
    assert counted(store) == {"window": 2}
    assert store.transaction(keeper._renew)
    runs.end_run(store, winner, "cancelled", "", runs.RunCounts())
    assert not store.transaction(keeper._renew), "it gave the window back itself"
    expire(store, take(store))
    assert counted(store) == {"window": 2}
    assert counted(store, "another") == {}


def test_a_worker_that_lost_its_job(store: Store) -> None:
    def claimed() -> tuple[Held, Held]:
        """Let a job pass from one worker to another."""
        job = jobs.create_job(store, "test", new_job(REQUEST.validate_python({"kind": "report"}), "ann"), 100)
        late, winner = Held(job.id, new_id()), Held(job.id, new_id())
        assert isinstance(jobs.claim_job(store, "test", late, timedelta()), Job)
        assert isinstance(jobs.claim_job(store, "test", winner, LEASE), Job)
        return late, winner

    late, winner = claimed()
    assert jobs.renew_claim(store, late, LEASE, 0, None) == "lost"
    refused(lambda: jobs.add_part(store, late, "w", b"{}"), ClaimLostError)
    refused(lambda: jobs.complete_job(store, late, None, b"{}", (1, 1)), ClaimLostError)
    assert counted(store) == {"job": 3}
    jobs.complete_job(store, winner, None, b"{}", (1, 1))
    assert jobs.renew_claim(store, winner, LEASE, 0, None) == "lost", "it has ended it itself"
    late, winner = claimed()
    jobs.cancel_job(store, "test", winner.id)
    assert jobs.renew_claim(store, winner, LEASE, 0, None) == "cancelled"
    refused(lambda: jobs.fail_job(store, winner, "no", None), ClaimLostError)
    assert counted(store) == {"job": 3}, "who cancels takes nothing over"


def test_a_consumer_that_lost_its_receipt(rig: Rig, store: Store) -> None:
    fill(rig.world, WINDOW)
    rig.run()
    key = bytes(rig.rows("SELECT idempotency_key FROM entries LIMIT 1")[0][0])

    def taken() -> Claim:
        rig.tell("UPDATE receipts SET expires_at = ledger_now() - interval '1 second'")
        given = receipts.take(store, "reward", key, "w", LEASE)
        assert isinstance(given, GoAhead)
        return given.claim

    late, winner = taken(), taken()
    refused(lambda: receipts.heartbeat(store, late, LEASE), ClaimLostError)
    refused(lambda: receipts.complete(store, late, 1), ClaimLostError)
    refused(lambda: store.transaction(lambda one: receipts.fail_within(one, late, "no")), ClaimLostError)
    assert counted(store, "reward") == {"receipt": 3}
    receipts.complete(store, winner, 1)
    refused(lambda: receipts.complete(store, winner, 2), ClaimLostError)
    assert counted(store, "reward") == {"receipt": 3}, "who asks for another end has lost nothing"


def test_nothing_is_counted_where_nothing_can_be(store: Store) -> None:
    late = take(store)
    take_over(store, late)
    store.transaction(lambda connection: connection.execute("DROP TABLE refusals"))
    refused(lambda: leases.execute_fenced(store, late, "SELECT 1", None), LeaseLostError)
