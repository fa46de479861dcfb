"""Named steps of the order inside a group; the whole of it is tested by property."""

from itertools import pairwise
from typing import Any

from dispatch.ordering import group_key, order_key

IN_ORDER: list[dict[str, Any] | None] = [
    {"N": "-1E+125"},
    {"N": "-10"},
    {"N": "-9.5"},
    {"N": "-9"},
    {"N": "-0.5"},
    {"N": "-0.05"},
    {"N": "0"},
    {"N": "0.05"},
    {"N": "0.5"},
    {"N": "0.55"},
    {"N": "9"},
    {"N": "9.5"},
    {"N": "10"},
    {"N": "1E+125"},
    {"S": "0001-01-01T00:00:00+23:59"},
    {"S": "1969-12-31T23:59:59.9Z"},
    {"S": "1970-01-01T00:00:00Z"},
    {"S": "1970-01-01T00:00:00.00000000001Z"},
    {"S": "1970-01-01T00:00:00.5Z"},
    {"S": "1970-01-01T00:00:00.55Z"},
    {"S": "2026-09-17T12:00:00+08:00"},
    {"S": "2026-09-17T05:00:00Z"},
    {"S": ""},
    {"S": "\u0000"},
    {"S": "\u0000\u0000"},
    {"S": "\u0001"},
    {"S": "10"},
    {"S": "2026-09-17"},
    {"S": "9"},
    {"S": "a"},
    {"S": "a\u0000"},
    {"S": "ab"},
    {"S": "\ue000"},
    {"S": "\uffff"},
    {"S": "😀"},
    None,
]


def test_numbers_then_instants_then_text_then_nothing() -> None:
    for before, after in pairwise(IN_ORDER):
        assert order_key(before, 9, "z") < order_key(after, 0, "a"), (before, after)


def test_equal_values_fall_back_on_booking_time_and_then_on_the_id() -> None:
    same: list[list[dict[str, Any] | None]] = [
        [{"N": "10"}, {"N": "1E1"}, {"N": "10.0"}],
        [{"N": "0"}, {"N": "-0"}, {"N": "0E5"}],
        [{"S": "2026-09-17T12:00:00Z"}, {"S": "2026-09-17t20:00:00.000+08:00"}],
        [None, {"NULL": True}, {"BOOL": True}, {"L": []}],
    ]
    for values in same:
        for left in values:
            for right in values:
                assert order_key(left, 5, "a") == order_key(right, 5, "a")
                assert order_key(left, -5, "z") < order_key(right, 5, "a")
                assert order_key(left, 5, "a") < order_key(right, 5, "b")
    assert order_key(None, 5, "\ue000") < order_key(None, 5, "😀")
    assert order_key(None, -(2**63), "") < order_key(None, 2**63 - 1, "")


def test_groups_tell_number_and_text_apart_and_not_two_spellings_of_a_number() -> None:
    def key(plain: object, typed: dict[str, Any], route: str = "Point") -> bytes:
        return group_key([plain], route, [typed])

    assert key(1, {"N": "1"}) == key(1, {"N": "1.0"})
    assert key(1, {"N": "1"}) != key("1", {"S": "1"})
    assert key(1, {"N": "1"}) != key(1, {"N": "1"}, "ECoupon")
    assert key(2, {"N": "2"}) < key(10, {"N": "10"})
    assert group_key(["a", "b"], "r", [{"S": "a"}, {"S": "b"}]) != group_key(["ab", ""], "r", [{"S": "ab"}, {"S": ""}])
