"""What a reconcile finds, mends and leaves alone, one window at a time, against real PostgreSQL and AWS over HTTP."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from dispatch.aws.objects import ListedObject, S3Objects
from dispatch.aws.queues import SqsQueues
from dispatch.run import Cancellation
from ledger import clock, evidence, outbox, receipts, reports
from ledger.canonical import sha256
from ledger.dry_run import DryStore
from ledger.facts import SendAnswer
from ledger.instants import format_time
from ledger.leases import Tenure
from ledger.spans import parse_bounds
from ledger.store import Store
from reconcile.objects import compare_objects
from reconcile.rescan import Rescan
from tests.aws_servers import World, booking
from tests.breaking import KilledError
from tests.conftest import MakeRig
from tests.dry_kit import rehearse
from tests.fault.windows import drained
from tests.rig import WINDOW, Rig, all_records, records_of

PLACE = "reward-dispatch/reward/2026/09/17/15/"
AT = "2026-09-17T15:%02d:00Z"


@pytest.fixture(autouse=True)
def dry_runs_go_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse(monkeypatch)


def found(document: dict[str, Any], kind: str | None = None) -> list[tuple[Any, ...]]:
    """List a pass's findings as (kind, cause, state, repair), in order."""
    listed = [one for window in document["windows"] for one in window["findings"]]
    return sorted(
        (one["kind"], one["cause"] or "", one["state"], one["repair"] or "")
        for one in listed
        if kind is None or one["kind"] == kind
    )


def coverage(document: dict[str, Any]) -> tuple[int, int, int]:
    (window,) = document["windows"]
    return tuple(window["coverage"][name] for name in ("evaluated", "due", "claimed"))  # type: ignore[return-value]


def unchanged(rig: Rig) -> list[tuple[Any, ...]]:
    """Everything that a second reconcile of an unchanged window must leave alone."""
    return [
        *rig.rows(
            "SELECT kind, cause, subject, state, repair, detail, first_seen_at, closed_at FROM findings ORDER BY id"
        ),
        *rig.rows("SELECT * FROM claims ORDER BY 1, 2, 3"),
        *rig.rows("SELECT * FROM entries ORDER BY id"),
        *rig.rows("SELECT * FROM all_attempts ORDER BY entry_id, number"),
    ]


def assert_settled(rig: Rig, world: World, *windows: str, **settings: str) -> dict[str, Any]:
    """Reconcile once more: nothing is written or sent."""
    drained(world)
    before, objects = unchanged(rig), world.objects()
    document = rig.reconcile(*windows, **settings)
    assert unchanged(rig) == before
    assert drained(world) == []
    assert world.objects() == objects
    assert document["repaired"] == 0
    rig.assert_books_balance()
    return document


def dispatched(world: World, rig: Rig, *records: str, **settings: str) -> None:
    """Dispatch the window with these records, a minute apart, in one group."""
    world.put_many(booking(one, AT % (at + 1)) for at, one in enumerate(records))
    report = rig.run(**settings)
    assert report.outcome == "completed"


def test_a_clean_window(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    world.put(booking("done", AT % 30, status="Rewarded"))
    document = rig.reconcile()
    assert document["open"] == document["repaired"] == 0
    assert coverage(document) == (3, 2, 2)
    assert found(document) == []
    assert rig.rows("SELECT verified_evaluated, verified_due, verified_claimed FROM windows") == [(3, 2, 2)]
    assert_settled(rig, world)


SPELLINGS = ("15:00:00+00:00", "15:07:00.5Z", "15:07:00.12+00:00", "15:07:01Z", "15:59:59.9999999Z")


@pytest.mark.parametrize(
    ("times", "looked_up"),
    [
        (SPELLINGS, 0),
        ([f"15:0{at}:00Z" for at in range(5)], 0),
        (["15:07:00Z"] * 5, 5),  # any number of claims may lie at one time
    ],
    ids=["spellings", "one-spelling", "one-time"],
)
def test_a_clean_page_is_compared_as_a_whole(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch, times: Sequence[str], looked_up: int
) -> None:
    settings = {"source__updated_at_attribute": "UpdatedAt"}
    records = [booking(f"r{at}", f"2026-09-17T{time}", UpdatedAt="then") for at, time in enumerate(times)]
    world.put_many(records)
    assert rig.run(**settings).outcome == "completed"
    world.put_many({**one, "UpdatedAt": {"S": "now"}} for one in records)
    wanted: list[int] = []
    usual = evidence.compare_claims

    def compare_claims(store: Store, tenure: Tenure, occurrences: Any, marks: Any) -> Any:
        wanted.append(len(occurrences))
        return usual(store, tenure, occurrences, marks)

    monkeypatch.setattr(evidence, "compare_claims", compare_claims)
    document = rig.reconcile(**settings)
    assert (found(document), coverage(document)) == ([], (5, 5, 5))
    assert max(wanted) == looked_up
    world.put(booking("late", "2026-09-17T15:07:00Z"))
    assert found(rig.reconcile(**settings)) == [("missed", "unknown", "repaired", "redispatched")]


def test_an_index_that_carries_the_keys_only(ministack: str, make_rig: MakeRig) -> None:
    world = World(ministack, projection="KEYS_ONLY")
    rig = make_rig(world)
    dispatched(world, rig, "r1", "r2")
    world.put(booking("done", AT % 30, status="Rewarded"))
    document = rig.reconcile()
    assert (found(document), coverage(document)) == ([], (3, 2, 2))
    world.put(booking("r1", AT % 1, Note="changed"))
    world.put(booking("late", AT % 10))
    document = rig.reconcile()
    assert found(document) == [
        ("changed_after_dispatch", "", "open", ""),
        ("missed", "unknown", "repaired", "redispatched"),
    ]
    assert_settled(rig, world)


def test_what_counts_is_the_content_that_was_sent_last(world: World, rig: Rig) -> None:
    """A redo has sent another content; the record is back to the first one, which nobody has sent since."""
    dispatched(world, rig, "r1")
    world.put(booking("r1", AT % 1, Note="changed"))
    rig.apply(rig.plan())
    assert found(rig.reconcile(), "changed_after_dispatch") == []
    world.put(booking("r1", AT % 1))
    assert found(rig.reconcile(), "changed_after_dispatch") == [("changed_after_dispatch", "", "open", "")]


def test_case_2_a_late_record_goes_alone(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    drained(world)
    world.put(booking("r2", AT % 5))
    document = rig.reconcile()
    assert found(document) == [("missed", "unknown", "repaired", "redispatched")]
    assert coverage(document) == (2, 2, 2)
    (message,) = drained(world)
    assert records_of({"": world.objects()[message["object"]["key"]]})[""] == ["r2"]
    document = assert_settled(rig, world)
    assert found(document) == []


@pytest.mark.parametrize(
    ("changed_at", "cause"),
    [("2020-01-01T00:00:00Z", "index_lag"), ("2050-01-01T00:00:00Z", "late_insert"), ("yesterday", "unknown")],
)
def test_the_cause_follows_from_when_the_record_changed(world: World, rig: Rig, changed_at: str, cause: str) -> None:
    settings = {"source__updated_at_attribute": "UpdatedAt"}
    dispatched(world, rig, "r1", **settings)
    world.put(booking("r2", AT % 5, UpdatedAt=changed_at))
    document = rig.reconcile(**settings)
    assert found(document) == [("missed", cause, "repaired", "redispatched")]
    (detail,) = (one["detail"] for one in document["windows"][0]["findings"])
    assert detail["page"] == 1
    assert {"read_at", "run_finished_at", "booking_time"} <= set(detail)
    assert_settled(rig, world, **settings)


def test_a_record_that_was_claimed_elsewhen_has_moved_in(world: World, rig: Rig) -> None:
    """Case 11, the other way round: rebooked into a window that was done already."""
    dispatched(world, rig, "r1", "r2")
    assert rig.run(window="2026-09-17T13:00:00Z").outcome == "completed"
    world.update("r1", BookingTimeUTC="2026-09-17T13:20:00Z")
    document = rig.reconcile("2026-09-17T13:00:00Z")
    assert found(document) == [("missed", "moved_in", "repaired", "redispatched")]
    assert found(rig.reconcile()) == []


def test_case_11_no_false_alarm_where_a_record_left(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    drained(world)
    world.update("r1", BookingTimeUTC="2026-09-17T18:20:00Z")
    assert found(assert_settled(rig, world)) == []
    assert rig.run(window="2026-09-17T18:00:00Z").counts.claimed == 1
    assert_settled(rig, world, WINDOW, "2026-09-17T18:00:00Z")


def test_a_record_that_was_set_aside_and_mended(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.put(booking("bad", AT % 9, shop=None))  # type: ignore[arg-type]
    assert found(rig.reconcile()) == [("bad_record", "missing_attribute", "open", "")]
    world.put(booking("bad", AT % 9))
    document = rig.reconcile()
    assert found(document) == [("missed", "was_set_aside", "repaired", "redispatched")]
    assert rig.findings() == [
        ("bad_record", "missing_attribute", "closed"),
        ("missed", "was_set_aside", "repaired"),
    ]
    assert_settled(rig, world)


def test_missed_is_only_reported_without_repair(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    drained(world)
    world.put(booking("r2", AT % 5))
    for _ in range(2):
        document = rig.reconcile(repair=False)
        assert found(document) == [("missed", "unknown", "open", "")]
        assert (document["open"], coverage(document)) == (1, (2, 2, 1))
    assert drained(world) == []
    assert found(rig.reconcile()) == [("missed", "unknown", "repaired", "redispatched")]


def test_a_missed_record_that_is_gone_again_is_closed(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.put(booking("r2", AT % 5))
    rig.reconcile(repair=False)
    world.delete("r2")
    assert found(rig.reconcile()) == []
    assert rig.findings() == [("missed", "unknown", "closed")]


def test_a_young_change_is_late_not_missed(world: World, rig: Rig) -> None:
    settings = {"source__updated_at_attribute": "UpdatedAt", "reconcile__grace": "10m"}
    dispatched(world, rig, "r1", **settings)
    rig.tell("UPDATE runs SET finished_at = finished_at - interval '1 hour'")
    world.put(booking("r2", AT % 5, UpdatedAt=format_time(clock.utc_now())))
    document = rig.reconcile(**settings)
    assert (found(document), document["windows"][0]["late"]) == ([], 1)
    assert coverage(document) == (2, 2, 1)


# Not dispatched


def test_a_window_that_nobody_dispatched(world: World, rig: Rig) -> None:
    world.put(booking("r1", AT % 5))
    for _ in range(2):
        document = rig.reconcile()
        assert found(document) == [("window_not_dispatched", "", "open", "")]
        assert coverage(document) == (1, 1, 0)
    assert drained(world) == []
    assert rig.value("SELECT count(*) FROM findings") == 1
    assert rig.run().open_findings == 0
    assert rig.findings() == [("window_not_dispatched", None, "closed")]
    assert_settled(rig, world)


def test_a_window_that_is_not_owed_is_no_finding(world: World, rig: Rig) -> None:
    assert found(rig.reconcile(schedule__not_before="2026-09-17T16:00:00Z")) == []


# The guard


def test_more_missed_than_the_guard_allows(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    drained(world)
    world.put_many(booking(f"m{at}", AT % 30, member=at) for at in range(4))
    guarded = {"reconcile__max_redispatch": "3"}
    document = rig.reconcile(**guarded)
    (window,) = document["windows"]
    assert window["held"]
    assert found(document) == [("missed", "unknown", "open", "")] * 4
    assert drained(world) == []
    assert rig.run().outcome == "held"
    assert rig.reconcile(**guarded)["windows"][0]["held"]
    document = rig.reconcile(release_hold=True, **guarded)
    assert found(document) == [("missed", "unknown", "repaired", "redispatched")] * 4
    assert len(drained(world)) == 4
    assert_settled(rig, world, **guarded)


def test_case_24_objects_in_a_window_without_any_run(world: World, rig: Rig) -> None:
    world.put(booking("r1", AT % 5))
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}strange.json", Body=b"{}")
    document = rig.reconcile()
    assert document["windows"][0]["held"]
    assert found(document) == []
    assert rig.run().outcome == "held"
    assert drained(world) == []
    assert (
        "TagSet" not in world.s3.get_object_tagging(Bucket=world.bucket, Key=f"{PLACE}strange.json")
        or not (world.s3.get_object_tagging(Bucket=world.bucket, Key=f"{PLACE}strange.json")["TagSet"])
    )
    document = rig.reconcile(release_hold=True)
    assert found(document, "window_not_dispatched") == [("window_not_dispatched", "", "open", "")]
    assert rig.run().outcome == "completed"


# Objects


def tag_of(world: World, key: str) -> str | None:
    tags = world.s3.get_object_tagging(Bucket=world.bucket, Key=key)["TagSet"]
    return next((one["Value"] for one in tags if one["Key"] == "dispatch-ledger:orphan"), None)


def test_case_19_an_old_orphan_is_tagged_and_nothing_else(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    (good,) = world.objects()
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zzz.json", Body=b"{}", Tagging="mine=1")
    assert rig.reconcile(reconcile__orphan_grace="24h")["windows"][0]["late"] == 1
    document = rig.reconcile()
    assert found(document) == [("orphan_object", "", "repaired", "tagged")]
    (finding,) = document["windows"][0]["findings"]
    assert tag_of(world, f"{PLACE}zzz.json") == str(finding["id"])
    assert len(world.s3.get_object_tagging(Bucket=world.bucket, Key=f"{PLACE}zzz.json")["TagSet"]) == 2
    assert tag_of(world, good) is None
    assert found(assert_settled(rig, world)) == []
    document = rig.reconcile(delete_orphans=True)
    assert found(document) == [("orphan_object", "", "repaired", "removed")]
    assert list(world.objects()) == [good]
    assert_settled(rig, world)


def test_an_orphan_that_an_entry_refers_to_by_now_is_left_alone(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing and the last look before it would be removed."""
    dispatched(world, rig, "r1")
    (good,) = world.objects()
    rig.tell("CREATE TABLE put_aside AS SELECT * FROM entries")
    rig.tell("DELETE FROM entries")
    usual = S3Objects.find

    def find(objects: S3Objects, bucket: str, key: str) -> ListedObject | None:
        rig.tell("INSERT INTO entries SELECT * FROM put_aside ON CONFLICT DO NOTHING")
        return usual(objects, bucket, key)

    monkeypatch.setattr(S3Objects, "find", find)
    document = rig.reconcile(cancellation=Cancellation(), delete_orphans=True)
    assert found(document, "orphan_object") == [("orphan_object", "", "open", "")]
    assert (list(world.objects()), tag_of(world, good)) == ([good], None)


def test_an_orphan_that_comes_back_is_tagged_again(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zzz.json", Body=b"{}")
    rig.reconcile(delete_orphans=True)
    rig.tell("UPDATE findings SET last_seen_at = last_seen_at - interval '1 hour'")
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zzz.json", Body=b"{}")
    assert found(rig.reconcile()) == [("orphan_object", "", "repaired", "tagged")]


def test_an_orphan_that_holds_promised_records_is_a_possible_duplicate(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    (good,) = world.objects()
    document = json.loads(world.objects()[good]) | {"idempotency_key": sha256(b"another").hex()}
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}old.json", Body=json.dumps(document, separators=(",", ":")))
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}copy.json", Body=world.objects()[good])
    assert found(rig.reconcile()) == [
        ("duplicate", "outside_ledger", "open", ""),
        *[("orphan_object", "", "repaired", "tagged")] * 2,
    ]
    assert found(assert_settled(rig, world)) == [("duplicate", "outside_ledger", "open", "")]


@pytest.mark.parametrize("harm", ["gone", "altered"])
def test_a_lost_object_is_rebuilt(world: World, rig: Rig, harm: str) -> None:
    dispatched(world, rig, "r1", "r2", "r3")
    before = world.objects()
    (key,) = before
    if harm == "gone":
        world.s3.delete_object(Bucket=world.bucket, Key=key)
    else:
        world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"{}")
    world.update("r2", RewardStatus="Rewarded")
    assert found(rig.reconcile(repair=False)) == [("missing_object", "", "open", "")]
    assert found(rig.reconcile()) == [("missing_object", "", "repaired", "rebuilt")]
    assert world.objects() == before
    assert_settled(rig, world)


def test_an_object_that_cannot_be_rebuilt_stays_a_finding(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    (key,) = world.objects()
    world.s3.delete_object(Bucket=world.bucket, Key=key)
    world.delete("r2")
    for _ in range(2):
        assert found(rig.reconcile()) == [("missing_object", "", "open", "")]
    assert world.objects() == {}


# What changed since


def test_a_record_that_changed_after_it_was_sent(world: World, rig: Rig) -> None:
    settings = {"source__updated_at_attribute": "UpdatedAt"}
    dispatched(world, rig, "r1", "r2", **settings)
    world.update("r1", UpdatedAt="2026-09-17T15:30:00Z")
    assert found(rig.reconcile(**settings)) == []
    world.update("r2", Amount=5)
    for _ in range(2):
        assert found(rig.reconcile(**settings)) == [("changed_after_dispatch", "", "open", "")]
    world.update("r2", Amount=None)
    assert found(rig.reconcile(**settings)) == []
    assert rig.findings() == [("changed_after_dispatch", None, "closed")]


def test_another_change_time_attribute_is_no_change(world: World, rig: Rig) -> None:
    world.put_many([booking("r1", AT % 1, UpdatedAt="2026-09-17T10:00:00Z"), booking("r2", AT % 2, UpdatedAt="x")])
    rig.run()
    settings = {"source__updated_at_attribute": "UpdatedAt"}
    world.update("r1", UpdatedAt="2026-09-17T15:30:00Z")
    assert found(rig.reconcile(**settings)) == []
    world.update("r2", Amount=5)
    assert found(rig.reconcile(**settings)) == [("changed_after_dispatch", "", "open", "")]


def test_a_record_made_unusable_after_it_was_sent(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    world.update("r2", ShopId=None)
    for _ in range(2):
        assert found(rig.reconcile()) == [("changed_after_dispatch", "", "open", "")]


# Receipts


def work(rig: Rig, ends: str = "completed", generation: int = 0) -> None:
    """Do what a consumer does with the jobs of a generation."""
    query = "SELECT idempotency_key FROM entries WHERE generation = %s AND void_reason IS NULL"
    with Store(rig.url) as store:
        for (key,) in rig.rows(query, generation):
            taken = receipts.take(store, "reward", key, "w", timedelta(minutes=1))
            assert isinstance(taken, receipts.GoAhead), taken
            if ends == "completed":
                receipts.complete(store, taken.claim, None)
            elif ends == "failed":
                receipts.fail(store, taken.claim, "it broke")


def supersede(rig: Rig) -> None:
    """Do what a redo does with the jobs that it replaces, as far as they were not worked."""
    rig.tell(
        "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, attempts, finished_at) "
        "SELECT pipeline_id, idempotency_key, window_id, 'superseded', 0, ledger_now() "
        "FROM entries JOIN windows ON windows.id = window_id WHERE generation = 0 "
        "ON CONFLICT (pipeline_id, idempotency_key) DO UPDATE SET state = 'superseded', expires_at = NULL "
        "WHERE receipts.state <> 'completed'"
    )


def send_again(rig: Rig) -> None:
    """Do what a redo does with the jobs themselves: the same records once more, as generation 1."""
    rig.tell(
        "INSERT INTO entries SELECT gen_random_uuid(), run_id, window_id, opened_at, destination_id, records_n, 1, "
        "group_digest, content_hash, sha256(idempotency_key), group_json, NULL FROM entries"
    )
    rig.tell(
        "INSERT INTO claims SELECT booking_ns, fingerprint, pipeline_id, 1, record_id, again.id FROM claims "
        "JOIN entries AS first ON first.id = entry_id "
        "JOIN entries AS again ON again.idempotency_key = sha256(first.idempotency_key)"
    )
    rig.tell(
        "INSERT INTO attempts SELECT again.id, marked_at, answered_at, object_bytes, fence, number, outcome, "
        "object_etag, message_id, error FROM attempts JOIN entries AS first ON first.id = entry_id "
        "JOIN entries AS again ON again.idempotency_key = sha256(first.idempotency_key)"
    )


def test_case_3_worked_but_still_waiting(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    drained(world)
    work(rig)
    for _ in range(3):
        assert rig.run().counts.claimed == 0
        assert found(rig.reconcile()) == [("stale_source_status", "", "open", "")]
    assert rig.value("SELECT count(*) FROM findings") == 1
    assert drained(world) == []
    world.update("r1", RewardStatus="Rewarded")
    assert found(rig.reconcile()) == []


@pytest.mark.parametrize(("ends", "attempts"), [("none", 0), ("in_work", 1), ("failed", 1)])
def test_receipts_that_are_overdue(world: World, rig: Rig, ends: str, attempts: int) -> None:
    dispatched(world, rig, "r1")
    if attempts:
        work(rig, ends)
    assert found(rig.reconcile()) == []
    late = {"reconcile__receipt_within": "0s"}
    assert found(rig.reconcile(reconcile__receipt_within="1h")) == []
    document = rig.reconcile(**late)
    assert found(document) == [("overdue_receipt", "", "open", "")]
    detail = document["windows"][0]["findings"][0]["detail"]
    assert (detail["in_dead_letter_queue"], detail["receipt"], detail["attempts"]) == (False, ends, attempts)
    rig.tell("UPDATE receipts SET expires_at = ledger_now() WHERE state = 'in_work'")
    work(rig)
    assert found(rig.reconcile(**late), "overdue_receipt") == []


@pytest.mark.parametrize("taken", [True, False], ids=["begun", "never begun"])
def test_a_replaced_job_is_never_overdue_and_proves_nothing(world: World, rig: Rig, *, taken: bool) -> None:
    dispatched(world, rig, "r1")
    if taken:
        work(rig, "failed")
    supersede(rig)
    document = rig.reconcile(reconcile__receipt_within="0s")
    assert found(document) == [("changed_after_dispatch", "", "open", "")], "but it still waits, and has no other job"
    assert document["windows"][0]["findings"][0]["detail"]["replaced"] is True


@pytest.mark.parametrize(
    ("first", "again", "verdict", "worked"),
    [("completed", "completed", "worked_twice", 2), ("completed", "failed", "sent_twice", 1)],
)
def test_a_redo_says_how_often_it_was_worked(
    world: World, rig: Rig, first: str, again: str, verdict: str, worked: int
) -> None:
    dispatched(world, rig, "r1", "r2")
    work(rig, first)
    supersede(rig)
    send_again(rig)
    work(rig, again, generation=1)
    rig.reconcile()
    assert ("duplicate", "redo", "acknowledged") in rig.findings()
    detail = rig.finding_detail("duplicate")
    assert (detail["verdict"], detail["receipts"], detail["generation"]) == (verdict, worked, 1)
    still_due = rig.value("SELECT count(*) FROM findings WHERE kind = 'stale_source_status' AND state = 'open'")
    assert still_due == (2 if again == "completed" else 0), "the latest job counts"


def test_records_are_all_there(world: World, rig: Rig) -> None:
    """The window crosses midnight, with odd spellings, and is read in small pages."""
    world.put_many(
        booking(f"m{at}", time)
        for at, time in enumerate(("2026-09-17T23:59:59.9999999Z", "2026-09-18T00:00:00Z", "2026-09-17T23:00:00.0Z"))
    )
    window = "2026-09-17T23:00:00Z"
    rig.run(window=window, dispatch__page_size="1")
    world.put(booking("late", "2026-09-18T00:00:00.0000000+00:00"))
    document = rig.reconcile(window, dispatch__page_size="1")
    assert found(document) == [("missed", "unknown", "repaired", "redispatched")]
    assert all_records(world.objects()) == ["late", "m0", "m1", "m2"]
    assert_settled(rig, world, window, dispatch__page_size="1")


# A lost ledger


def test_case_24_a_lost_ledger_adopts_its_objects(world: World, rig: Rig) -> None:
    world.put_many(booking(f"r{at}", AT % at, member=at % 3) for at in range(1, 8))
    world.put(booking("next", "2026-09-17T16:30:00Z"))
    assert rig.run().counts.entries == 3
    assert rig.run(window="2026-09-17T16:00:00Z").counts.entries == 1
    sent = drained(world)
    objects = world.objects()
    rig.tell("TRUNCATE pipelines CASCADE")
    rig.tell("TRUNCATE claims, entries, attempts, open_attempts, payload_parts")
    for window in (WINDOW, "2026-09-17T16:00:00Z"):
        assert rig.run(window=window).outcome == "held"
        assert rig.reconcile(window)["windows"][0]["held"]
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}strange.json", Body=b"{}")
    for known in (0, 4):
        document = rig.adopt()
        assert document["entries"] == 4 - known
        assert sum(one["known"] for one in document["windows"]) == known
        assert [one["object_key"] for window in document["windows"] for one in window["refused"]] == [
            f"{PLACE}strange.json"
        ]
    assert drained(world) == []
    assert rig.entry_states() == {"sending": 4}
    assert rig.run().outcome == "held"
    document = rig.reconcile(release_hold=True)
    assert found(document, "unfinished") == [("unfinished", "send_unknown", "repaired", "completed")] * 3
    assert found(document, "duplicate") == [("duplicate", "resent", "open", "")] * 3
    again = {one["idempotency_key"] for one in drained(world)}
    assert again == {one["idempotency_key"] for one in sent if one["window"]["start"] == WINDOW}
    assert rig.run().counts.claimed == 0
    assert drained(world) == []
    assert {key: body for key, body in world.objects().items() if "strange" not in key} == objects
    rig.assert_books_balance()


def test_objects_that_prove_nothing_are_not_adopted(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    ((key, body),) = world.objects().items()
    rig.tell("TRUNCATE pipelines CASCADE")
    rig.tell("TRUNCATE claims, entries, attempts, open_attempts, payload_parts")
    document = json.loads(body)
    forged = {
        "hash": document | {"records": document["records"][:1]},
        "pipeline": document | {"pipeline": "other"},
        "job": document | {"job": "Unknown"},
        "group": document | {"group": {**document["group"], "MemberId": 7}},
        "format": document | {"format": 2},
        "no json": None,
    }
    for what, wrong in forged.items():
        text = b"}{" if wrong is None else json.dumps(wrong, separators=(",", ":"), sort_keys=True).encode()
        world.s3.put_object(Bucket=world.bucket, Key=key, Body=text)
        adopted = rig.adopt()
        assert (adopted["entries"], len(adopted["windows"][0]["refused"])) == (0, 1), what
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=body)
    assert rig.adopt()["entries"] == 1


# Left half-way


def test_case_7_young_or_living_work_is_late_not_stuck(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    rig.tell("UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour'")
    document = rig.reconcile(reconcile__grace="4m")
    assert document["windows"][0]["left_alone"] == "a run is working on it"
    rig.tell("UPDATE windows SET lease_run_id = NULL, lease_until = NULL")
    document = rig.reconcile(reconcile__grace="4m")
    assert "last run" in document["windows"][0]["left_alone"]
    rig.tell("UPDATE runs SET finished_at = finished_at - interval '6 minutes'")
    assert rig.reconcile(reconcile__grace="4m")["windows"][0]["left_alone"] is None


def test_case_7_a_young_entry_of_an_old_window_is_late_not_stuck(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(booking("r1", AT % 1))
    with monkeypatch.context() as patch:
        patch.setattr("dispatch.emit._SEND_TRIES_MAX", 1)
        patch.setattr(SqsQueues, "send", lambda *given: [SendAnswer("failed", error="down") for _ in given[2]])
        assert rig.run().outcome == "failed"
    rig.tell("UPDATE runs SET finished_at = finished_at - interval '6 minutes'")
    for age in ("UPDATE entries SET opened_at", "UPDATE attempts SET marked_at"):
        document = rig.reconcile(reconcile__grace="4m")
        assert document["windows"][0]["left_alone"] is None
        assert (found(document, "unfinished"), rig.entry_states()) == ([], {"sending": 1})
        rig.tell(f"{age} = ledger_now() - interval '6 minutes'")
    document = rig.reconcile(reconcile__grace="4m")
    assert found(document, "unfinished") == [("unfinished", "not_sent", "repaired", "completed")]
    assert len(drained(world)) == 1


def test_a_held_window_is_left_to_a_person(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zzz.json", Body=b"{}")
    world.put(booking("r2", AT % 5))
    rig.tell("UPDATE windows SET held_at = ledger_now(), held_reason = 'somebody has to look'")
    document = rig.reconcile()
    assert (document["windows"][0]["held"], found(document)) == (True, [])
    assert (tag_of(world, f"{PLACE}zzz.json"), len(drained(world))) == (None, 1)
    assert found(rig.reconcile(release_hold=True)) == [
        ("missed", "unknown", "repaired", "redispatched"),
        ("orphan_object", "", "repaired", "tagged"),
    ]


def test_case_7_what_a_run_left_is_finished_once_its_lease_is_over(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(booking("r1", AT % 1))

    def dies(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(S3Objects, "put_many", dies)
        patch.setattr("ledger.runs.end_run", lambda *_: None)
        with pytest.raises(KilledError):
            rig.run()
    (window,) = rig.reconcile()["windows"]
    assert (window["left_alone"], window["findings"]) == ("a run is working on it", [])
    assert drained(world) == []
    rig.expire_leases("reward")
    assert found(rig.reconcile()) == [
        ("unfinished", "not_sent", "repaired", "completed"),
        ("window_not_dispatched", "", "open", ""),
    ]
    assert [one["records"] for one in drained(world)] == [1]
    assert_settled(rig, world)


def test_case_24_missed_records_whose_objects_are_there_were_promised_before(world: World, rig: Rig) -> None:
    """A ledger restored from a backup: the window is completed, but the last claims and entries are gone."""
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 5))
    rig.run()
    sent = drained(world)
    lost = "(SELECT id FROM entries ORDER BY id DESC LIMIT 2)"
    rig.tell(f"CREATE TABLE lost AS {lost[1:-1]}")
    for table, column in (("claims", "entry_id"), ("attempts", "entry_id"), ("entries", "id")):
        rig.tell(f"DELETE FROM {table} WHERE {column} IN (SELECT id FROM lost)")
    for _ in range(2):
        document = rig.reconcile()
        assert document["windows"][0]["held"]
        assert found(document) == [("missed", "unknown", "open", "")] * 2
    assert drained(world) == []
    assert all(tag_of(world, key) is None for key in world.objects())
    assert rig.run().outcome == "held"
    assert rig.adopt()["entries"] == 2
    document = rig.reconcile(release_hold=True)
    assert found(document, "unfinished") == [("unfinished", "send_unknown", "repaired", "completed")] * 2
    again = {one["idempotency_key"] for one in drained(world)}
    assert again < {one["idempotency_key"] for one in sent}
    assert found(rig.reconcile(), "missed") == []
    rig.assert_books_balance()


ODD = ("sp ace", "p%20ct", "plus+", "ü", "double//slash", "dot/./x", "dd/../x", "a#b?c&d=e", "tab\t", "<x>&amp;", "😀")


@pytest.mark.parametrize("server", ["ministack", "moto"])
def test_odd_keys_are_orphans_like_others(request: pytest.FixtureRequest, make_rig: MakeRig, server: str) -> None:
    world = World(request.getfixturevalue(server))
    rig = make_rig(world)
    dispatched(world, rig, "r1", "r2")
    for odd in (*ODD, "full/"):
        world.s3.put_object(Bucket=world.bucket, Key=PLACE + odd, Body=b"{}")
    world.s3.put_object(Bucket=world.bucket, Key=PLACE)
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}folder/")
    document = rig.reconcile()
    assert found(document) == [("orphan_object", "", "repaired", "tagged")] * (len(ODD) + 1)
    assert all(tag_of(world, PLACE + odd) for odd in ODD)
    assert_settled(rig, world)
    assert rig.reconcile(delete_orphans=True)["repaired"] == len(ODD) + 1
    assert len(world.objects()) == 3


def test_a_folder_is_no_object_that_holds_a_window(world: World, rig: Rig) -> None:
    world.s3.put_object(Bucket=world.bucket, Key=PLACE)
    assert rig.run().outcome == "completed"


def test_more_objects_than_a_page_lists(world: World, rig: Rig) -> None:
    world.put_many(booking(f"r{at}", AT % (at % 60), member=at) for at in range(1100))
    assert rig.run().counts.entries == 1100
    gone = sorted(world.s3.list_objects_v2(Bucket=world.bucket)["Contents"], key=lambda one: one["Key"])[7]["Key"]
    world.s3.delete_object(Bucket=world.bucket, Key=gone)
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zz", Body=b"{}")
    assert found(rig.reconcile()) == [
        ("missing_object", "", "repaired", "rebuilt"),
        ("orphan_object", "", "repaired", "tagged"),
    ]
    assert found(rig.reconcile()) == []


def test_what_a_queue_refuses_is_tried_once_and_not_by_every_reconcile(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims of a refused entry are free, so its records look missed; but that is a finding already."""
    usual, tried = SqsQueues.send, []

    def send(queues: SqsQueues, queue: Any, messages: Any, before_call: Any) -> list[SendAnswer]:
        refused = [one for one in messages if '"MemberId":2,' in one.body]
        tried.extend(refused)
        answers = iter(usual(queues, queue, [one for one in messages if one not in refused], before_call))
        return [SendAnswer("refused", error="no") if one in refused else next(answers) for one in messages]

    monkeypatch.setattr(SqsQueues, "send", send)
    world.put_many([booking("good", AT % 1), booking("bad", AT % 2, member=2)])
    assert rig.run().open_findings == 1
    assert len(tried) == 1
    for _ in range(2):
        document = assert_settled(rig, world)
        assert found(document) == [("unfinished", "refused", "open", "")]
        assert coverage(document) == (2, 2, 1)
    assert len(tried) == 1
    world.update("bad", Amount=7)
    assert ("unfinished", "refused", "open", "") in found(rig.reconcile())
    assert len(tried) == 2
    monkeypatch.setattr(SqsQueues, "send", usual)
    world.update("bad", Amount=8)
    assert found(rig.reconcile()) == [("missed", "unknown", "repaired", "redispatched")]
    assert found(assert_settled(rig, world)) == []


def test_a_document_that_holds_no_records_breaks_nothing(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    bodies = (
        b'{"records":[5]}',
        b"[]",
        b"5",
        b'{"records":[{}]}',
        b'{"records":[{"Id":{}}]}',
        b"\xff",
        b'{"records":["',
    )
    for at, body in enumerate(bodies):
        world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}odd-{at}", Body=body)
    world.put(booking("late", AT % 5))
    document = rig.reconcile()
    assert found(document, "orphan_object") == [("orphan_object", "", "repaired", "tagged")] * len(bodies)
    assert found(document, "missed") == [("missed", "unknown", "repaired", "redispatched")]
    rig.adopt()


def test_a_long_listing_can_be_cancelled(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(5))
    rig.run()
    cancellation = Cancellation()
    usual = evidence.places_of

    def places_of(store: Store, tenure: Tenure) -> set[tuple[str, str]]:
        if not isinstance(store, DryStore):  # the dry run that goes before is not meant
            cancellation.ask(15)
        return usual(store, tenure)

    ended: list[Any] = []
    monkeypatch.setattr(evidence, "places_of", places_of)
    monkeypatch.setattr("reconcile.objects._handle_lacking", lambda *given: ended.append(given))
    (window,) = rig.reconcile(cancellation=cancellation)["windows"]
    assert "cancelled by signal 15" in window["error"]
    assert not ended, "it does not wait for the end of the listing"


def test_a_range_with_far_more_claims_than_records(world: World, rig: Rig) -> None:
    """Most records are gone, as with a time to live; their claims lie between those that are left."""
    world.put_many(booking(f"r{at:04}", AT % (at % 60), member=at % 7) for at in range(2500))
    rig.run()
    for at in range(2500):
        if at % 500:
            world.delete(f"r{at:04}")
    world.put(booking("late", AT % 33))
    document = rig.reconcile()
    assert found(document) == [("missed", "unknown", "repaired", "redispatched")]
    assert coverage(document) == (6, 6, 6)


def test_a_finding_that_a_person_has_acknowledged_is_still_repaired(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.put(booking("r2", AT % 5))
    rig.reconcile(repair=False)
    rig.tell("UPDATE findings SET state = 'acknowledged', acknowledged_by = 'me', acknowledged_reason = 'seen'")
    assert found(rig.reconcile()) == [("missed", "unknown", "repaired", "redispatched")]


def test_what_a_person_has_acknowledged_stays_so_however_often_it_is_seen(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    world.update("r1", Amount=5)
    assert found(rig.reconcile()) == [("changed_after_dispatch", "", "open", "")]
    rig.tell("UPDATE findings SET state = 'acknowledged', acknowledged_by = 'me', acknowledged_reason = 'seen'")
    for _ in range(2):
        assert found(rig.reconcile()) == [("changed_after_dispatch", "", "acknowledged", "")]


def test_a_duplicate_that_turns_out_prevented_is_acknowledged(world: World, rig: Rig) -> None:
    """An open finding, and a later look that knows better: who acknowledged it is written down as well."""
    dispatched(world, rig, "r1")
    rig.tell(
        "INSERT INTO findings (pipeline_id, window_id, kind, subject, state, detail, first_seen_at, last_seen_at) "
        "SELECT pipeline_id, windows.id, 'duplicate', idempotency_key, 'open', '{}', ledger_now(), ledger_now() "
        "FROM entries JOIN windows ON windows.id = window_id"
    )
    rig.tell(
        "INSERT INTO attempts (entry_id, number, fence, marked_at, answered_at, outcome, object_bytes, object_etag, "
        "message_id) SELECT entry_id, 2, fence, marked_at, answered_at, outcome, object_bytes, object_etag, 'again' "
        "FROM attempts"
    )
    rig.tell("UPDATE destinations SET queue = queue || '.fifo'")
    assert found(rig.reconcile()) == [("duplicate", "resent", "acknowledged", "")]


def test_a_refused_record_is_tried_again_after_a_while(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to remember it: when the queue has been mended, it is sent."""
    with monkeypatch.context() as patch:
        patch.setattr(SqsQueues, "send", lambda *given: [SendAnswer("refused", error="no")] * len(given[2]))
        dispatched(world, rig, "r1")
    assert found(rig.reconcile()) == [("unfinished", "refused", "open", "")]
    rig.tell("UPDATE attempts SET answered_at = answered_at - interval '61 minutes'")
    document = rig.reconcile()
    assert found(document, "missed") == [("missed", "unknown", "repaired", "redispatched")]
    assert len(drained(world)) == 1
    assert found(assert_settled(rig, world)) == []


def test_an_object_that_is_nested_too_deeply_sinks_no_window(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    ((good, body),) = world.objects().items()
    names = [f"{'f' * 32}/{'b' * 64}-0.json", "deep", "deeper"]
    bodies = [b"[" * 100_000, b'{"records":[' + b"[" * 1200 + b"]" * 1200 + b"]}", b'{"a":' * 5000 + b"1" + b"}" * 5000]
    for name, raw in zip(names, bodies, strict=True):
        world.s3.put_object(Bucket=world.bucket, Key=PLACE + name, Body=raw)
    world.put(booking("late", AT % 5))
    document = rig.reconcile()
    assert found(document, "orphan_object") == [("orphan_object", "", "repaired", "tagged")] * 3
    assert found(document, "missed") == [("missed", "unknown", "repaired", "redispatched")]
    assert world.objects()[good] == body
    assert len(rig.adopt()["windows"][0]["refused"]) == 3


def test_one_window_that_fails_unexpectedly_does_not_sink_the_others(
    world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatched(world, rig, "r1")
    rig.run(window="2026-09-17T16:00:00Z")
    world.put(booking("late", "2026-09-17T16:05:00Z"))

    def fail(rescan: Rescan) -> None:
        if rescan.run.tenure.window.name == WINDOW:
            raise ZeroDivisionError("surprise")
        compare_objects(rescan)

    monkeypatch.setattr("reconcile.reconciler.compare_objects", fail)
    document = rig.reconcile(WINDOW, "2026-09-17T16:00:00Z")
    assert "unexpected ZeroDivisionError" in document["windows"][0]["error"]
    assert document["repaired"] == 1
    assert rig.value("SELECT count(*) FROM windows WHERE lease_until IS NOT NULL") == 0


def test_an_object_without_room_for_a_tag_stays_a_finding(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1")
    full = "&".join(f"t{at}=1" for at in range(10))
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}full", Body=b"{}", Tagging=full)
    world.s3.put_object(Bucket=world.bucket, Key=f"{PLACE}zz", Body=b"{}")
    for repaired in (1, 0):
        document = rig.reconcile()
        assert ("orphan_object", "", "open", "") in found(document)
        assert document["repaired"] == repaired
    assert rig.value("SELECT verified_at IS NOT NULL FROM windows")


def test_an_orphan_whose_records_are_promised_after_it_was_tagged(world: World, rig: Rig) -> None:
    """A person releases a window whose objects nobody has adopted; what may be paid twice is said."""
    world.put(booking("r1", AT % 1))
    rig.run()
    rig.tell("TRUNCATE pipelines CASCADE")
    rig.tell("TRUNCATE claims, entries, attempts, open_attempts, payload_parts")
    world.forget_witnesses()  # the objects are those of a version that wrote none, or of another dispatcher
    world.put(booking("r2", AT % 2))
    assert rig.run().outcome == "held"
    document = rig.reconcile(release_hold=True)
    assert found(document, "orphan_object") == [("orphan_object", "", "repaired", "tagged")]
    assert rig.run().counts.claimed == 2
    for _ in range(2):
        assert found(rig.reconcile()) == [("duplicate", "outside_ledger", "open", "")]


def test_a_half_adopted_window_is_not_released(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put_many(booking(f"h{at}", AT % (at + 1), member=at) for at in range(3))
    rig.run()
    drained(world)
    objects = world.objects()
    rig.tell("TRUNCATE pipelines CASCADE")
    rig.tell("TRUNCATE claims, entries, attempts, open_attempts, payload_parts")
    usual, adopted = outbox.adopt, []

    def adopt_and_die(*given: Any) -> bool:
        done = usual(*given)
        adopted.append(done)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("ledger.outbox.adopt", adopt_and_die)
        patch.setattr("ledger.runs.end_run", lambda *_: None)
        with pytest.raises(KilledError):
            rig.adopt()
    assert adopted == [True]
    busy = rig.adopt()
    assert "is being worked on" in busy["error"]
    rig.expire_leases("reward")
    document = rig.reconcile(release_hold=True)
    assert document["windows"][0]["held"]
    assert "recover --from-objects" in document["windows"][0]["error"]
    assert rig.run().outcome == "held"
    assert rig.adopt()["entries"] == 2
    rig.reconcile(release_hold=True)
    assert rig.run().counts.claimed == 0
    assert len({one["idempotency_key"] for one in drained(world)}) == 3
    assert world.objects() == objects
    assert [tag_of(world, key) for key in objects] == [None] * 3


def test_a_changed_record_on_the_hour_is_its_own_windows_business(world: World, rig: Rig) -> None:
    world.put(booking("edge", "2026-09-17T16:00:00Z"))
    rig.run()
    rig.run(window="2026-09-17T16:00:00Z")
    world.update("edge", Amount=5)
    assert found(rig.reconcile("2026-09-17T16:00:00Z")) == []
    assert found(rig.reconcile()) == [("changed_after_dispatch", "", "open", "")]
    world.update("edge", Amount=None)
    assert found(rig.reconcile()) == []
    assert rig.findings() == [("changed_after_dispatch", None, "closed")]


def test_what_a_second_run_did_not_send_again_counts_as_prevented(world: World, rig: Rig) -> None:
    dispatched(world, rig, "r1", "r2")
    rig.run()
    rig.reconcile()
    with Store(rig.url) as store:
        bounds = parse_bounds("2026-09-17T00:00:00Z", "2026-09-18T00:00:00Z")
        report = reports.report_findings(store, "reward", bounds, reports.Wanted(reports.REPORTED_KINDS["duplicates"]))
    assert (report.findings, report.prevented) == ([], 2)
