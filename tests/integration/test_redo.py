"""A redo is planned, looked at and applied once: what it covers, what it refuses, and what it leaves behind."""

import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from dispatch.aws.queues import SqsQueues
from ledger import history
from ledger.errors import BusyError, CorruptError, DispatchLedgerError, GuardError, InputError
from ledger.facts import SendAnswer
from ledger.instants import parse_window
from ledger.plans import cancel_plan
from ledger.store import Store
from reconcile import redo
from tests.aws_servers import World, booking
from tests.conftest import MakeRig
from tests.fault.windows import drained
from tests.rig import FLOWS, WINDOW, Rig, records_of

NEXT = "2026-09-17T16:00:00Z"
AT = "2026-09-17T15:%02d:00Z"
GROUP = '{"ShopId": 1001, "MemberId": %d, "PromotionEngineId": 3001}'


def sent(world: World) -> list[tuple[int, list[str]]]:
    """Take all messages: the generation and the records of each job, in order."""
    objects = world.objects()
    taken = drained(world)
    keys = [one["object"]["key"] for one in taken]
    records = records_of({key: objects[key] for key in keys})
    return sorted((one["generation"], records[key]) for one, key in zip(taken, keys, strict=True))


def receipt(rig: Rig, record: str, state: str, *, lives: bool = False) -> None:
    """Write the receipt of the last job of a record."""
    claim = ("gen_random_uuid()", "ledger_now() + interval '1 hour'" if lives else "ledger_now()")
    claim = claim if state == "in_work" else ("NULL", "NULL")
    rig.tell(
        "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, claim, expires_at, worker, attempts, "
        f"claimed_at) SELECT pipeline_id, idempotency_key, window_id, %s, {claim[0]}, {claim[1]}, 'w', 1, ledger_now() "
        "FROM claims JOIN entries ON entries.id = entry_id WHERE record_id = %s "
        "ORDER BY claims.generation DESC LIMIT 1 "
        "ON CONFLICT (pipeline_id, idempotency_key) DO UPDATE SET state = EXCLUDED.state, claim = EXCLUDED.claim, "
        "expires_at = EXCLUDED.expires_at",
        state,
        record.encode(),
    )


def receipts(rig: Rig) -> dict[str, str]:
    """Give the state of the receipt of each record's first job; none where there is none."""
    query = (
        "SELECT record_id, coalesce(receipts.state, 'none') FROM claims JOIN entries ON entries.id = entry_id "
        "LEFT JOIN receipts USING (pipeline_id, idempotency_key) WHERE claims.generation = 0"
    )
    return {bytes(record).decode(): state for record, state in rig.rows(query)}


@pytest.fixture
def done(world: World, rig: Rig) -> Rig:
    """A window that is dispatched: members 1 (r1, r2), 2 (r3) and 3 (r4); the queues are empty."""
    members = {"r1": 1, "r2": 1, "r3": 2, "r4": 3}
    world.put_many(booking(one, AT % at, member=member) for at, (one, member) in enumerate(members.items(), 1))
    assert rig.run().outcome == "completed"
    drained(world)
    return rig


def numbers(plan: Any) -> tuple[int, ...]:
    return tuple(plan[name] for name in ("jobs", "records", "already_worked", "no_longer_due"))


def test_a_whole_window(world: World, done: Rig) -> None:
    plan = done.plan()
    assert numbers(plan) == (3, 4, 0, 0)
    assert plan["entries"] == [
        {"group": json.loads(GROUP % member), "records": records, "generation": 1}
        for member, records in ((1, ["r1", "r2"]), (2, ["r3"]), (3, ["r4"]))
    ]
    shown = ("window", "reason", "by", "state")
    assert tuple(plan[name] for name in shown) == (WINDOW, "ticket 4711", "ann", "planned")
    assert sent(world) == [], "a plan sends nothing"
    applied = done.apply(plan)
    assert applied.error is None
    assert sent(world) == [(1, ["r1", "r2"]), (1, ["r3"]), (1, ["r4"])]
    document = applied.document
    assert (document["state"], document["applied_by"]) == ("applied", "bob")
    run = document["run"]
    assert (run["cause"], run["outcome"], run["evaluated"], run["due"], run["claimed"]) == (
        "redo",
        "completed",
        4,
        4,
        4,
    )
    assert (run["entries"], run["confirmed"], run["recovered"]) == (3, 3, 0)
    (window,) = document["reconcile"]["windows"]
    assert document["reconcile"]["open"] == 0
    assert Counter((one["kind"], one["cause"], one["state"]) for one in window["findings"]) == {
        ("duplicate", "redo", "acknowledged"): 3
    }
    done.assert_books_balance()
    assert receipts(done) == dict.fromkeys(("r1", "r2", "r3", "r4"), "superseded")
    again = done.apply(plan)
    assert again.document == document, "a repeat gives the same document"
    assert (again.error, again.open_findings, sent(world)) == (None, 0, [])


@pytest.mark.parametrize("flow", FLOWS)
def test_a_redo_of_a_redo(world: World, done: Rig, flow: str) -> None:
    done.defaults |= FLOWS[flow]
    for generation in (1, 2):
        plan = done.plan(groups=[GROUP % 1])
        assert plan["entries"][0]["generation"] == generation
        assert done.apply(plan).error is None
        assert sent(world) == [(generation, ["r1", "r2"])]
    plan = done.plan()
    assert [one["generation"] for one in plan["entries"]] == [3, 1, 1]
    assert done.apply(plan).error is None
    assert sent(world) == [(1, ["r3"]), (1, ["r4"]), (3, ["r1", "r2"])]
    done.assert_books_balance()
    assert done.run().counts.claimed == 0, "a dispatch sends none of it again"
    assert done.reconcile()["repaired"] == 0
    assert sent(world) == []


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"groups": [GROUP % 2]}, [["r3"]]),
        ({"groups": ["[1001, 2.0, 3001]"]}, [["r3"]]),
        ({"groups": [GROUP % 1, GROUP % 3]}, [["r1", "r2"], ["r4"]]),
        ({"records": ("r2",)}, [["r2"]]),
        ({"records": ("r4",), "groups": [GROUP % 2]}, [["r3"], ["r4"]]),
        ({"records": ("nobody",)}, []),
        ({"groups": [GROUP % 9]}, []),
    ],
)
def test_a_scope(world: World, done: Rig, wanted: dict[str, Any], expected: list[list[str]]) -> None:
    plan = done.plan(**wanted)
    assert [one["records"] for one in plan["entries"]] == expected
    assert done.apply(plan).document["state"] == "applied"
    assert [records for _, records in sent(world)] == expected


def test_what_is_no_longer_due_is_left_out(world: World, done: Rig) -> None:
    world.update("r1", RewardStatus="Rewarded")
    world.update("r3", BookingTimeUTC="2026-09-17T15:40:00Z")
    world.delete("r4")
    plan = done.plan()
    assert numbers(plan) == (1, 1, 0, 3)
    wider = done.plan(include_not_due=True)
    assert numbers(wider) == (1, 2, 0, 3), "what is booked for another time, or gone, is nothing to send"
    applied = done.apply(wider)
    assert (1, ["r1", "r2"]) in sent(world)
    run = applied.document["run"]
    assert (run["evaluated"], run["not_due"], run["due"], run["claimed"]) == (4, 2, 2, 2)
    assert receipts(done) == dict.fromkeys(("r1", "r2", "r3", "r4"), "superseded") | {"r3": "none", "r4": "none"}


def test_what_was_worked_is_left_out(world: World, done: Rig) -> None:
    receipt(done, "r1", "completed")
    receipt(done, "r3", "failed")
    plan = done.plan()
    assert numbers(plan) == (2, 2, 2, 0)
    assert done.apply(plan).error is None
    assert sent(world) == [(1, ["r3"]), (1, ["r4"])]
    assert receipts(done) == {"r1": "completed", "r2": "completed", "r3": "superseded", "r4": "superseded"}
    wider = done.plan(groups=[GROUP % 1], include_worked=True)
    assert numbers(wider) == (1, 2, 2, 0)
    applied = done.apply(wider)
    assert sent(world) == [(1, ["r1", "r2"])]
    (twice,) = (one for one in applied.document["reconcile"]["windows"][0]["findings"] if one["detail"]["receipts"])
    assert (twice["state"], twice["detail"]["receipts"]) == ("acknowledged", 1)


def test_the_job_of_a_record_that_goes_alone_is_still_worked(world: World, done: Rig) -> None:
    """r2 waits in the same job as r1, and nobody sends it again: superseding that job would lose it."""
    assert done.apply(done.plan(records=("r1",))).error is None
    assert receipts(done)["r2"] == "none"
    assert done.apply(done.plan(records=("r2",))).error is None
    assert receipts(done)["r2"] == "superseded", "now both have gone again"


def test_the_job_of_records_that_are_not_due_any_more_is_not_worked(world: World, done: Rig) -> None:
    world.update("r2", RewardStatus="Cancelled")
    assert done.apply(done.plan()).error is None
    assert sent(world) == [(1, ["r1"]), (1, ["r3"]), (1, ["r4"])]
    assert receipts(done)["r1"] == "superseded"


MOVES = {
    "cancelled": lambda world, _: world.update("r1", RewardStatus="Cancelled"),
    "changed": lambda world, _: world.update("r1", Points=7),
    "moved": lambda world, _: world.update("r1", BookingTimeUTC="2026-09-17T15:50:00Z"),
    "regrouped": lambda world, _: world.update("r1", MemberId=8),
    "gone": lambda world, _: world.delete("r1"),
    "worked": lambda _, rig: receipt(rig, "r1", "completed"),
    "failed": lambda _, rig: receipt(rig, "r1", "failed"),
    "redone": lambda _, rig: rig.apply(rig.plan(records=("r1",))),
    "missed and sent": lambda world, rig: (world.put(booking("late", AT % 30)), rig.reconcile()),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_plan_that_is_out_of_date_is_refused(world: World, done: Rig, move: str) -> None:
    plan = done.plan()
    MOVES[move](world, done)
    drained(world)
    before = done.rows("SELECT * FROM claims ORDER BY 1, 2, 3, 4")
    applied = done.apply(plan)
    assert isinstance(applied.error, GuardError)
    assert "out of date" in str(applied.error)
    assert (applied.document["state"], applied.document["run"]["outcome"]) == ("stale", "held")
    assert applied.document["reconcile"] is None
    assert (sent(world), done.rows("SELECT * FROM claims ORDER BY 1, 2, 3, 4")) == ([], before)
    assert done.value("SELECT completed_at IS NOT NULL AND lease_run_id IS NULL FROM windows")
    with pytest.raises(GuardError, match="out of date"):
        done.apply(plan)
    assert done.apply(done.plan()).error is None, "a new plan goes"


def test_a_change_outside_the_scope_does_not_matter(world: World, done: Rig) -> None:
    plan = done.plan(groups=[GROUP % 2])
    world.update("r1", RewardStatus="Cancelled")
    assert done.apply(plan).error is None
    assert sent(world) == [(1, ["r3"])]


def test_other_settings_make_a_plan_stale(world: World, done: Rig) -> None:
    plan = done.plan()
    applied = done.apply(plan, source__order_by="Id")
    assert (applied.document["state"], sent(world)) == ("stale", [])


def test_what_was_never_claimed_is_the_reconcile_s_business(world: World, done: Rig) -> None:
    world.put(booking("late", AT % 30, member=4))
    plan = done.plan()
    assert plan["records"] == 4
    applied = done.apply(plan)
    assert (0, ["late"]) in sent(world), "the closing reconcile sends it, for the first time"
    kinds = {(one["kind"], one["state"]) for one in applied.document["reconcile"]["windows"][0]["findings"]}
    assert ("missed", "repaired") in kinds


def test_a_busy_window(done: Rig) -> None:
    plan = done.plan()
    done.tell("UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour'")
    applied = done.apply(plan)
    assert isinstance(applied.error, BusyError)
    assert (applied.document["state"], applied.document["run"]["outcome"]) == ("planned", "busy")
    done.expire_leases("reward")
    assert done.apply(plan).error is None


def test_a_held_window(world: World, done: Rig) -> None:
    plan = done.plan()
    done.tell("UPDATE windows SET held_at = ledger_now(), held_reason = 'look'")
    applied = done.apply(plan)
    assert isinstance(applied.error, GuardError)
    assert (applied.document["state"], sent(world)) == ("planned", [])


def test_a_job_that_is_being_worked_is_left_to_its_worker(world: World, done: Rig) -> None:
    receipt(done, "r3", "in_work", lives=True)
    plan = done.plan()
    for _ in range(2):
        applied = done.apply(plan)
        assert isinstance(applied.error, BusyError)
        assert (applied.document["state"], sent(world)) == ("planned", [])
    receipt(done, "r3", "in_work")
    assert done.apply(plan).error is None, "its claim has run out"
    assert receipts(done)["r3"] == "superseded"


def test_two_plans_of_the_same_records(world: World, done: Rig) -> None:
    plans = [done.plan(), done.plan()]
    assert done.apply(plans[0]).error is None
    assert len(sent(world)) == 3
    assert isinstance(done.apply(plans[1]).error, GuardError)
    assert sent(world) == []


def test_a_record_of_the_hour_s_edge_in_the_plans_of_two_windows(world: World, make_rig: MakeRig) -> None:
    rig = make_rig(world)
    world.put_many([booking("r1", AT % 1, member=1), booking("edge", NEXT, member=1)])
    world.put(booking("r2", "2026-09-17T16:30:00Z", member=1))
    for window in (WINDOW, NEXT):
        assert rig.run(window=window).outcome == "completed"
    assert sent(world) == [(0, ["r1", "edge"]), (0, ["r2"])]
    first, second, named = rig.plan(), rig.plan(NEXT), rig.plan(NEXT, records=("edge",))
    assert (first["records"], second["records"], named["records"]) == (2, 1, 1), "it is the window's that has sent it"
    assert rig.apply(first).error is None
    assert rig.apply(second).error is None
    assert sent(world) == [(1, ["r1", "edge"]), (1, ["r2"])]
    rig.assert_books_balance()
    applied = rig.apply(named)
    assert (isinstance(applied.error, GuardError), applied.document["state"]) == (True, "stale")
    assert sent(world) == []
    named = rig.plan(NEXT, records=("edge",))
    assert rig.apply(named).error is None, "planned anew, it sends the edge a third time on purpose"
    assert sent(world) == [(2, ["edge"])]
    rig.assert_books_balance()


def test_a_claim_that_conflicts_makes_the_plan_stale(world: World, done: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the claims another window's redo takes a record that both may have: never fewer are sent."""
    plan = done.plan()

    def open_all(connection: Any, run: Any) -> int:
        done.tell(
            "INSERT INTO claims SELECT booking_ns, fingerprint, pipeline_id, 1, record_id, entry_id "
            "FROM claims WHERE record_id = 'r3'"
        )
        return opening(connection, run)

    opening = redo._open_all
    monkeypatch.setattr(redo, "_open_all", open_all)
    applied = done.apply(plan)
    monkeypatch.undo()
    assert isinstance(applied.error, GuardError)
    assert (applied.document["state"], sent(world)) == ("stale", [])
    assert done.value("SELECT count(*) FROM entries WHERE generation > 0") == 0
    done.tell("DELETE FROM claims WHERE generation = 1")
    done.assert_books_balance()


def test_a_window_with_unfinished_entries(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead run left has to be finished first: a plan that saw it half-way sends nothing."""
    world.put(booking("r1", AT % 1))
    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit._SEND_TRIES_MAX", 1)
        patch.setattr(SqsQueues, "send", lambda *given: [SendAnswer("failed", error="down") for _ in given[2]])
        assert rig.run().outcome == "failed"
    plan = rig.plan()
    assert plan["records"] == 1
    applied = rig.apply(plan)
    assert (applied.document["state"], sent(world)) == ("stale", []), "nothing was sent, as the error says"
    assert "not sent yet" in str(applied.error)
    assert rig.reconcile()["repaired"] == 1
    assert sent(world) == [(0, ["r1"])]
    assert rig.apply(rig.plan()).error is None
    assert sent(world) == [(1, ["r1"])]
    states = rig.rows("SELECT completed_at FROM windows")
    assert states == [(None,)], "a redo is no dispatch: the window is still owed"


def test_a_plan_is_not_applied_while_an_entry_of_it_is_unfinished(
    world: World, done: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = done.plan()
    with monkeypatch.context() as patch:
        patch.setattr(redo, "recover", lambda *_, **__: None)
        applied = done.apply(plan)
    assert (type(applied.error), applied.document["state"], sent(world)) == (CorruptError, "applying", [])
    assert done.apply(plan).error is None
    assert sent(world) == [(1, ["r1", "r2"]), (1, ["r3"]), (1, ["r4"])]


def refuse(queues: Any, queue: Any, messages: Any, before_call: Any) -> list[SendAnswer]:
    return [SendAnswer("refused", error="too long for this queue") for _ in messages]


def test_a_redo_that_the_queue_refuses_loses_nothing(world: World, done: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs before may be worked again, and a person is told until the same is sent after all."""
    receipt(done, "r3", "failed")
    plan = done.plan()
    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", refuse)
        applied = done.apply(plan)
    assert (applied.error, applied.open_findings, applied.document["run"]["confirmed"]) == (None, 3, 0)
    assert receipts(done) == {"r1": "none", "r2": "none", "r3": "failed", "r4": "none"}
    for _ in range(2):
        assert done.reconcile()["open"] == 3
        assert done.run().open_findings == 3
    assert sent(world) == []
    again = done.plan()
    assert [one["generation"] for one in again["entries"]] == [1, 1, 1]
    applied = done.apply(again)
    assert (applied.error, applied.open_findings, len(sent(world))) == (None, 0, 3)
    assert set(receipts(done).values()) == {"superseded"}
    done.assert_books_balance()


def test_of_a_redo_only_what_the_queue_refuses_is_restored(
    world: World, done: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """r2 has left the group since, and goes as a job of its own: the first job still holds r1, which went again."""
    world.update("r2", MemberId=7)
    usual = SqsQueues.send

    def refuse_seven(queues: Any, queue: Any, messages: Any, before_call: Any) -> list[SendAnswer]:
        kept = iter(usual(queues, queue, [one for one in messages if '"MemberId":7' not in one.body], before_call))
        refused = SendAnswer("refused", error="no")
        return [refused if '"MemberId":7' in one.body else next(kept) for one in messages]

    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", refuse_seven)
        applied = done.apply(done.plan(groups=[GROUP % 1]))
    found = [one["kind"] for one in applied.document["reconcile"]["windows"][0]["findings"] if one["state"] == "open"]
    assert sorted(found) == ["changed_after_dispatch", "unfinished"]
    assert sent(world) == [(1, ["r1"])]
    assert receipts(done)["r1"] == "superseded", "it must not be worked a second time; a person sends r2"


def test_a_repeat_of_a_plan_that_was_applied_asks_nobody(
    world: World, done: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = done.plan()
    world.put_many(booking(f"late{at}", AT % (10 + at)) for at in range(4))
    applied = done.apply(plan, reconcile__max_redispatch="3")
    assert isinstance(applied.error, GuardError), "its reconcile held the window"
    assert applied.document["state"] == "applied"
    again = done.apply(plan)
    assert (again.error, again.document) == (None, applied.document)


def test_cancelling(world: World, done: Rig) -> None:
    plan, other = done.plan(), done.plan()
    with done.dispatcher() as dispatcher:
        for _ in range(2):
            assert cancel_plan(dispatcher.store, "reward", UUID(plan["plan_id"])).state == "cancelled"
        with pytest.raises(GuardError, match="cancelled"):
            done.apply(plan)
        assert done.apply(other).error is None
        with pytest.raises(GuardError, match="applied already"):
            cancel_plan(dispatcher.store, "reward", UUID(other["plan_id"]))
        with pytest.raises(DispatchLedgerError, match="no plan"):
            cancel_plan(dispatcher.store, "other", UUID(other["plan_id"]))
    assert len(sent(world)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "{",
        '{"ShopId": 1}',
        "[1, 2]",
        '{"ShopId": 1, "MemberId": 1, "PromotionEngineId": 3, "x": 1}',
        "NaN",
        "[NaN,1,2]",
        '{"ShopId": 1, "ShopId": 1001, "MemberId": 1, "PromotionEngineId": 3001}',
        "[" * 9999,
    ],
)
def test_a_group_that_is_none(done: Rig, text: str) -> None:
    with pytest.raises(InputError, match="--group takes JSON"):
        done.plan(groups=[text])


def test_a_group_too_large_to_hold(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dispatch.feeders", "dispatch.emit"):
        monkeypatch.setattr(f"{name}.BATCH_RECORDS_MAX", 3)
    monkeypatch.setattr("reconcile.redo.LISTED_MAX", 5)
    ids = [f"r{at:02}" for at in range(10)]
    world.put_many(booking(one, AT % at) for at, one in enumerate(ids))
    world.put(booking("s", AT % 1, member=9))
    assert rig.run().outcome == "completed"
    drained(world)
    plan = rig.plan()
    assert (plan["jobs"], plan["records"], [one["records"] for one in plan["entries"]]) == (2, 11, [["s"], ids[:4]])
    assert rig.apply(plan).error is None
    assert sent(world) == [(1, ids), (1, ["s"])]
    rig.assert_books_balance()


def test_the_story_of_a_window_tells_of_its_plans(done: Rig) -> None:
    applied, stale = done.plan(), done.plan()
    done.apply(applied)
    done.apply(stale)
    with Store(done.url) as store:
        story = history.window_history(store, "reward", parse_window(WINDOW))
    assert [one["state"] for one in story["plans"]] == ["applied", "stale"]
    events = [one["event"] for one in story["events"] if one["event"].startswith("redo")]
    assert events == ["redo planned", "redo planned", "redo begun", "redo applied", "redo stale"]
    assert story["state"] == "dispatched", "a refused redo leaves the window as it was"


def test_a_record_that_is_due_again_after_a_redo_left_it_out(world: World, done: Rig) -> None:
    """Its job was replaced while it was cancelled, so nobody will work it: a person is told, and can send it alone."""
    world.put(booking("r2", AT % 2, member=1, RewardStatus="Cancelled"))
    assert done.apply(done.plan(groups=[GROUP % 1])).error is None
    assert sent(world) == [(1, ["r1"])]
    assert done.reconcile()["open"] == 0
    world.put(booking("r2", AT % 2, member=1))
    seen = done.reconcile()
    (finding,) = [one for one in seen["windows"][0]["findings"] if one["state"] == "open"]
    assert (finding["kind"], finding["record_id"]) == ("changed_after_dispatch", "r2")
    assert finding["detail"]["replaced"] is True
    assert sent(world) == [], "consumers that keep no receipts may have worked it before"
    assert done.reconcile()["open"] == 1
    assert done.apply(done.plan(records=("r2",))).open_findings == 0
    assert sent(world) == [(1, ["r2"])]
    assert done.reconcile()["open"] == 0
    done.assert_books_balance()
