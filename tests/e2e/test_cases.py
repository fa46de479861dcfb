"""Situations that people have met, by their number in the list of cases; those about crashes are in tests/fault."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.aws_servers import World, booking
from tests.fault.windows import drained, hours_ago
from tests.product import Product, Running, until
from tests.rig import FLOWS, WINDOW, Rig, all_records, records_of
from tests.wire import FaultProxy, Rule, callback, on, query_server

PAGING = ["staged", "paged"]
SEVEN = Path(__file__).parents[2] / "ops" / "seed" / "seven.jsonl"
HOUR = WINDOW[:13]


@pytest.fixture(params=["ministack", "moto"])
def either_world(request: pytest.FixtureRequest) -> World:
    return World(request.getfixturevalue(request.param))


def load_seven(world: World) -> None:
    world.put_many(json.loads(line)["Item"] for line in SEVEN.read_text().splitlines())


def groups(world: World) -> list[list[str]]:
    return sorted(records_of(world.objects()).values())


# 1


@pytest.mark.parametrize("flow", FLOWS)
def test_case_1_seven_records(either_world: World, ledger_url: str, tmp_path: Path, flow: str) -> None:
    load_seven(either_world)
    product = Product(either_world, ledger_url, tmp_path, flow=flow)
    done = product.run("dispatch", "--execute-time", "2026-09-17T16:01:10Z", "--json").ended(0)
    counts = {"evaluated": 5, "outside": 0, "not_due": 1, "set_aside": 0, "due": 4, "already_claimed": 0}
    done.books(flow=flow, outcome="completed", page_size=1000, pages=1, claimed=4, entries=3, confirmed=3, **counts)
    assert done.document["window"] == {"start": WINDOW, "end": "2026-09-17T16:00:00Z"}
    objects = either_world.objects()
    assert groups(either_world) == [["R2", "R1"], ["R3"], ["R5"]]
    point, coupon = either_world.messages("reward-point"), either_world.messages("reward-ecoupon")
    sent = {one["object"]["key"]: one for one in point + coupon}
    assert set(sent) == set(objects)
    assert sorted(records_of({key: objects[key] for key in (one["object"]["key"] for one in point)}).values()) == [
        ["R2", "R1"],
        ["R5"],
    ]
    assert [one["job"] for one in coupon] == ["RewardECoupon"]
    for key, body in objects.items():
        document, message = json.loads(body), sent[key]
        for name in ("idempotency_key", "content_hash", "job", "pipeline", "window", "group", "generation"):
            assert document[name] == message[name], name
        assert message["records"] == len(document["records"])
        metadata = either_world.object_metadata(key)
        assert metadata["idempotency-key"] == document["idempotency_key"]
    again = product.dispatch(WINDOW).ended(0)
    again.books(due=4, already_claimed=4, claimed=0, entries=0, confirmed=0, recovered=0)
    assert drained(either_world) == []


# 4


@pytest.mark.parametrize(
    ("flow", "spelling", "order"),
    [
        *((flow, "16:00:00Z", (15, 16)) for flow in FLOWS),
        ("staged", "16:00:00.000Z", (16, 15)),
        ("staged", "16:00:00.0000000+00:00", (15, 16)),
        ("staged", "16:00:00.0000000+00:00", (16, 15)),
    ],
)
def test_case_4_exactly_on_the_hour(
    product: Product, world: World, rig: Rig, flow: str, spelling: str, order: Sequence[int]
) -> None:
    world.put(booking("edge", f"2026-09-17T{spelling}"))
    first, second = (product.dispatch(f"2026-09-17T{hour}:00:00Z", flow=flow).ended(0) for hour in order)
    first.books(due=1, claimed=1, already_claimed=0, confirmed=1)
    second.books(due=1, claimed=0, already_claimed=1, entries=0)
    assert len(drained(world)) == 1
    assert rig.claimed() == ["edge"]


def test_case_4_exactly_at_midnight(product: Product, world: World, rig: Rig) -> None:
    """The windows around midnight find it under two dates' worth of keys."""
    world.put(booking("edge", "2026-09-18T00:00:00Z"))
    product.dispatch("2026-09-17T23:00:00Z").ended(0).books(due=1, claimed=1)
    product.dispatch("2026-09-18T00:00:00Z").ended(0).books(due=1, claimed=0, already_claimed=1)
    assert len(drained(world)) == 1


# 5


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("page_size", ["1", "2"])
def test_case_5_killed_after_page_3_then_changed(
    product: Product, world: World, rig: Rig, flow: str, page_size: str
) -> None:
    """One group on pages 1, 3 and 5; after the kill one of it is cancelled, one moved, the third stays."""
    size = int(page_size)
    filler = iter(range(10))

    def page(first: str) -> Iterator[tuple[str, int]]:
        yield first, 1
        for _ in range(size - 1):
            yield f"f{next(filler)}", 7

    names = [*page("stays"), *page("other1"), *page("cancelled"), *page("other2"), *page("moved")]
    members = {"other1": 8, "other2": 9}
    for minute, (name, member) in enumerate(names, 1):
        world.put(booking(name, f"{HOUR}:{minute:02d}:00Z", member=members.get(name, member)))
    victims: list[Running] = []
    with FaultProxy(world.endpoint) as wire:
        # page 4 is asked for once page 3 was fetched and kept
        wire.rules.append(Rule(on("Query"), callback(lambda _: victims[0].kill()), times=1, skip=3))
        victims.append(
            product.start_dispatch(
                WINDOW, endpoint=wire.url, flow=flow, dispatch__page_size=page_size, dispatch__lease="2s"
            )
        )
        victims[0].done().ended(-9)
    early = records_of(world.objects())
    assert bool(early) == (flow == "paged"), "nothing leaves before the last page, but for the paged flow"
    world.update("cancelled", RewardStatus="Cancelled")
    world.update("moved", BookingTimeUTC=f"{HOUR}:00:30.5Z")
    until(lambda: rig.value("SELECT lease_until <= ledger_now() FROM windows"), "the lease ends")
    done = product.dispatch(WINDOW, flow=flow, dispatch__page_size=page_size).ended(0)
    done.books(outcome="completed", recovered=0)
    objects = world.objects()
    messages = drained(world)
    assert len(messages) == len(objects) == len({one["idempotency_key"] for one in messages})
    if flow == "paged":
        assert all_records(objects).count("moved") == 1
        return  # what its killed run had sent by then stays sent
    assert "cancelled" not in all_records(objects)
    mine = [ids for ids in records_of(objects).values() if "stays" in ids]
    assert mine == [["moved", "stays"]], "whole, in order of booking time, without the cancelled one"
    assert sorted(all_records(objects)) == sorted(name for name, _ in names if name != "cancelled")
    assert rig.value("SELECT count(*) FROM staged_records") == 0
    (moved_ns,) = rig.rows("SELECT booking_ns FROM claims WHERE record_id = 'moved'")
    assert moved_ns == (1789657230500000000,)


# 10


@pytest.mark.parametrize("flow", FLOWS)
def test_case_10_nul_and_a_surrogate_typed_as_text(product: Product, world: World, rig: Rig, flow: str) -> None:
    names = {"n07": "Zoë\0Null", "n23": "typed \\ud800 as text", "n31": "😀 \u2028 \x7f \x1b[2J"}
    world.put_many(
        booking(
            f"n{number:02d}",
            f"{HOUR}:{number:02d}:00Z",
            member=number,
            Name=names.get(f"n{number:02d}", "plain"),
            Amount={"N": "12345678901234567890123456789012345678"},
        )
        for number in range(50)
    )
    done = product.dispatch(WINDOW, flow=flow, dispatch__page_size="20").ended(0)
    done.books(due=50, claimed=50, entries=50, confirmed=50, set_aside=0)
    objects = world.objects()
    found = {one["Id"]: one["Name"] for body in objects.values() for one in json.loads(body)["records"]}
    assert len(found) == 50
    assert {name: found[name] for name in names} == names
    whole = b"".join(objects.values())
    assert b"Zo\xc3\xab\\u0000Null" in whole
    assert b"typed \\\\ud800 as text" in whole
    assert whole.count(b'"Amount":12345678901234567890123456789012345678,') == 50
    assert len(drained(world)) == 50


def test_case_10_in_what_goes_into_the_message(product: Product, world: World, rig: Rig) -> None:
    """The group's values travel in the message, where the queue refuses such characters raw."""
    strange = "M\0\x01 \\ud800 \ufffe 😀"
    world.put(booking("r1", f"{HOUR}:01:00Z", member=strange))
    product.dispatch(WINDOW).ended(0).books(claimed=1, confirmed=1)
    (message,) = world.messages("reward-point")
    assert message["group"]["MemberId"] == strange
    shown = product.run("show", "entry", message["entry_id"])
    assert shown.code == 0
    assert "\0" not in shown.out
    assert "\x1b" not in shown.out
    assert product.run("show", "entry", message["entry_id"], "--json").ended(0).document["group"]["MemberId"] == strange


# 12


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a group of three"])
def test_case_12_changed_between_read_and_send(
    product: Product, world: World, rig: Rig, flow: str, *, alone: bool
) -> None:
    names = ["changes"] if alone else ["first", "changes", "last"]
    world.put_many(booking(name, f"{HOUR}:{minute:02d}:00Z") for minute, name in enumerate(names, 1))
    with FaultProxy(world.endpoint) as wire:
        change = callback(lambda _: world.update("changes", RewardStatus="Cancelled"))
        wire.rules.append(Rule(on("BatchGetItem"), change, times=1))
        done = product.dispatch(WINDOW, endpoint=wire.url, flow=flow).ended(0)
    kept = [name for name in names if name != "changes"]
    done.books(evaluated=len(names), not_due=1, due=len(kept), claimed=len(kept), entries=int(bool(kept)))
    assert list(records_of(world.objects()).values()) == ([kept] if kept else [])
    assert len(drained(world)) == bool(kept)
    assert rig.claimed() == kept


def test_case_12_deleted_between_read_and_send(product: Product, world: World, rig: Rig) -> None:
    world.put_many(booking(name, f"{HOUR}:01:00Z") for name in ("goes", "stays"))
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("BatchGetItem"), callback(lambda _: world.delete("goes")), times=1))
        product.dispatch(WINDOW, endpoint=wire.url).ended(0).books(evaluated=2, not_due=1, due=1)
    assert rig.claimed() == ["stays"]


def test_case_12_while_verify_due_is_off_the_index_is_believed(product: Product, world: World, rig: Rig) -> None:
    world.put(booking("changes", f"{HOUR}:01:00Z"))
    with FaultProxy(world.endpoint) as wire:
        done = product.dispatch(WINDOW, endpoint=wire.url, dispatch__verify_due="false").ended(0)
        assert wire.count("BatchGetItem") == 0
    done.books(claimed=1, confirmed=1)


def test_case_12_found_out_when_a_dead_run_is_finished(product: Product, world: World, rig: Rig) -> None:
    """What was opened, never sent, and is no longer due is void; its claim is free until it is due again."""
    world.put_many([booking("changes", f"{HOUR}:01:00Z", member=1), booking("stays", f"{HOUR}:02:00Z", member=2)])
    victims: list[Running] = []
    with FaultProxy(world.endpoint) as wire:
        wire.rules.append(Rule(on("SendMessageBatch", "PUT object"), callback(lambda _: victims[0].kill()), times=1))
        victims.append(product.start_dispatch(WINDOW, endpoint=wire.url, dispatch__lease="1s"))
        victims[0].done().ended(-9)
    assert rig.entry_states() == {"pending": 2}
    world.update("changes", RewardStatus="Cancelled")
    until(lambda: rig.value("SELECT lease_until <= ledger_now() FROM windows"), "the lease ends")
    product.dispatch(WINDOW).ended(0).books(outcome="completed", recovered=1, not_due=1)
    assert rig.entry_states() == {"confirmed": 1, "void": 1}
    assert rig.claimed() == ["stays"]
    world.update("changes", RewardStatus="WaitToReward")
    product.dispatch(WINDOW).ended(0).books(claimed=1, confirmed=1)
    assert len(drained(world)) == 2
    rig.assert_books_balance()


# 21


RECORD = {
    "RewardStatus": {"S": "WaitToReward"},
    "ShopId": {"N": "1001"},
    "PromotionEngineId": {"N": "3001"},
    "RewardType": {"S": "Point"},
    "Filler": {"S": "x" * 800},
}


def synthetic(total: int, members: int, page: int = 1000) -> Any:
    """Answer Query with `total` records of about one kilobyte in `members` groups."""

    def item(number: int) -> dict[str, Any]:
        seconds, fraction = divmod(number, 10)
        time = f"{HOUR}:{seconds // 60:02d}:{seconds % 60:02d}.{fraction}Z"
        key = {"Id": {"S": f"id-{number:06d}"}, "BookingDateUTC": {"S": HOUR[:10]}, "BookingTimeUTC": {"S": time}}
        return key | {"MemberId": {"N": str(number % members)}, "OrderTime": {"S": time}} | RECORD

    def query(request: Any) -> dict[str, Any]:
        start = request.get("ExclusiveStartKey")
        first = int(start["Id"]["S"][3:]) + 1 if start else 0
        items = [item(number) for number in range(first, min(first + page, total))]
        answer: dict[str, Any] = {"Items": items, "Count": len(items), "ScannedCount": len(items)}
        if first + page < total:
            answer["LastEvaluatedKey"] = {name: items[-1][name] for name in ("Id", "BookingDateUTC", "BookingTimeUTC")}
        return answer

    return query


def test_case_21_one_group_of_20000_is_one_job(product: Product, world: World, rig: Rig) -> None:
    with query_server(world.endpoint, synthetic(20_000, members=1)) as wire:
        done = product.dispatch(
            WINDOW, endpoint=wire.url, dispatch__page_size="1000", dispatch__verify_due="false", dispatch__lease="60s"
        )
    done.ended(0).books(claimed=20_000, entries=1, confirmed=1, pages=20)
    (message,) = drained(world)
    assert message["records"] == 20_000
    ((key, body),) = world.objects().items()
    assert key == message["object"]["key"]
    ids = [one["Id"] for one in json.loads(body)["records"]]
    assert ids == [f"id-{number:06d}" for number in range(20_000)]
    rig.assert_books_balance()


# 25


def test_case_25_first_install_beside_an_old_dispatcher(product: Product, world: World, rig: Rig) -> None:
    """`init` writes this hour: what was due before is the old dispatcher's; a window given by name is a person's."""
    earlier = hours_ago(2)
    world.put(booking("old", f"{earlier[:13]}:10:00Z"))
    product.run("init").ended(0)
    due = product.run("dispatch", "--due", "--json", schedule__catch_up="48h").ended(0)
    assert due.document == {"runs": []}
    assert drained(world) == []
    assert rig.rows("SELECT 1 FROM runs") == []
    product.dispatch(earlier).ended(0).books(claimed=1)


# 26


@pytest.mark.parametrize("flow", FLOWS)
def test_case_26_the_index_lags_behind_a_move(product: Product, world: World, rig: Rig, flow: str) -> None:
    """The index still shows 15:10 while the table has moved the record to 16:20, or within the hour to 15:40."""
    old = booking("moved", f"{HOUR}:10:00Z")
    inside = booking("within", f"{HOUR}:11:00Z", member=2)
    world.put_many([booking("moved", "2026-09-17T16:20:00Z"), booking("within", f"{HOUR}:40:00Z", member=2)])
    with query_server(world.endpoint, lambda _: {"Items": [old, inside], "Count": 2, "ScannedCount": 2}) as wire:
        first = product.dispatch(WINDOW, endpoint=wire.url, flow=flow).ended(0)
    first.books(evaluated=2, claimed=1, due=1)
    second = product.dispatch("2026-09-17T16:00:00Z", flow=flow).ended(0)
    second.books(claimed=1)
    assert len(drained(world)) == 2
    times = rig.rows("SELECT record_id, booking_ns FROM claims ORDER BY record_id")
    assert times == [(b"moved", 1789662000000000000), (b"within", 1789659600000000000)]
    again = product.dispatch(WINDOW, flow=flow).ended(0)
    again.books(claimed=0, already_claimed=1)


@pytest.mark.parametrize("flow", FLOWS)
def test_case_26_the_index_shows_both_times(product: Product, world: World, rig: Rig, flow: str) -> None:
    """Two sightings of one record in one window: sent once, at the table's time."""
    now = booking("moved", f"{HOUR}:40:00Z")
    before = booking("moved", f"{HOUR}:10:00Z")
    world.put(now)
    with query_server(world.endpoint, lambda _: {"Items": [before, now], "Count": 2, "ScannedCount": 2}) as wire:
        product.dispatch(WINDOW, endpoint=wire.url, flow=flow).ended(0).books(evaluated=2, claimed=1, entries=1)
    assert rig.rows("SELECT record_id, booking_ns FROM claims") == [(b"moved", 1789659600000000000)]
    assert len(drained(world)) == 1


@pytest.mark.parametrize("flow", FLOWS)
def test_case_10_a_lone_surrogate_that_dynamodb_escapes(product: Product, world: World, rig: Rig, flow: str) -> None:
    """Text that is no UTF-8 comes as an escape on the wire; whatever becomes of that record, it sinks no other."""
    good = booking("good", f"{HOUR}:01:00Z", member=1)
    odd = booking("odd", f"{HOUR}:02:00Z", member=2, Name="half \ud800 of a pair")
    page = {"Items": [good, odd], "Count": 2, "ScannedCount": 2}
    with query_server(world.endpoint, lambda _: json.dumps(page).encode()) as wire:
        done = product.dispatch(WINDOW, endpoint=wire.url, flow=flow, dispatch__verify_due="false")
    assert done.code in {0, 3}, done.err
    books = done.books(evaluated=2, outcome="completed")
    assert books["claimed"] + books["set_aside"] == 2
    assert "good" in rig.claimed()
    for body in world.objects().values():
        body.decode("utf-8")
        json.loads(body)
    assert len(drained(world)) == books["claimed"]
