"""Why was this record dispatched, or why not: the source and the ledger together, and how fast the ledger finds it."""

from typing import Any

import psycopg
import pytest

from dispatch.lookup import Lookup
from ledger import history
from ledger.instants import parse_window
from ledger.settings import Settings
from ledger.store import Store, connect_arguments
from ops.show_record import record_document
from tests import ledger_kit as kit
from tests.aws_servers import World, booking
from tests.product import until
from tests.report_kit import Planter, hour
from tests.rig import WINDOW, Rig

HOUR = WINDOW[:13]
NEXT = "2026-09-17T16:00:00Z"
NOWHERE = "http://127.0.0.1:9"


def show(rig: Rig, identity: str, **overrides: str) -> dict[str, Any]:
    """Show a record, with windows of any age owed unless a setting says otherwise."""
    settings = {"schedule__catch_up": "36500d"} | overrides
    return told_with(rig, rig.settings(**settings), identity)


def told_with(rig: Rig, settings: Settings, identity: str) -> Any:
    with Store(rig.url) as store:
        return record_document(settings, store, Lookup(settings, settings.aws.endpoint_url).ask(identity))


def told(rig: Rig, identity: str, **overrides: str) -> tuple[str, str, str | None]:
    document = show(rig, identity, **overrides)
    return document["reason"], document["source"]["verdict"], document["source"]["window"]


def test_the_life_of_a_record(rig: Rig, world: World) -> None:
    world.put(booking("r1", f"{HOUR}:30:00Z"))
    assert told(rig, "r1") == ("window_owed", "due", WINDOW)
    assert told(rig, "r1", schedule__catch_up="1h") == ("window_too_old", "due", WINDOW)
    assert told(rig, "r1", schedule__not_before=NEXT) == ("window_not_owed", "due", WINDOW)
    rig.run()
    document = show(rig, "r1")
    (one,) = document["occurrences"]
    assert (document["reason"], document["source"]["window"]) == ("dispatched", WINDOW)
    assert (one["booking_time"], one["generation"], one["entry"]["state"]) == (f"{HOUR}:30:00Z", 0, "confirmed")
    assert one["entry"]["entry_id"] in document["answer"]
    assert [send["outcome"] for send in one["entry"]["sends"]] == ["accepted"]
    assert one["entry"]["receipt"] is None
    world.update("r1", RewardStatus="Rewarded")
    assert told(rig, "r1") == ("dispatched", "not_due", WINDOW)
    world.update("r1", RewardStatus="WaitToReward", BookingTimeUTC="2026-09-17T18:20:00Z")
    assert told(rig, "r1") == ("window_owed", "due", "2026-09-17T18:00:00Z")
    assert f"{HOUR}:30:00Z" in show(rig, "r1")["answer"]
    world.delete("r1")
    assert told(rig, "r1") == ("dispatched", "gone", WINDOW)


def test_never_claimed(rig: Rig, world: World) -> None:
    world.put(booking("done", f"{HOUR}:30:00Z", status="Rewarded"))
    world.put(booking("bad", f"{HOUR}:31:00Z", type="Unheard"))
    world.put(booking("hidden", f"{HOUR}:32:00Z", BookingDateUTC="2026-09-16"))
    world.put(booking("later", "2126-09-17T15:32:00Z"))
    rig.run()
    assert told(rig, "done") == ("not_due", "not_due", WINDOW)
    assert told(rig, "hidden") == ("not_in_index", "due", None)
    assert told(rig, "later") == ("window_open", "due", "2126-09-17T15:00:00Z")
    assert told(rig, "nobody") == ("gone", "gone", None)
    assert show(rig, "nobody")["source"]["found"] is False
    bad = show(rig, "bad")
    assert (bad["reason"], bad["source"]["verdict"]) == ("set_aside", "set_aside")
    assert [(one["kind"], one["cause"]) for one in bad["findings"]] == [("bad_record", "unknown_route")]
    world.put(booking("late", f"{HOUR}:33:00Z"))
    assert told(rig, "late") == ("missed", "due", WINDOW)
    rig.reconcile(repair=False)
    assert "missed it (unknown); run: dispatch-ledger reconcile" in show(rig, "late", reconcile__grace="0s")["answer"]
    rig.reconcile()
    assert told(rig, "late") == ("dispatched", "due", WINDOW)


def test_on_the_hour_it_belongs_to_two_windows(rig: Rig, world: World) -> None:
    world.put(booking("edge", NEXT))
    assert show(rig, "edge")["source"]["windows"] == [WINDOW, NEXT]
    rig.run(window=NEXT)
    assert told(rig, "edge") == ("dispatched", "due", NEXT)


def test_a_held_and_a_running_window(rig: Rig, world: World) -> None:
    world.put(booking("r1", f"{HOUR}:30:00Z"))
    with Store(rig.url) as store:
        kit.take(store, WINDOW, pipeline="reward")
    assert told(rig, "r1")[0] == "window_running"
    rig.expire_leases("reward")
    assert told(rig, "r1")[0] == "window_incomplete"
    rig.tell("UPDATE windows SET held_at = ledger_now(), held_reason = 'a stranger was here'")
    document = show(rig, "r1")
    assert (document["reason"], "a stranger was here" in document["answer"]) == ("window_held", True)


def test_the_void_job_of_its_group(rig: Rig, world: World) -> None:
    """The ledger keeps no claims of a void entry; it knows the record's group."""
    world.put(booking("r1", f"{HOUR}:30:00Z"))
    rig.run()
    rig.tell("DELETE FROM claims")
    rig.tell("UPDATE entries SET void_reason = 'the queue said no'")
    document = show(rig, "r1")
    assert (document["reason"], "the queue said no" in document["answer"]) == ("void", True)
    world.update("r1", MemberId=77)
    assert show(rig, "r1")["reason"] == "missed"


def test_a_source_that_cannot_be_asked(rig: Rig, world: World) -> None:
    world.put(booking("r1", f"{HOUR}:30:00Z"))
    rig.run()
    document = told_with(rig, rig.settings(source__table="nowhere"), "r1")
    source = document["source"]
    assert (source["found"], source["verdict"]) == (None, "unknown")
    assert "'nowhere' does not exist" in source["error"]
    assert (document["reason"], len(document["occurrences"])) == ("dispatched", 1)
    document = told_with(rig, rig.settings(endpoint=NOWHERE), "never")
    assert (document["reason"], document["occurrences"]) == ("source_unknown", [])
    assert "no answer" in document["source"]["error"]
    assert "could not be asked" in document["answer"]


@pytest.mark.parametrize("identity", ["", "\ufeff", "a\nb", "a\0b", "😀", "x" * 3000])
def test_ids_of_any_kind_are_looked_up_not_choked_on(rig: Rig, world: World, identity: str) -> None:
    document = show(rig, identity)
    assert (document["record_id"], document["occurrences"]) == (identity, [])
    assert document["reason"] in {"gone", "source_unknown"}


def test_neither_bucket_nor_queues_are_needed(rig: Rig, world: World) -> None:
    world.put(booking("r1", f"{HOUR}:30:00Z"))
    routes = '{"Point": {"job": "RewardPoint", "queue": "no-such-queue"}}'
    assert told(rig, "r1", objects__bucket="no-such-bucket", routes=routes)[0] == "window_owed"


def test_a_key_of_two_attributes(world: World, rig: Rig) -> None:
    table = f"composite-{world.table}"
    attributes = {"Shop": "S", "No": "N", "BookingDateUTC": "S", "BookingTimeUTC": "S"}
    keys: Any = [{"AttributeName": "Shop", "KeyType": "HASH"}, {"AttributeName": "No", "KeyType": "RANGE"}]
    index: Any = world.dynamodb.describe_table(TableName=world.table)["Table"]["GlobalSecondaryIndexes"][0]
    kept = {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
    types: Any = [{"AttributeName": name, "AttributeType": kind} for name, kind in attributes.items()]
    world.dynamodb.create_table(TableName=table, BillingMode="PAY_PER_REQUEST", AttributeDefinitions=types,
                                KeySchema=keys, GlobalSecondaryIndexes=[kept])  # fmt: skip
    item: Any = booking("unused", f"{HOUR}:30:00Z", Shop="7", No=12)
    world.dynamodb.put_item(TableName=table, Item=item)
    rig.run(source__table=table)
    for spelled in ('{"No":12,"Shop":"7"}', '{"Shop": "7", "No": 12.0}'):
        document = show(rig, spelled, source__table=table)
        assert (document["reason"], document["record_id"]) == ("dispatched", '{"No":12,"Shop":"7"}')
    document = show(rig, "12", source__table=table)
    assert document["source"]["found"] is None
    assert "its key is a JSON object of Shop (text), No (a number)" in document["source"]["error"]


def test_every_generation_and_its_receipt(store: Store, planter: Planter) -> None:
    """A redo claims an occurrence again, under the next generation; its job has a receipt of its own."""
    (entry,) = planter.dispatch(10, (1,))
    window = parse_window(hour(10))
    planter.tell(
        "INSERT INTO entries SELECT gen_random_uuid(), run_id, window_id, opened_at, destination_id, records_n, 1, "
        "group_digest, content_hash, sha256('again'), group_json, NULL FROM entries"
    )
    planter.tell("INSERT INTO claims SELECT booking_ns, fingerprint, pipeline_id, 1, record_id, "
                 "(SELECT id FROM entries WHERE generation = 1) FROM claims")  # fmt: skip
    planter.tell(
        "INSERT INTO receipts (pipeline_id, idempotency_key, window_id, state, worker, attempts, claimed_at, "
        "finished_at, result, reason) SELECT windows.pipeline_id, idempotency_key, windows.id, "
        "CASE generation WHEN 0 THEN 'failed' ELSE 'completed' END, 'worker-' || generation, generation + 1, "
        "ledger_now(), ledger_now(), CASE generation WHEN 1 THEN '{\"granted\":7}' END, "
        "CASE generation WHEN 0 THEN 'no such member' END FROM entries JOIN windows ON windows.id = window_id"
    )
    planter.tell("UPDATE findings SET record_id = NULL, entry_id = %s WHERE id = %s",
                 entry.id, planter.find(10, "duplicate", "of-the-entry"))  # fmt: skip
    story, facts = history.record_history(store, "reward", "w10-0-0", [window])
    first, second = (one["entry"] for one in story["occurrences"])
    assert [one["generation"] for one in story["occurrences"]] == [0, 1]
    assert (first["receipt"]["state"], first["receipt"]["reason"]) == ("failed", "no such member")
    assert (second["receipt"]["state"], bytes(second["receipt"]["result"])) == ("completed", b'{"granted":7}')
    assert (second["receipt"]["worker"], second["receipt"]["attempts"]) == ("worker-1", 2)
    assert {"receipt claimed", "receipt failed", "receipt completed"} <= {one["event"] for one in story["events"]}
    assert [one["kind"] for one in story["findings"]] == ["duplicate"]
    assert [(one.generation, one.receipt) for one in facts.claims] == [(0, "failed"), (1, "completed")]
    assert facts.standings[window].state == "dispatched"
    assert history.record_history(store, "reward", "w10-0-1")[0]["findings"] == []


def test_how_its_window_stands(store: Store, planter: Planter) -> None:
    """What a reconcile did there says nothing of the last dispatch."""
    planter.plant()
    planter.reconcile(11)
    windows = [parse_window(hour(number)) for number in (11, 12, 18)]
    _, facts = history.record_history(store, "reward", "nobody", windows)
    broken, held, dispatched = (facts.standings[one] for one in windows)
    assert (broken.state, broken.last_outcome, broken.last_error) == ("incomplete", "failed", "it broke")
    assert (held.state, held.held_reason, held.completed_at) == ("held", "why", None)
    assert (dispatched.state, dispatched.last_outcome) == ("dispatched", "completed")
    assert dispatched.completed_at == dispatched.last_ended_at


def test_one_snapshot(store: Store, planter: Planter) -> None:
    planter.dispatch(10, (1,))
    levels: list[Any] = []

    class Watched(Store):
        def transaction(self, work: Any) -> Any:
            def watched(connection: Any) -> Any:
                found = work(connection)
                levels.append(connection.execute("SHOW transaction_isolation").fetchone()[0])
                return found

            return super().transaction(watched)

    with Watched(store.url) as watched:
        history.record_history(watched, "reward", "w10-0-0")
    assert levels == ["repeatable read"]


def fill(connection: psycopg.Connection[Any], claims: int) -> None:
    """Insert claims whose ids are UUIDs: that of each is the MD5 of its number."""
    connection.execute("INSERT INTO pipelines (name) VALUES ('reward')")
    connection.execute(
        "INSERT INTO claims SELECT number, 0, (SELECT id FROM pipelines), 0, "
        "'\\xff'::bytea || uuid_send(md5(number::text)::uuid), gen_random_uuid() FROM generate_series(1, %s) AS number",
        (claims,),
    )


def id_of(connection: psycopg.Connection[Any], number: str) -> str:
    return str(kit.ask(connection, "SELECT md5(%s)::uuid::text", number)[0][0])


@pytest.mark.parametrize("summarised", ["summarised", "not summarised"])
def test_claims_are_found_by_the_index_on_record_ids(ledger_url: str, summarised: str) -> None:
    """Left alone, the planner reads a table of this size from end to end."""
    used = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'claims_record'"
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as connection:
        fill(connection, 5000)
        if summarised == "summarised":
            connection.execute("VACUUM ANALYZE claims")
        for number, expected in (("4321", ["1970-01-01T00:00:00.000004321Z"]), ("9999", [])):
            with Store(ledger_url) as store:
                story, _ = history.record_history(store, "reward", id_of(connection, number))
            assert [one["booking_time"] for one in story["occurrences"]] == expected
        until(lambda: kit.ask(connection, used) == [(2,)], "both were looked up by the index")


def test_findings_are_found_by_an_index_on_record_ids(ledger_url: str) -> None:
    with psycopg.connect(**connect_arguments(ledger_url), autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = kit.ask(connection, "EXPLAIN SELECT id FROM findings WHERE record_id = %s", b"r1")
    assert "findings_record" in str(plan)


def test_odd_ids(store: Store, planter: Planter) -> None:
    for identity in ("", "a\0b", "\udcff", "x" * 3000):
        planter.find(10, "missed", f"of-{len(identity)}", text=identity or "none")
        story, _ = history.record_history(store, "reward", identity)
        assert [one["record_id"] for one in story["findings"]] == ([identity] if identity else [])
