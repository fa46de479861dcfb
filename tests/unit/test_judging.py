"""Each verdict over one item, each reason for which it cannot be used, and in which order they are asked."""

from typing import Any

import msgspec
import pytest

from dispatch.grouping import distinct, group_of, group_records
from dispatch.items import Item, TableSchema
from dispatch.judging import Left, Rules, group_values, judge
from ledger.facts import BadRecord, Record
from ledger.instants import parse_window
from tests.aws_servers import booking

ROOM = 1000
RULES = Rules(
    window=parse_window("2026-09-17T15:00:00Z"),
    schema=TableSchema({"Id": "S"}, projects_all=True),
    time_attribute="BookingTimeUTC",
    status_attribute="RewardStatus",
    due_status="WaitToReward",
    group_by=("ShopId", "MemberId", "PromotionEngineId"),
    order_by="OrderTime",
    route_by="RewardType",
    message_room={"Point": ROOM, "ECoupon": ROOM, "7": ROOM},
)
TIME = "2026-09-17T15:30:00Z"


def record(item: Item) -> Record:
    verdict = judge(item, RULES)
    assert isinstance(verdict, Record), verdict
    return verdict


def test_a_due_record() -> None:
    got = record(booking("r1", TIME, Note={"N": "1.50"}))
    assert (got.record_id, got.booking_ns) == ("r1", RULES.window.start_ns + 1800 * 10**9)
    assert got.body == (
        b'{"BookingDateUTC":"2026-09-17","BookingTimeUTC":"2026-09-17T15:30:00Z","Id":"r1","MemberId":2001,"Note":1.5,'
        b'"OrderTime":"2026-09-17T10:00:00Z","PromotionEngineId":3001,"RewardStatus":"WaitToReward","RewardType":"Point",'
        b'"ShopId":1001}'
    )


@pytest.mark.parametrize(
    ("time", "inside"),
    [
        ("2026-09-17T14:59:59.999999999Z", False),
        ("2026-09-17T15:00:00Z", True),
        ("2026-09-17T15:00:00.0000000+00:00", True),
        ("2026-09-17T16:00:00Z", True),
        ("2026-09-17T16:00:00.000000000Z", True),
        ("2026-09-17T16:00:00.000000001Z", False),
        ("2026-09-17T16:00:00.5+00:00", False),
    ],
)
def test_both_ends_are_inside(time: str, *, inside: bool) -> None:
    verdict = judge(booking("r1", time), RULES)
    assert isinstance(verdict, Record) if inside else verdict is Left.OUTSIDE


@pytest.mark.parametrize(
    "status",
    ["Rewarded", "", "waittoreward", "WaitToReward ", None, {"NULL": True}, {"N": "1"}, {"SS": ["WaitToReward"]}],
)
def test_any_other_status_is_not_due(status: Any) -> None:
    item = booking("r1", TIME)
    item.pop("RewardStatus")
    if status is not None:
        item["RewardStatus"] = status if isinstance(status, dict) else {"S": status}
    assert judge(item, RULES) is Left.NOT_DUE


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        *(
            ({name: value}, "missing_attribute")
            for name in (*RULES.group_by, "RewardType")
            for value in (None, {"NULL": True}, "")
        ),
        ({"RewardType": "Voucher"}, "unknown_route"),
        ({"RewardType": "point"}, "unknown_route"),
        ({"RewardType": {"BOOL": True}}, "unknown_route"),
        ({"RewardType": {"N": "8"}}, "unknown_route"),
        ({"BookingTimeUTC": "2026-09-17T15:30:00"}, "unreadable_time"),
        ({"BookingTimeUTC": "2026-09-17T15:30:00.1234567890Z"}, "unreadable_time"),
        ({"BookingTimeUTC": "2026-09-17T15:30:00+01:00"}, "unreadable_time"),
        ({"BookingTimeUTC": "2026-09-17T15:30:60Z"}, "unreadable_time"),
        ({"BookingTimeUTC": None}, "unreadable_time"),
        ({"BookingTimeUTC": {"N": "5"}}, "unreadable_time"),
        ({"ShopId": "x" * ROOM}, "too_large"),
        ({"ShopId": "\u0000" * (ROOM // 6)}, "too_large"),
        ({"ShopId": "😀" * (ROOM // 12)}, "too_large"),
    ],
)
def test_a_due_record_that_cannot_be_used(changes: dict[str, Any], cause: str) -> None:
    verdict = judge(booking("r1", TIME, **changes), RULES)
    assert isinstance(verdict, BadRecord)
    assert (verdict.record_id, verdict.cause) == ("r1", cause)
    assert "\n" not in verdict.detail
    assert verdict.detail


def test_what_is_large_but_fits_is_used() -> None:
    overhead = len('{"MemberId":2001,"PromotionEngineId":3001,"ShopId":""}')
    assert isinstance(judge(booking("r1", TIME, shop="x" * (ROOM - overhead)), RULES), Record)
    assert isinstance(judge(booking("r1", TIME, shop="x" * (ROOM - overhead + 1)), RULES), BadRecord)


def test_the_questions_are_asked_in_the_order_of_the_books() -> None:
    """Outside, then not due, then set aside: evaluated = outside + not_due + set_aside + due."""
    everything_wrong: dict[str, Any] = {"RewardType": None, "ShopId": None}
    assert judge(booking("r1", "2026-09-17T17:00:00Z", status="Rewarded", **everything_wrong), RULES) is Left.OUTSIDE
    assert judge(booking("r1", TIME, status="Rewarded", **everything_wrong), RULES) is Left.NOT_DUE
    assert judge(booking("r1", "nonsense", status="Rewarded", **everything_wrong), RULES) is Left.NOT_DUE
    verdict = judge(booking("r1", "nonsense", **everything_wrong), RULES)
    assert isinstance(verdict, BadRecord)
    assert (verdict.cause, verdict.booking_time) == ("unreadable_time", "nonsense")


@pytest.mark.parametrize("order", [None, {"NULL": True}, {"N": "1"}, "text", {"L": []}])
def test_any_order_value_will_do(order: Any) -> None:
    assert record(booking("r1", TIME, OrderTime=order)).record_id == "r1"


def test_a_record_without_its_status_or_time_never_raises() -> None:
    assert judge({"Id": {"S": "r1"}}, RULES) is Left.NOT_DUE


def test_group_values_are_read_back_from_the_body() -> None:
    for shop, text in [
        (1001, b"1001"),
        ({"N": "1.50"}, b"1.5"),
        ("\u0000ü", '"\\u0000ü"'.encode()),
        ({"L": [{"N": "1"}]}, b"[1]"),
    ]:
        values, route = group_values(record(booking("r1", TIME, ShopId=shop)).body, RULES)
        assert [bytes(one) for one in values] == [text, b"2001", b"3001"]
        assert route == "Point"
    assert group_values(record(booking("r1", TIME, RewardType={"N": "7"})).body, RULES)[1] == "7"


# Grouping


def test_groups_in_order_and_records_in_order() -> None:
    items = [
        booking("b", TIME, member=2),
        booking("a2", TIME, member=1, order="2026-09-17T11:00:00Z"),
        booking("a1", TIME, member=1, order="2026-09-17T10:00:00Z"),
        booking("a3", TIME, member=1, type="ECoupon"),
        booking("t", TIME, MemberId="1"),
        booking("ten", TIME, member=10),
    ]
    groups = group_records(map(record, items), RULES)
    assert [([one.record_id for one in group.records], group.route) for group in groups] == [
        (["a3"], "ECoupon"),
        (["a1", "a2"], "Point"),
        (["b"], "Point"),
        (["ten"], "Point"),
        (["t"], "Point"),
    ]
    assert groups[0].digest == groups[1].digest
    assert len({group.digest for group in groups}) == 4
    assert groups[1].values_json == b'{"MemberId":1,"PromotionEngineId":3001,"ShopId":1001}'
    assert group_of(groups[1].records, RULES) == groups[1]
    assert group_records([], RULES) == []


def test_distinct_keeps_the_first_sight() -> None:
    first = record(booking("r1", TIME))
    again = msgspec.structs.replace(record(booking("r1", "2026-09-17T15:30:00.0Z")), order_key=b"later")
    moved = record(booking("r1", "2026-09-17T15:31:00Z"))
    assert distinct([first, again, moved, again]) == ([first, moved], 2)
