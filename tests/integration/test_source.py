"""From the table to the object, over HTTP: what is read, read again, judged and kept, in all three flows."""

import base64
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from ledger.errors import CorruptError, InputError, UnavailableError
from tests.aws_servers import INDEX, World, booking
from tests.conftest import MakeRig
from tests.rig import FLOWS, Rig, all_records, records_of
from tests.wire import (
    FaultProxy,
    Request,
    Rule,
    answer,
    callback,
    forward,
    on,
    query_server,
    rewrite,
    rewrite_json,
    throttle,
)

ALL_FLOWS = list(FLOWS)
T = "2026-09-17T15:{:02d}:00Z"


@pytest.fixture
def proxy(ministack: str) -> Iterator[FaultProxy]:
    with FaultProxy(ministack) as wire:
        yield wire


def once(fn: Callable[[], Any]) -> Callable[[Request], None]:
    """Call `fn` at the first request only."""
    calls = count()
    return lambda request: fn() if next(calls) == 0 else None


def assert_completed(report: Any) -> Any:
    """Check the outcome and the books; give the counts."""
    assert report.outcome == "completed", report.error
    counts = report.counts
    assert counts.evaluated == counts.outside + counts.not_due + counts.set_aside + counts.due
    assert counts.due == counts.already_claimed + counts.claimed
    return counts


# The seven seed records


@pytest.mark.parametrize("flow", ALL_FLOWS)
@pytest.mark.parametrize("emulator", ["moto", "ministack"])
def test_the_seven_seed_records(request: pytest.FixtureRequest, make_rig: MakeRig, flow: str, emulator: str) -> None:
    """Case 1, on both emulators."""
    world = World(request.getfixturevalue(emulator))
    fields = {
        "R0": ("2026-09-17T14:59:59Z", "WaitToReward", 1001, 2001, 3001, "Point", "2026-09-17T14:10:00Z"),
        "R1": ("2026-09-17T15:03:00Z", "WaitToReward", 1001, 2001, 3001, "Point", "2026-09-17T14:50:00Z"),
        "R2": ("2026-09-17T15:20:00Z", "WaitToReward", 1001, 2001, 3001, "Point", "2026-09-17T14:30:00Z"),
        "R3": ("2026-09-17T15:45:00Z", "WaitToReward", 1001, 2002, 3002, "ECoupon", "2026-09-17T15:10:00Z"),
        "R4": ("2026-09-17T15:48:00Z", "Rewarded", 1002, 2003, 3003, "Point", "2026-09-17T15:15:00Z"),
        "R5": ("2026-09-17T15:59:00Z", "WaitToReward", 1002, 2003, 3003, "Point", "2026-09-17T15:30:00Z"),
        "R6": ("2026-09-17T16:00:01Z", "WaitToReward", 1002, 2003, 3003, "Point", "2026-09-17T15:40:00Z"),
    }
    world.put_many(
        booking(name, time, status=status, shop=shop, member=member, promotion=promotion, type=route, order=order)
        for name, (time, status, shop, member, promotion, route, order) in fields.items()
    )
    rig = make_rig(world)
    counts = assert_completed(rig.run(flow))
    assert (counts.evaluated, counts.not_due, counts.due, counts.claimed, counts.entries, counts.confirmed) == (
        5,
        1,
        4,
        4,
        3,
        3,
    )
    assert sorted(records_of(world.objects()).values()) == [["R2", "R1"], ["R3"], ["R5"]]
    assert {one["job"] for one in world.messages("reward-ecoupon")} == {"RewardECoupon"}
    assert sorted(one["records"] for one in world.messages("reward-point")) == [1, 2]
    again = assert_completed(rig.run(flow))
    assert (again.claimed, again.already_claimed, again.entries) == (0, 4, 0)
    assert world.message_count("reward-point") == 0
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_an_empty_window(rig: Rig, flow: str) -> None:
    counts = assert_completed(rig.run(flow))
    assert (counts.evaluated, counts.entries, counts.pages) == (0, 0, 1)
    assert rig.world.objects() == {}


# verify_due


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_that_changes_between_read_and_send_is_not_sent(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    """Case 12: alone, and inside a group of three."""
    world = rig.world
    world.put_many(
        [
            booking("alone", T.format(1), member=1),
            *(booking(f"g{n}", T.format(10 + n), member=2, order=f"2026-09-17T10:00:0{n}Z") for n in range(3)),
        ]
    )

    def change() -> None:
        world.update("alone", RewardStatus="Cancelled")
        world.update("g1", RewardStatus="Cancelled")

    proxy.rules.append(Rule(on("BatchGetItem"), callback(once(change))))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.evaluated, counts.not_due, counts.due, counts.claimed, counts.entries) == (4, 2, 2, 2, 1)
    assert list(records_of(world.objects()).values()) == [["g0", "g2"]]
    assert rig.findings() == []
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_deleted_between_read_and_send_is_not_due(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    world = rig.world
    world.put_many([booking("gone", T.format(1)), booking("stays", T.format(2))])
    proxy.rules.append(Rule(on("BatchGetItem"), callback(once(lambda: world.delete("gone")))))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.not_due, counts.claimed) == (1, 1)
    assert all_records(world.objects()) == ["stays"]


def lagging(*stale: Any) -> Any:
    """Answer every Query with these items, as an index that lags would."""
    return answer(lambda request: {"Items": list(stale), "Count": len(stale), "ScannedCount": len(stale)})


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_the_index_shows_the_old_time_and_the_table_has_the_new_one(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    """Case 26: sent once, at the new time."""
    old, new = booking("r1", "2026-09-17T15:10:00Z"), booking("r1", "2026-09-17T17:20:00Z")
    rig.world.put(new)
    proxy.rules.append(Rule(on("Query"), lagging(old), times=1))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.evaluated, counts.not_due, counts.claimed) == (1, 1, 0)
    counts = assert_completed(rig.run(flow, endpoint=proxy.url, window="2026-09-17T17:00:00Z"))
    assert (counts.evaluated, counts.claimed) == (1, 1)
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert counts.claimed == 0
    ((key, body),) = rig.world.objects().items()
    assert "/2026/09/17/17/" in key
    assert json.loads(body)["records"][0]["BookingTimeUTC"] == "2026-09-17T17:20:00Z"


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_that_moved_inside_the_window_is_sent_once_at_its_new_time(
    rig: Rig, proxy: FaultProxy, flow: str
) -> None:
    """Seen twice, at its old and at its new time: one page each, or both on one."""
    old, new = booking("r1", T.format(10)), booking("r1", T.format(50))
    rig.world.put(new)
    for page_size in ("1", "10"):
        proxy.rules[:] = [Rule(on("Query"), lagging(old, new))]
        counts = assert_completed(
            rig.run(flow, endpoint=proxy.url, pipeline=f"size-{page_size}", dispatch__page_size=page_size)
        )
        assert (counts.evaluated, counts.due, counts.claimed, counts.already_claimed) == (2, 2, 1, 1)
        objects = rig.world.objects(f"reward-dispatch/size-{page_size}/")
        assert all_records(objects) == ["r1"]
        ((body),) = objects.values()
        assert json.loads(body)["records"][0]["BookingTimeUTC"] == T.format(50)
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_second_sight_of_one_occurrence_counts_as_already_claimed(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    """Also across pages, and when the first sight is spelled in another way."""
    rig.world.put_many([booking("r1", T.format(10)), booking("r2", T.format(10))])
    first, second = booking("r1", T.format(10)), booking("r2", T.format(10))
    pages = [
        {"Items": [first, second], "LastEvaluatedKey": {**first, "page": {"S": "1"}}},
        {"Items": [first, second, first]},
    ]
    proxy.rules.append(
        Rule(on("Query"), answer(lambda request: pages[1] if "ExclusiveStartKey" in request else pages[0]))
    )
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.pages, counts.evaluated, counts.due) == (2, 5, 5)
    assert (counts.claimed, counts.already_claimed) == (2, 3)
    assert all_records(rig.world.objects()) == ["r1", "r2"]
    rig.assert_books_balance()


@pytest.mark.parametrize("verify_due", ["true", "false"])
@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_two_spellings_of_one_instant_are_one_occurrence(
    rig: Rig, proxy: FaultProxy, flow: str, verify_due: str
) -> None:
    spelled = [booking("r1", "2026-09-17T15:10:00.500Z"), booking("r1", "2026-09-17T15:10:00.5+00:00")]
    rig.world.put(spelled[1])
    proxy.rules.append(Rule(on("Query"), lagging(*spelled)))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url, dispatch__verify_due=verify_due))
    assert (counts.due, counts.claimed, counts.already_claimed) == (2, 1, 1)
    assert rig.value("SELECT count(*) FROM claims") == 1


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_without_verify_due_the_index_is_believed(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    rig.world.put(booking("r1", T.format(10)))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url, dispatch__verify_due="false"))
    assert counts.claimed == 1
    assert proxy.count("BatchGetItem") == 0


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_moving_out_and_in_while_pages_are_read(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    """One record moves out of the window behind the cursor, one moves in before it, one moves to a later page."""
    world = rig.world
    world.put_many([booking(f"r{n}", T.format(10 * n), member=n) for n in range(1, 6)])
    world.put(booking("in", "2026-09-17T18:00:00Z", member=9))

    def move() -> None:
        world.update("r1", BookingTimeUTC="2026-09-17T20:00:00Z")
        world.update("r2", BookingTimeUTC=T.format(55))
        world.update("in", BookingTimeUTC=T.format(45))

    proxy.rules.append(Rule(on("Query"), callback(once(move)), skip=1))
    report = rig.run(flow, endpoint=proxy.url, dispatch__page_size="2")
    counts = assert_completed(report)
    sent = all_records(world.objects())
    if flow == "paged":  # the first page was sent before anything moved, and r2 at its new time is a new occurrence
        assert sent == ["in", "r1", "r2", "r2", "r3", "r4", "r5"]
    else:
        assert sent == ["in", "r2", "r3", "r4", "r5"]
        assert (counts.not_due, counts.already_claimed) == (1, 1)
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_not_due_in_the_index_is_not_read_again(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    rig.world.put_many([booking("no", T.format(1), status="Rewarded"), booking("yes", T.format(2))])
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.not_due, counts.claimed) == (1, 1)
    assert not [1 for name, body in proxy.requests if name.endswith("BatchGetItem") and b'"no"' in body]


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_reads_are_consistent_on_the_table_and_never_on_the_index(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    rig.world.put_many([booking(f"r{n}", T.format(n % 60), member=n) for n in range(130)])
    assert_completed(rig.run(flow, endpoint=proxy.url, dispatch__page_size="70"))
    queries = [json.loads(body) for name, body in proxy.requests if name.endswith(".Query")]
    assert len(queries) >= 2
    assert all("ConsistentRead" not in one and one["IndexName"] == INDEX for one in queries)
    batches = [json.loads(body) for name, body in proxy.requests if name.endswith(".BatchGetItem")]
    assert batches
    for one in batches:
        ((table, wanted),) = one["RequestItems"].items()
        assert table == rig.world.table
        assert wanted["ConsistentRead"] is True
        assert len(wanted["Keys"]) <= 100


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_keys_left_unprocessed_are_asked_for_again(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    rig.world.put_many([booking(f"r{n}", T.format(n)) for n in range(5)])

    def leave_some(document: Any) -> Any:
        table = rig.world.table
        found = document["Responses"][table]
        if len(found) > 2:
            left = [{"Id": one["Id"]} for one in found[2:]]
            document["Responses"][table] = found[:2]
            document["UnprocessedKeys"] = {table: {"Keys": left, "ConsistentRead": True}}
        return document

    proxy.rules.append(Rule(on("BatchGetItem"), rewrite_json(leave_some)))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert (counts.claimed, counts.not_due) == (5, 0)
    assert all(
        b'"ConsistentRead": true' in body or b'"ConsistentRead":true' in body
        for name, body in proxy.requests
        if name.endswith("BatchGetItem")
    )
    assert proxy.count("BatchGetItem") >= 3


def test_keys_left_unprocessed_for_ever_fail_the_run(
    rig: Rig, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.aws.source._FIRST_DELAY_S", 0.0)
    rig.world.put(booking("r1", T.format(1)))
    nothing = {"Responses": {}, "UnprocessedKeys": {rig.world.table: {"Keys": [{"Id": {"S": "r1"}}]}}}
    proxy.rules.append(Rule(on("BatchGetItem"), answer(lambda request: nothing)))
    report = rig.run(endpoint=proxy.url)
    assert report.outcome == "failed"
    assert isinstance(report.error, UnavailableError)
    assert (rig.claimed(), rig.world.objects()) == ([], {})


def test_throttled_reads_are_tried_again(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put(booking("r1", T.format(1)))
    proxy.rules += [Rule(on("Query"), throttle, times=2), Rule(on("BatchGetItem"), throttle, times=1)]
    assert assert_completed(rig.run(endpoint=proxy.url)).claimed == 1


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_recovered_entry_whose_records_are_no_longer_due_is_void(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    world = rig.world
    world.put_many([booking(f"g{n}", T.format(n), order=f"2026-09-17T10:00:0{n}Z") for n in range(3)])
    world.put(booking("alone", T.format(30), member=7))
    proxy.rules.append(Rule(on("PUT object"), lambda request, forward, closing: None))
    failed = rig.run(flow, endpoint=proxy.url, dispatch__lease="8s")
    assert failed.outcome == "failed"
    assert rig.entry_states() == {"pending": 2}
    world.update("g1", RewardStatus="Cancelled")
    counts = assert_completed(rig.run(flow))
    assert counts.recovered == 1
    assert rig.entry_states() == {"void": 1, "confirmed": 2}
    assert sorted(records_of(world.objects()).values()) == [["alone"], ["g0", "g2"]]
    rig.assert_books_balance()


# Projections and keys


@pytest.mark.parametrize("flow", ALL_FLOWS)
@pytest.mark.parametrize(
    "projection", ["KEYS_ONLY", ("RewardStatus",), ("RewardStatus", "ShopId", "RewardType"), ("OrderTime",)]
)
def test_an_index_that_does_not_project_everything(
    ministack: str, make_rig: MakeRig, flow: str, projection: Any
) -> None:
    world = World(ministack, projection=projection)
    world.put_many(
        [
            booking("r1", T.format(1), order="2026-09-17T12:00:00Z", Note="kept"),
            booking("r2", T.format(2), order="2026-09-17T11:00:00Z", Note="kept"),
            booking("r3", T.format(3), member=2, type="ECoupon", Note="kept"),
            booking("no", T.format(4), status="Rewarded"),
            booking("bad", T.format(5), MemberId=None),
            booking("odd", "2026-09-17T15:06:00"),
        ]
    )
    rig = make_rig(world)
    counts = assert_completed(rig.run(flow, dispatch__page_size="100"))
    assert (counts.evaluated, counts.not_due, counts.set_aside, counts.due, counts.claimed) == (6, 1, 2, 3, 3)
    assert sorted(records_of(world.objects()).values()) == [["r2", "r1"], ["r3"]]
    assert all(one["Note"] == "kept" for body in world.objects().values() for one in json.loads(body)["records"])
    assert rig.findings() == [
        ("bad_record", "missing_attribute", "open"),
        ("bad_record", "unreadable_time", "open"),
    ]
    rig.assert_books_balance()


@pytest.mark.parametrize("projection", ["KEYS_ONLY", ("RewardStatus",)])
def test_such_an_index_and_no_verify_due_is_refused(ministack: str, make_rig: MakeRig, projection: Any) -> None:
    rig = make_rig(World(ministack, projection=projection))
    with pytest.raises(InputError, match="verify_due"):
        rig.run(dispatch__verify_due="false")


def composite_table(world: World, hash_type: str, range_type: str | None) -> str:
    """Make a second booking table whose key is `Shard` and, if typed, `Serial`."""
    name = f"composite-{world.suffix}"
    keys = {"Shard": hash_type, **({"Serial": range_type} if range_type else {})}
    attributes = {**keys, "BookingDateUTC": "S", "BookingTimeUTC": "S"}
    kinds = ["HASH", "RANGE"]
    world.dynamodb.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": one, "AttributeType": kind} for one, kind in attributes.items()],  # type: ignore[misc]
        KeySchema=[{"AttributeName": one, "KeyType": kind} for one, kind in zip(keys, kinds, strict=False)],  # type: ignore[misc]
        GlobalSecondaryIndexes=[
            {
                "IndexName": INDEX,
                "KeySchema": [
                    {"AttributeName": "BookingDateUTC", "KeyType": "HASH"},
                    {"AttributeName": "BookingTimeUTC", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "ALL"},
            }
        ],
    )
    return name


@pytest.mark.parametrize("flow", ALL_FLOWS)
@pytest.mark.parametrize(
    ("types", "keys", "ids"),
    [
        (
            ("S", "N"),
            [({"S": "zß\u0001😀"}, {"N": "12345678901234567890123456789012345678"}), ({"S": "b"}, {"N": "-0.5"})],
            ['{"Serial":-0.5,"Shard":"b"}', '{"Serial":12345678901234567890123456789012345678,"Shard":"zß\\u0001😀"}'],
        ),
        (("N", None), [({"N": "7"}, None), ({"N": "10"}, None)], ['{"Shard":10}', '{"Shard":7}']),
        (
            ("B", "S"),
            [({"B": b"\x00\xff"}, {"S": "x"}), ({"B": b"\xfe"}, {"S": 'q"uote'})],
            ['{"Serial":"q\\"uote","Shard":"/g=="}', '{"Serial":"x","Shard":"AP8="}'],
        ),
    ],
)
def test_other_keys_than_one_string(rig: Rig, flow: str, types: Any, keys: Any, ids: list[str]) -> None:
    world = rig.world
    table = composite_table(world, *types)
    for number, (shard, serial) in enumerate(keys):
        item: Any = booking("unused", T.format(number), Id=None, member=number, Shard=shard)
        if serial is not None:
            item["Serial"] = serial
        world.dynamodb.put_item(TableName=table, Item=item)
    counts = assert_completed(rig.run(flow, source__table=table, dispatch__page_size="1"))
    assert (counts.claimed, counts.confirmed) == (2, 2)
    assert sorted(rig.claimed()) == sorted(ids)
    again = assert_completed(rig.run(flow, source__table=table))
    assert (again.claimed, again.already_claimed) == (0, 2)


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_composite_key_is_recovered_from_the_ledger(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    world = rig.world
    table = composite_table(world, "S", "N")
    item: Any = booking("unused", T.format(1), Id=None, Shard={"S": "ü\u0000"}, Serial={"N": "1.50"})
    world.dynamodb.put_item(TableName=table, Item=item)
    proxy.rules.append(Rule(on("PUT object"), lambda request, forward, closing: None))
    assert rig.run(flow, endpoint=proxy.url, source__table=table, dispatch__lease="8s").outcome == "failed"
    counts = assert_completed(rig.run(flow, source__table=table))
    assert (counts.recovered, counts.claimed, counts.already_claimed) == (1, 0, 1)
    assert rig.entry_states() == {"confirmed": 1}


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_names_that_bite(rig: Rig, flow: str) -> None:
    """Case 10: 50 records, one with NUL in its name, one with an escaped lone surrogate typed as text."""
    odd = {"r00": "null\u0000byte", "r01": "typed \\ud800 text", "r02": "emoji 😀 \u2028", "r03": '\x7f\x1f"\\/'}
    rig.world.put_many(
        booking(f"r{n:02d}", T.format(n), member=n % 7, Name=odd.get(f"r{n:02d}", f"name {n}")) for n in range(50)
    )
    rig.world.put_many(
        [booking("id\u0000nul", T.format(55)), booking("id😀\u2028", T.format(56)), booking("\\ud800", T.format(57))]
    )
    counts = assert_completed(rig.run(flow, dispatch__page_size="7"))
    assert (counts.claimed, counts.set_aside) == (53, 0)
    sent = [one for body in rig.world.objects().values() for one in json.loads(body)["records"]]
    names = {one["Id"]: one.get("Name") for one in sent}
    assert len(sent) == 53
    assert {name: names[name] for name in odd} == odd
    assert {"id\u0000nul", "id😀\u2028", "\\ud800"} <= set(names)
    assert sorted(rig.claimed()) == sorted(names)


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_group_values_that_bite_reach_the_message_in_ascii(rig: Rig, flow: str) -> None:
    values = ["a\u0000b", "😀", '"records":[', "\ufffe", "ÿ\u2028"]
    rig.world.put_many(booking(f"r{n}", T.format(n), shop=value) for n, value in enumerate(values))
    assert_completed(rig.run(flow))
    raw = [one["Body"] for one in rig.world.receive_all("reward-point")]
    assert all(one.isascii() for one in raw)
    assert sorted(json.loads(one)["group"]["ShopId"] for one in raw) == sorted(values)
    for body in rig.world.objects().values():
        document = json.loads(body)
        assert document["group"]["ShopId"] == document["records"][0]["ShopId"]
        assert json.dumps(document["group"]["ShopId"], ensure_ascii=False).encode() in body


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_every_type_survives_to_the_object(rig: Rig, flow: str) -> None:
    digits = "1234567890123456789012345678901234567.8"
    rig.world.put(
        booking(
            "r1",
            T.format(1),
            Amount={"N": digits},
            Tiny={"N": "0.00000000000000000000000000000000000001"},
            Huge={"N": "9e30"},
            Trailing={"N": "1.500"},
            Raw={"B": b"\x00\xff\x10"},
            Numbers={"NS": ["10", "9", "-1"]},
            Texts={"SS": ["b", "a", "ü", "B"]},
            Blobs={"BS": [b"\xff", b"\x00"]},
            Nothing={"NULL": True},
            Yes={"BOOL": True},
            Nested={
                "M": {"z": {"L": [{"N": "1"}, {"M": {"k": {"NULL": True}}}]}, "a": {"SS": ["y", "x"]}, "e": {"M": {}}}
            },
            Empty={"S": ""},
        )
    )
    assert_completed(rig.run(flow))
    ((body),) = rig.world.objects().values()
    text = body.decode()
    for expected in (
        f'"Amount":{digits}',
        '"Tiny":0.00000000000000000000000000000000000001',
        '"Huge":9000000000000000000000000000000',
        '"Trailing":1.5,',
        f'"Raw":"{base64.b64encode(bytes([0, 255, 16])).decode()}"',
        '"Numbers":[-1,10,9]',  # by the bytes of their canonical JSON
        '"Texts":["B","a","b","ü"]',
        '"Blobs":["/w==","AA=="]',
        '"Nothing":null',
        '"Yes":true',
        '"Nested":{"a":["x","y"],"e":{},"z":[1,{"k":null}]}',
        '"Empty":""',
    ):
        assert expected in text


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_one_bad_record_never_sinks_its_window(rig: Rig, flow: str) -> None:
    """I12: each cause, and the good ones go on; mended, each finding closes."""
    world = rig.world
    bad = {
        "group": booking("b1", T.format(1), MemberId=None),
        "null": booking("b2", T.format(2), ShopId={"NULL": True}),
        "empty": booking("b3", T.format(3), ShopId=""),
        "no route": booking("b4", T.format(4), RewardType=None),
        "unknown route": booking("b5", T.format(5), type="Voucher"),
        "time": booking("b6", "2026-09-17T15:06:00.1234567890Z"),
        "zone": booking("b7", "2026-09-17T15:07:00+01:00"),
        "large": booking("b8", T.format(8), shop="x" * 300_000),
    }
    world.put_many([*bad.values(), booking("good", T.format(59))])
    limit = {"MaximumMessageSize": "262144"}
    world.sqs.set_queue_attributes(QueueUrl=world.queue_url("reward-point"), Attributes=limit)  # type: ignore[arg-type]
    report = rig.run(flow)
    counts = assert_completed(report)
    assert (counts.set_aside, counts.claimed) == (8, 1)
    causes = dict(rig.rows("SELECT convert_from(record_id, 'UTF8'), cause FROM findings"))  # type: ignore[arg-type]
    assert causes == {
        "b1": "missing_attribute",
        "b2": "missing_attribute",
        "b3": "missing_attribute",
        "b4": "missing_attribute",
        "b5": "unknown_route",
        "b6": "unreadable_time",
        "b7": "unreadable_time",
        "b8": "too_large",
    }
    assert report.open_findings == 8
    assert all_records(world.objects()) == ["good"]
    again = rig.run(flow)
    assert (again.open_findings, again.counts.set_aside) == (8, 8)
    assert len(rig.findings()) == 8
    world.update("b1", MemberId=5)
    world.update("b6", RewardStatus="Rewarded")
    report = rig.run(flow)
    assert assert_completed(report).claimed == 1
    assert report.open_findings == 6
    states = rig.rows("SELECT state, count(*) FROM findings GROUP BY state ORDER BY state")
    assert states == [("closed", 2), ("open", 6)]
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_an_answer_with_a_lone_surrogate_is_sent_escaped(rig: Rig, proxy: FaultProxy, flow: str) -> None:
    """JSON can say what UTF-8 cannot; whoever wrote such an item must not sink the window."""
    rig.world.put_many([booking("r1", T.format(1), Name="MARK"), booking("r2", T.format(2))])
    proxy.rules.append(Rule(on("Query", "BatchGetItem"), rewrite(lambda body: body.replace(b"MARK", b"\\ud83d"))))
    counts = assert_completed(rig.run(flow, endpoint=proxy.url))
    assert counts.claimed == 2
    assert any(b'"Name":"\\ud83d"' in body for body in rig.world.objects().values())


# Pages


def pages_of(*answers: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Answer the n-th Query with the n-th of these, and then for ever with the last."""
    calls = count()
    return lambda request: answers[min(next(calls), len(answers) - 1)]


def key_after(item: Any) -> Any:
    return {name: item[name] for name in ("Id", "BookingDateUTC", "BookingTimeUTC")}


@pytest.mark.parametrize("flow", ALL_FLOWS)
@pytest.mark.parametrize("end", [{}, {"LastEvaluatedKey": {}}, {"LastEvaluatedKey": None}])
def test_empty_pages_with_a_key_go_on_and_an_empty_key_ends(rig: Rig, flow: str, end: dict[str, Any]) -> None:
    first, second = booking("r1", T.format(1)), booking("r2", T.format(2))
    rig.world.put_many([first, second])
    query = pages_of(
        {"Items": [], "LastEvaluatedKey": key_after(booking("k0", T.format(0)))},
        {"Items": [first], "LastEvaluatedKey": key_after(first)},
        {"Items": [], "LastEvaluatedKey": key_after(booking("k1", T.format(1)))},
        {"Items": [second], **end},
    )
    with query_server(rig.world.endpoint, query) as wire:
        counts = assert_completed(rig.run(flow, endpoint=wire.url))
        assert wire.count("Query") == 4
    assert (counts.pages, counts.claimed) == (4, 2)
    journal = rig.rows(
        "SELECT number, evaluated, cursor_json IS NULL, next_json IS NULL, done_at IS NULL FROM pages ORDER BY 1"
    )
    assert journal == [
        (1, 0, True, False, False),
        (2, 1, False, False, False),
        (3, 0, False, False, False),
        (4, 1, False, True, False),
    ]


@pytest.mark.parametrize("flow", ALL_FLOWS)
@pytest.mark.parametrize("keys", ["AA", "ABAB", "AAA", "ABCB"])
def test_a_key_that_repeats_stops_the_run(rig: Rig, flow: str, keys: str) -> None:
    items = {name: booking(name, T.format(n), member=n) for n, name in enumerate("ABC")}
    rig.world.put_many(items.values())
    query = pages_of(*({"Items": [items[name]], "LastEvaluatedKey": key_after(items[name])} for name in keys))
    with query_server(rig.world.endpoint, query) as wire:
        report = rig.run(flow, endpoint=wire.url)
        assert wire.count("Query") <= len(keys)
    assert report.outcome == "failed"
    assert isinstance(report.error, CorruptError)
    distinct = sorted(set(keys))
    sent = distinct if flow == "paged" else []  # what had been sent before stays
    assert all_records(rig.world.objects()) == sent
    assert rig.entry_states() == ({"confirmed": len(sent)} if sent else {})
    assert rig.value("SELECT completed_at FROM windows") is None


def test_the_cursor_is_carried_from_page_to_page(rig: Rig, proxy: FaultProxy) -> None:
    rig.world.put_many([booking(f"r{n}", T.format(n), member=n) for n in range(7)])
    assert_completed(rig.run("staged", endpoint=proxy.url, dispatch__page_size="3"))
    queries = [json.loads(body) for name, body in proxy.requests if name.endswith(".Query")]
    assert [one["Limit"] for one in queries] == [3, 3, 3]
    assert [one.get("ExclusiveStartKey", {}).get("Id") for one in queries] == [None, {"S": "r2"}, {"S": "r5"}]


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_the_window_that_ends_at_midnight(rig: Rig, flow: str) -> None:
    inside = {
        "start": "2026-09-17T23:00:00Z",
        "start2": "2026-09-17T23:00:00.000+00:00",
        "last": "2026-09-17T23:59:59.999999999Z",
        "end": "2026-09-18T00:00:00Z",
        "end2": "2026-09-18T00:00:00.0000000+00:00",
        "end3": "2026-09-18T00:00:00+00:00",
    }
    beyond = {
        "early": "2026-09-17T22:59:59.999999999Z",
        "late": "2026-09-18T00:00:00.000000001Z",
        "later": "2026-09-18T00:00:01Z",
    }
    rig.world.put_many(booking(name, time) for name, time in (inside | beyond).items())
    counts = assert_completed(rig.run(flow, window="2026-09-17T23:00:00Z", dispatch__page_size="2"))
    assert all_records(rig.world.objects()) == sorted(inside)
    assert counts.evaluated == len(inside) + counts.outside
    assert (counts.due, counts.claimed) == (6, 6)
    counts = assert_completed(rig.run(flow, window="2026-09-18T00:00:00Z"))
    assert (counts.claimed, counts.already_claimed) == (2, 3)
    rig.assert_books_balance()


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_on_the_hour_is_one_job(rig: Rig, flow: str) -> None:
    """Case 4."""
    rig.world.put(booking("r1", "2026-09-17T16:00:00Z"))
    counts = assert_completed(rig.run(flow))
    assert (counts.claimed, counts.already_claimed) == (1, 0)
    counts = assert_completed(rig.run(flow, window="2026-09-17T16:00:00Z"))
    assert (counts.claimed, counts.already_claimed) == (0, 1)
    assert rig.world.message_count("reward-point") == 1
    assert len(rig.world.objects()) == 1


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_rebooked_record_is_sent_again_with_its_new_time(rig: Rig, flow: str) -> None:
    """Case 11."""
    rig.world.put(booking("r1", "2026-09-17T15:30:00Z"))
    assert assert_completed(rig.run(flow)).claimed == 1
    rig.world.update("r1", BookingTimeUTC="2026-09-17T18:20:00Z")
    assert assert_completed(rig.run(flow, window="2026-09-17T18:00:00Z")).claimed == 1
    assert len(rig.world.objects()) == 2
    assert rig.claimed() == ["r1", "r1"]


@pytest.mark.parametrize("flow", ALL_FLOWS)
def test_a_record_that_comes_late_is_sent_alone(rig: Rig, flow: str) -> None:
    rig.world.put(booking("r1", T.format(1)))
    assert_completed(rig.run(flow))
    rig.world.put(booking("r2", T.format(2)))
    counts = assert_completed(rig.run(flow))
    assert (counts.claimed, counts.already_claimed, counts.entries) == (1, 1, 1)
    assert sorted(records_of(rig.world.objects()).values()) == [["r1"], ["r2"]]


def test_what_is_wrong_with_the_world_is_said_before_anything_is_written(rig: Rig) -> None:
    for key, value, named in [
        ("source__table", "no-such-table", "no-such-table"),
        ("source__index", "no-such-index", "no-such-index"),
        ("source__date_attribute", "Other", "Other"),
        ("objects__bucket", "no-such-bucket", "no-such-bucket"),
        ("routes", '{"Point": {"job": "J", "queue": "no-such-queue"}}', "no-such-queue"),
    ]:
        with pytest.raises(InputError) as refusal:
            rig.run(**{key: value})
        assert named in str(refusal.value)
        assert "\n" not in str(refusal.value)
    assert rig.rows("SELECT * FROM runs") == []


def test_forwarding_changes_nothing(rig: Rig, proxy: FaultProxy) -> None:
    proxy.rules.append(Rule(on("Query"), forward))
    assert_completed(rig.run(endpoint=proxy.url))
