"""Applying a plan dies, or loses an answer, at any transaction: a repeat finishes it, and each job goes once."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from ledger.errors import GuardError
from ledger.plans import cancel_plan
from ledger.store import Store
from tests.aws_servers import World, booking
from tests.breaking import Break, Death, KilledError, LostAnswer
from tests.fault.windows import drained
from tests.rig import Rig, records_of

PIPELINES = count(1)
AT = "2026-09-17T15:%02d:00Z"
JOBS = [["r1", "r2"], ["r3"]]


@pytest.fixture(scope="module")
def world(ministack: str) -> World:
    made = World(ministack)
    members = {"r1": 1, "r2": 1, "r3": 2}
    made.put_many(booking(one, AT % at, member=member) for at, (one, member) in enumerate(members.items(), 1))
    return made


@pytest.fixture(scope="module")
def rig(world: World, module_ledger_url: str) -> Iterator[Rig]:
    with Rig(world, module_ledger_url) as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledger.store._FIRST_DELAY_S", 0.001)


def planned(rig: Rig) -> tuple[str, Any]:
    """Dispatch the window under a pipeline of its own, and plan to send it again."""
    pipeline = f"redo-{next(PIPELINES)}"
    assert rig.run(pipeline=pipeline).outcome == "completed"
    drained(rig.world)
    return pipeline, rig.plan(pipeline=pipeline)


def apply(rig: Rig, pipeline: str, plan: Any, broken: Break) -> Any:
    """Apply until it breaks off, or to the end; a dead run's lease has run out afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        broken.install(patch)
        try:
            return rig.apply(plan, pipeline=pipeline)
        except KilledError:
            return None
        finally:
            patch.undo()
            rig.expire_leases(pipeline)


def transactions(rig: Rig) -> list[int]:
    """Number the transactions of an apply; of those of its reconcile, which is broken off elsewhere, only the first."""
    pipeline, plan = planned(rig)
    whole = Death()
    assert apply(rig, pipeline, plan, whole).error is None
    drained(rig.world)
    completing = next(at for at, name in enumerate(whole.seen, 1) if name.startswith("complete_redo"))
    keeping = next(at for at, name in enumerate(whole.seen, 1) if name.startswith("keep_reconcile"))
    return [*range(1, completing + 2), keeping, len(whole.seen)]


def begun(rig: Rig) -> tuple[str, Any]:
    """Kill an apply right after its entries were opened."""
    pipeline, plan = planned(rig)
    for at in count(1):
        broken = Death(at, after=True)
        apply(rig, pipeline, plan, broken)
        if broken.where.startswith("_begin"):
            break
    assert drained(rig.world) == []
    return pipeline, plan


def check(rig: Rig, broken: Break) -> None:
    pipeline, plan = planned(rig)
    first = apply(rig, pipeline, plan, broken)
    if first is not None and first.error is None:
        books = [first.document["run"][name] for name in ("evaluated", "due", "claimed", "entries", "confirmed")]
        assert books == [3, 3, 3, 2, 2], broken.where
    applied = apply(rig, pipeline, plan, Death())
    assert applied.error is None, (broken.where, applied.error)
    assert (applied.document["state"], applied.document["run"]["outcome"]) == ("applied", "completed")
    assert applied.document["reconcile"]["windows"][0]["error"] is None
    messages = drained(rig.world)
    objects = rig.world.objects(f"reward-dispatch/{pipeline}/")
    keys = Counter(one["idempotency_key"] for one in messages)
    records = records_of({key: objects[key] for key in {one["object"]["key"] for one in messages}})
    assert sorted(records.values()) == JOBS, broken.where
    assert {one["generation"] for one in messages} == {1}
    twice = {key for key, times in keys.items() if times > 1}
    reported = {
        key
        for (key,) in rig.rows(
            "SELECT encode(subject, 'hex') FROM findings JOIN pipelines ON pipelines.id = pipeline_id "
            "WHERE name = %s AND kind = 'duplicate' AND cause = 'resent'",
            pipeline,
        )
    }
    assert twice <= reported, broken.where
    superseded = "SELECT count(*) FROM receipts JOIN pipelines ON pipelines.id = pipeline_id WHERE name = %s"
    assert rig.value(superseded, pipeline) == len(JOBS)
    again = apply(rig, pipeline, plan, Death())
    assert again.document == applied.document
    assert drained(rig.world) == []
    rig.assert_books_balance()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [Death, LostAnswer])
def test_broken_off_at_each_transaction(rig: Rig, kind: type[Break], *, after: bool) -> None:
    for at in transactions(rig):
        check(rig, kind(at, after=after))


def test_a_dispatch_finishes_what_an_apply_left(rig: Rig) -> None:
    """Whoever works on the window next sends what was opened, also what is no longer due by then; a repeat notes it."""
    pipeline, plan = begun(rig)
    rig.world.update("r1", RewardStatus="Cancelled")
    try:
        report = rig.run(pipeline=pipeline)
    finally:
        rig.world.update("r1", RewardStatus="WaitToReward")
    assert (report.outcome, report.counts.recovered, report.counts.claimed) == ("completed", 2, 0)
    assert {one["generation"] for one in drained(rig.world)} == {1}
    applied = apply(rig, pipeline, plan, Death())
    assert (applied.error, applied.document["state"]) == (None, "applied")
    assert applied.document["run"]["recovered"] == 0
    assert drained(rig.world) == []


def test_a_plan_that_is_being_applied_can_only_be_finished(rig: Rig) -> None:
    pipeline, plan = begun(rig)
    with Store(rig.url) as store, pytest.raises(GuardError, match="can only be finished"):
        cancel_plan(store, pipeline, UUID(plan["plan_id"]))
    assert apply(rig, pipeline, plan, Death()).document["state"] == "applied"
    assert len(drained(rig.world)) == len(JOBS)
