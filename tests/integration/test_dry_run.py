"""What `--dry-run` says is what the command then does, and nobody can tell afterwards that it ran.

`rehearse` lets a dry run go before each run and reconcile here, and compares; `test_reconcile.py` does the same.
"""

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

from dispatch import feeders
from dispatch.dry_run import DryQueues
from dispatch.run import Cancellation
from ledger import dry_run, evidence
from ledger.canonical import sha256
from ledger.dry_run import FIRST_NEW_ID, DryStore
from ledger.errors import UnavailableError
from ledger.instants import parse_window
from tests.aws_servers import Item, World, booking
from tests.breaking import Death, KilledError
from tests.dry_kit import everything, rehearse, run_of, untouched
from tests.fault.windows import drained, fill, hours_ago
from tests.rig import FLOWS, WINDOW, Rig
from tests.wire import FaultProxy, Rule, callback, on, rewrite_json

AT = "2026-09-17T15:%02d:00Z"
NEXT = "2026-09-17T16:00:00Z"
SMALL = {"dispatch__page_size": "3"}
READS = {
    "DynamoDB_20120810.Query",
    "DynamoDB_20120810.BatchGetItem",
    "DynamoDB_20120810.DescribeTable",
    "AmazonSQS.GetQueueUrl",
    "AmazonSQS.GetQueueAttributes",
    "HEAD bucket",
    "HEAD object",
    "GET object",
    "GET witness",
    "GET object?tagging",
    "GET bucket?list-type",
}


@pytest.fixture(autouse=True)
def dry_runs_go_before(monkeypatch: pytest.MonkeyPatch) -> None:
    rehearse(monkeypatch)


def mixed() -> list[Item]:
    """Make a window with all that a dispatch can meet, scattered over the pages."""
    return [
        booking("a1", AT % 1, member=1),
        booking("a2", AT % 8, member=1),
        booking("b1", AT % 2, member=2, type="ECoupon"),
        booking("b2", AT % 9, member=2, type="ECoupon"),
        booking("c1", AT % 3, member=3),
        booking("paid", AT % 4, member=1, status="Rewarded"),
        booking("bad", AT % 5, shop=None),  # type: ignore[arg-type]
        booking("lost", AT % 6, member=1, type="Unknown"),
        booking("edge", NEXT, member=1),
        booking("outside", "2026-09-17T16:00:00.5Z", member=1),
        booking("moved", "2026-09-17T18:00:00Z", member=1),
        booking("shifted", AT % 50, member=3),
        booking("gone", AT % 30, member=4, status="Rewarded"),
    ]


def lagging(answer: dict[str, Any]) -> dict[str, Any]:
    """Let the index show, beside what is true, what was true a moment ago."""
    if answer["Items"] and answer["Items"][0]["Id"]["S"] == "a1":
        before = [booking("moved", AT % 0, member=1), booking("shifted", AT % 0, member=3), booking("gone", AT % 0)]
        answer["Items"] += [*before, booking("deleted", AT % 0, member=1)]
    return answer


@pytest.mark.parametrize("verify_due", ["true", "false"])
@pytest.mark.parametrize("flow", FLOWS)
def test_a_dispatch_does_what_its_dry_run_says(world: World, rig: Rig, flow: str, verify_due: str) -> None:
    world.put_many(mixed())
    settings = SMALL | {"dispatch__verify_due": verify_due}
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("Query"), rewrite_json(lagging)))
        first = rig.run(flow, endpoint=wire.url, **settings).counts
    assert first.claimed == (7 if verify_due == "true" else 11)
    assert (first.set_aside, first.outside, first.pages > 3) == (2, 1, True)
    world.put_many([booking("late", AT % 7, member=1), booking("bad", AT % 5, member=1)])
    second = rig.run(flow, **settings)
    assert (second.counts.claimed, second.counts.already_claimed > 5, second.open_findings) == (2, True, 1)
    assert rig.run(flow, window=NEXT, **settings).counts.already_claimed == 1
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ["full", "staged"])
def test_a_group_that_is_too_large_to_hold(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch, flow: str) -> None:
    monkeypatch.setattr(feeders, "BATCH_RECORDS_MAX", 2)
    world.put_many([booking(f"r{at}", AT % at, member=at // 8) for at in range(1, 12)])
    world.put(booking("bad", AT % 40, shop=None))  # type: ignore[arg-type]
    counts = rig.run(flow, **SMALL).counts
    assert (counts.claimed, counts.entries, counts.set_aside) == (11, 2, 1)


def broken_off(rig: Rig, work: str, flow: str = "staged") -> None:
    """Kill a run right after a transaction; its lease runs out."""
    whole, pipeline = Death(), "to-count"
    with pytest.MonkeyPatch.context() as patch, rig.dispatcher(flow, pipeline=pipeline) as dispatcher:
        whole.install(patch)
        dispatcher.dispatch(parse_window(WINDOW), "manual")
    drained(rig.world)
    at = next(n for n, name in enumerate(whole.seen, 1) if work in name)
    with pytest.MonkeyPatch.context() as patch, rig.dispatcher(flow) as dispatcher:
        Death(at).install(patch)
        with pytest.raises(KilledError):
            dispatcher.dispatch(parse_window(WINDOW), "manual")
    rig.expire_leases("reward")


@pytest.mark.parametrize("flow", ["staged", "paged"])
@pytest.mark.parametrize("work", ["open_entries", "mark_sending"])
def test_what_a_dead_run_left(world: World, rig: Rig, work: str, flow: str) -> None:
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 5))
    broken_off(rig, work, flow)
    world.update("r2", RewardStatus="Cancelled")
    world.put(booking("late", AT % 30, member=9))
    report = rig.run(flow)
    sure = work == "open_entries"  # what was never sent, and is not due any more, is void
    assert (report.counts.recovered, report.counts.claimed) == (3 if sure else 4, 1)
    assert bool(report.open_findings) is not sure
    states = (
        "SELECT state, count(*) FROM entry_states JOIN windows ON windows.id = window_id "
        "JOIN pipelines ON pipelines.id = pipeline_id WHERE name = 'reward' GROUP BY state"
    )
    assert dict(rig.rows(states)) == ({"confirmed": 4, "void": 1} if sure else {"confirmed": 5})  # type: ignore[arg-type]


@pytest.mark.parametrize("work", ["open_entries", "mark_sending"])
def test_a_reconcile_of_what_a_dead_run_left(world: World, rig: Rig, work: str) -> None:
    """Entries are finished that no object was ever stored for: their objects are not missing in the end."""
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 5))
    broken_off(rig, work)
    world.update("r2", RewardStatus="Cancelled")
    rig.tell("UPDATE windows SET completed_at = ledger_now()")
    world.s3.put_object(Bucket=world.bucket, Key="reward-dispatch/reward/2026/09/17/15/zzz", Body=b"{}")
    (window,) = rig.reconcile()["windows"]
    kinds = {"unfinished", "orphan_object"} | ({"duplicate"} if work == "mark_sending" else set())
    assert {one["kind"] for one in window["findings"]} == kinds
    rig.assert_books_balance()


def test_a_window_that_is_held_or_busy(world: World, rig: Rig) -> None:
    world.put(booking("r1", AT % 1))
    key = "reward-dispatch/reward/2026/09/17/15/strange.json"
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"{}")
    with untouched(rig):
        first = rig.run(dry_run=True)
    assert (first.outcome, str(first.error).count("objects are already under")) == ("held", 1)
    for _ in range(2):
        assert rig.run().outcome == "held"
        assert rig.reconcile()["windows"][0]["held"]
    document = rig.reconcile(release_hold=True)
    assert (document["open"], document["repaired"]) == (1, 1)
    rig.tell("UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour'")
    assert rig.run().outcome == "busy"
    assert rig.reconcile()["windows"][0]["left_alone"] == "a run is working on it"


def test_every_owed_window(world: World, rig: Rig) -> None:
    """One record stands on the hour: of two windows the first claims it, also in the dry run of both."""
    windows = [hours_ago(3), hours_ago(2), hours_ago(1)]
    fill(world, *windows)
    world.put_many(booking(f"edge{at}", one, member=7) for at, one in enumerate(windows))
    assert rig.run(window=windows[1]).outcome == "completed"
    world.put(booking("one more", f"{windows[2][:13]}:30:00Z"))
    settings = {"schedule__catch_up": "5h", "schedule__not_before": windows[0]}
    with untouched(rig), rig.dispatcher(dry_run=True, **settings) as dispatcher:
        said = list(dispatcher.dispatch_due("manual"))
    with rig.dispatcher(**settings) as dispatcher:
        done = list(dispatcher.dispatch_due("manual"))
    assert [run_of(one) for one in said] == [run_of(one) for one in done]
    assert [one.window.name for one in done] == [windows[0], windows[2]]
    assert [one.counts.claimed for one in done] == [11, 11]


def test_windows_that_share_an_hour(world: World, rig: Rig) -> None:
    """Missed in both windows, and sent by the first."""
    fill(world, hours_ago(2), hours_ago(1))
    for window in (hours_ago(2), hours_ago(1)):
        rig.run(window=window)
    world.put_many([booking("edge", hours_ago(1)), booking("late", f"{hours_ago(1)[:13]}:40:00Z")])
    document = rig.reconcile(hours_ago(2), hours_ago(1))
    assert [len(one["findings"]) for one in document["windows"]] == [1, 1]
    assert document["repaired"] == 2
    document = rig.reconcile(hours_ago(1), hours_ago(2))
    assert document["repaired"] == 0


def test_what_reaches_beyond_the_window(world: World, rig: Rig) -> None:
    """A record on the hour whose job another window made; an object with the key of another window's job."""
    world.put_many([booking("r1", AT % 1), booking("edge", NEXT, member=2), booking("n1", "2026-09-17T16:05:00Z")])
    for window in (WINDOW, NEXT):
        rig.run(window=window)
    rig.tell(
        "INSERT INTO receipts "
        "(pipeline_id, idempotency_key, window_id, state, worker, attempts, claimed_at, finished_at) "
        "SELECT pipeline_id, idempotency_key, window_id, 'completed', 'w', 1, ledger_now(), ledger_now() "
        "FROM entries JOIN windows ON windows.id = window_id"
    )
    (window,) = rig.reconcile(NEXT)["windows"]
    assert [one["kind"] for one in window["findings"]] == ["stale_source_status"] * 2
    documents = [json.loads(body) for body in world.objects().values()]
    mine = next(one for one in documents if one["records"][0]["Id"] == "r1")
    other = next(one for one in documents if one["window"]["start"] == NEXT)
    odd = json.dumps(mine | {"idempotency_key": other["idempotency_key"]}, separators=(",", ":"))
    world.s3.put_object(Bucket=world.bucket, Key="reward-dispatch/reward/2026/09/17/15/odd", Body=odd)
    (window,) = rig.reconcile()["windows"]
    assert sorted(one["kind"] for one in window["findings"]) == ["orphan_object", *["stale_source_status"] * 2]


def test_a_window_is_looked_at_as_it_is_when_its_turn_comes(rig: Rig) -> None:
    """Another process gets it, finishes it, or holds it, while the dry run is at work on an earlier one."""
    window = parse_window(WINDOW)
    rig.run()
    with DryStore(rig.url, "reward") as dry:
        dry.take(window)
        assert not evidence.window_facts(dry, "reward", window).leased
        rig.tell("UPDATE windows SET lease_run_id = gen_random_uuid(), lease_until = ledger_now() + interval '1 hour'")
        assert not evidence.window_facts(dry, "reward", window).leased
        dry.take(window)
        assert evidence.window_facts(dry, "reward", window).leased


def test_nothing_is_repaired_where_that_is_not_wanted(world: World, rig: Rig) -> None:
    world.put(booking("r1", AT % 1))
    rig.run()
    world.put(booking("r2", AT % 2))
    with untouched(rig):
        dry = rig.reconcile(dry_run=True, repair=False)
    (finding,) = dry["windows"][0]["findings"]
    shown = {name: finding[name] for name in ("id", "kind", "state", "repair", "would_be", "would_repair")}
    assert shown == {
        "id": None,
        "kind": "missed",
        "state": "open",
        "repair": None,
        "would_be": "open",
        "would_repair": None,
    }
    assert (dry["open"], dry["would_repair"], dry["would_close"]) == (1, 0, 0)
    rig.reconcile(repair=False)
    world.delete("r2")
    with untouched(rig):
        dry = rig.reconcile(dry_run=True)
    assert (dry["open"], dry["would_close"]) == (0, 1)


# Nobody notices


def test_a_dry_run_only_reads(world: World, rig: Rig) -> None:
    world.put_many(mixed())
    with FaultProxy(world.endpoint) as wire:
        rig.run(endpoint=wire.url, dry_run=True)
        rig.run()
        ((key, body),) = [one for one in world.objects().items() if b'"c1"' in one[1]]
        world.s3.delete_object(Bucket=world.bucket, Key=key)
        world.s3.put_object(Bucket=world.bucket, Key=f"{key[:30]}/15/orphan", Body=body)
        world.s3.put_object(Bucket=world.bucket, Key="reward-dispatch/reward/2026/09/17/15/orphan", Body=body)
        for delete_orphans in (False, True):
            document = rig.reconcile(endpoint=wire.url, dry_run=True, delete_orphans=delete_orphans)
            assert document["would_repair"] == 2
        operations = {request.operation for request in wire.log}
    assert {"GET object?tagging", "GET object", "HEAD object", "DynamoDB_20120810.Query"} <= operations <= READS


def test_a_real_run_does_not_wait_for_a_dry_one(world: World, rig: Rig) -> None:
    """In the middle of the dry run, the same window is dispatched for real, and another pipeline and window begin."""
    world.put_many(mixed())
    done: list[Any] = []
    with FaultProxy(world.endpoint) as wire:

        def meanwhile(_: Any) -> None:
            with Rig(world, rig.url) as other:
                done.append(other.run())
                done.append(other.run(window=NEXT, pipeline="another"))

        wire.rules.append(Rule(on("BatchGetItem"), callback(meanwhile), times=1))
        dry = rig.run(endpoint=wire.url, dry_run=True)
    assert [one.outcome for one in (*done, dry)] == ["completed"] * 3
    assert run_of(dry) == run_of(done[0])


def test_a_dry_run_that_is_cancelled(world: World, rig: Rig) -> None:
    world.put_many(mixed())
    cancellation = Cancellation()
    with FaultProxy(world.endpoint) as wire, untouched(rig):
        wire.rules.append(Rule(on("BatchGetItem"), callback(lambda _: cancellation.ask(15)), times=1))
        report = rig.run(endpoint=wire.url, dry_run=True, cancellation=cancellation)
    assert (report.outcome, report.counts.confirmed) == ("cancelled", 0)


def test_the_database_refuses_what_is_not_temporary(rig: Rig) -> None:
    """Whatever code a dry run goes through: only its own tables can be written."""
    with DryStore(rig.url, "reward") as dry:
        dry.take(parse_window(WINDOW))
        for one in (dry, dry.whole):
            with pytest.raises(UnavailableError, match="read-only transaction"):
                one.transaction(
                    lambda connection: connection.execute("INSERT INTO public.pipelines (name) VALUES ('x')")
                )
        dry.transaction(lambda connection: connection.execute("INSERT INTO pipelines (name) VALUES ('x')"))
    assert rig.rows("SELECT name FROM pipelines") == []


def test_a_dry_run_that_loses_its_connection_says_so(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had worked out is gone, and must not be made up from the ledger."""
    world.put_many(mixed())
    usual = dry_run.DryStore.transaction
    seen: list[str] = []

    def lose(store: DryStore, work: Any) -> Any:
        seen.append(work.__qualname__)
        if seen.count(work.__qualname__) == 1 and "open_entries" in work.__qualname__:
            with psycopg.connect(store.url.replace("+psycopg", ""), autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [store._connection.info.backend_pid])  # type: ignore[union-attr]
        return usual(store, work)

    with monkeypatch.context() as patch, untouched(rig):
        patch.setattr(DryStore, "transaction", lose)
        patch.setattr("ledger.store._FIRST_DELAY_S", 0.001)
        report = rig.run(dry_run=True)
    assert any("open_entries" in one for one in seen)
    assert (report.outcome, "nothing was written, run it again" in str(report.error)) == ("failed", True)


def test_a_database_that_allows_no_temporary_tables(rig: Rig) -> None:
    name = make_url(rig.url).database
    rig.tell(f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
    rig.tell("CREATE ROLE reader LOGIN")
    rig.tell("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    try:
        url = make_url(rig.url).set(username="reader").render_as_string(hide_password=False)
        with DryStore(url, "reward") as dry, pytest.raises(UnavailableError, match="grant TEMPORARY"):
            dry.take(parse_window(WINDOW))
        rig.tell(f"GRANT TEMPORARY ON DATABASE {name} TO reader")
        with DryStore(url, "reward") as dry:
            dry.take(parse_window(WINDOW))
    finally:
        rig.tell("DROP OWNED BY reader")
        rig.tell("DROP ROLE reader")


def test_payloads_that_are_done_with_are_tidied_up(world: World, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else vacuums temporary tables: a window of any size must not pile up its payloads."""
    monkeypatch.setattr(dry_run, "_TIDIED_EVERY", 5)
    world.put_many(
        booking(f"r{at}", AT % (at % 60), member=at, Name=sha256(b"%d" % at).hex() * 30) for at in range(120)
    )
    sizes: list[int] = []
    usual = DryQueues.send

    with rig.dispatcher("paged", dry_run=True, dispatch__page_size="4") as dispatcher:

        def send(queues: DryQueues, *given: Any) -> Any:
            query = "SELECT pg_total_relation_size('payload_parts')"
            sizes.append(dispatcher.store.transaction(lambda one: one.execute(query).fetchall())[0][0])
            return usual(queues, *given)

        monkeypatch.setattr(DryQueues, "send", send)
        report = dispatcher.dispatch(parse_window(WINDOW), "manual")
    assert report.counts.entries == 120
    assert max(sizes) < 200 * 1024


def test_new_ids_are_where_no_ledger_gets() -> None:
    made = (Path(dry_run.__file__).parent / "sql" / "dry_make.sql").read_text()
    assert re.findall(r"(\w+) ALTER COLUMN id RESTART WITH (\d+)", made)[2:] == [
        ("windows", str(FIRST_NEW_ID)),
        ("events", str(FIRST_NEW_ID)),
        ("findings", str(FIRST_NEW_ID)),
    ]


def test_the_kit_sees_what_is_written(world: World, rig: Rig) -> None:
    """The tests above compare two looks at everything, so those looks must see something."""
    world.put(booking("r1", AT % 1))
    before = everything(rig)
    rig.run()
    after = everything(rig)
    changed = {name for name in before if before[name] != after[name]}
    assert {"pipelines", "destinations", "windows", "runs", "pages", "claims", "entries", "attempts"} <= changed
    assert {"objects", "messages", "public.windows_id_seq"} <= changed


def test_what_a_person_sent_again(world: World, rig: Rig) -> None:
    """Repeats that were wanted are duplicates, born acknowledged, also while a dry run reads them."""
    world.put_many(booking(f"r{at}", AT % at, member=at) for at in range(1, 4))
    rig.run()
    rig.apply(rig.plan())
    rig.tell("DELETE FROM findings")
    world.put(booking("late", AT % 30, member=9))
    document = rig.reconcile()
    found = [(one["kind"], one["state"]) for one in document["windows"][0]["findings"]]
    assert sorted(found) == [("duplicate", "acknowledged")] * 3 + [("missed", "repaired")]
    assert rig.run().counts.already_claimed == 4
