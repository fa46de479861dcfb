"""The sort keys compare as bytes exactly as CONTRACT §4 orders records, and groups are told apart exactly."""

from decimal import Decimal
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.items import plain
from dispatch.ordering import group_key, order_key
from ledger.canonical import canonical_json
from ledger.instants import parse_instant

DIGITS = st.integers(-(10**38) + 1, 10**38 - 1)
NUMBERS = st.one_of(
    DIGITS.map(str),
    st.integers(-99, 99).map(str),
    st.builds(
        lambda digits, exponent: f"{digits}E{exponent}", st.integers(-(10**38) + 1, 10**38 - 1), st.integers(-130, 87)
    ),
    st.builds(
        lambda a, b: f"{a}.{b}", st.integers(-20, 20), st.sampled_from(["0", "5", "50", "05", "005", "000000001"])
    ),
    st.sampled_from(["0", "-0", "0.0", "1.0", "1", "-1", "1E+125", "-1E-130", "0.1", "0.10", "00012"]),
)
INSTANTS = st.builds(
    lambda date, time, fraction, zone: f"{date}{time}{fraction}{zone}",
    st.sampled_from(["2026-09-17", "2026-09-18", "0001-01-01", "9999-12-31"]),
    st.sampled_from(["T00:00:00", "T23:59:59", "t12:00:00", "T12:00:01"]),
    st.sampled_from(["", ".0", ".5", ".50", ".05", ".1234567", ".12345678901", ".123456789010"]),
    st.sampled_from(["Z", "z", "+00:00", "-00:00", "+02:00", "-23:59", "+23:59"]),
)
CODE_POINTS = st.characters(exclude_categories=())
TEXTS = st.one_of(
    st.text(CODE_POINTS, max_size=5),
    st.text(st.sampled_from(["\u0000", "a", "b", "\u00ff", "\ud800", "\udfff", "\ue000", "\uffff", "😀"]), max_size=4),
    st.sampled_from(
        [
            "",
            "2026-09-17",
            "2026-09-17T23:59:60Z",
            "2026-02-30T00:00:00Z",
            "2026-09-17T10:00:00",
            "2026-09-17T10:00:00Z ",
        ]
    ),
)
VALUES: st.SearchStrategy[dict[str, Any] | None] = st.one_of(
    NUMBERS.map(lambda text: {"N": text}),
    INSTANTS.map(lambda text: {"S": text}),
    TEXTS.map(lambda text: {"S": text}),
    st.sampled_from([None, {"NULL": True}]),
)
BOOKINGS = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))
Row = tuple[dict[str, Any] | None, int, str]
ROWS = st.tuples(VALUES, BOOKINGS, TEXTS)


def specified(row: Row) -> tuple[Any, ...]:
    """Say where a record stands, in exact arithmetic and code points."""
    value, booking_ns, identity = row
    tie = (booking_ns, [ord(one) for one in identity])
    if value is not None and "N" in value:
        return (0, Fraction(Decimal(value["N"])), *tie)
    if value is not None and "S" in value:
        try:
            seconds, fraction = parse_instant(value["S"])
        except ValueError:
            return (2, [ord(one) for one in value["S"]], *tie)
        return (1, seconds + (Fraction(int(fraction), 10 ** len(fraction)) if fraction else 0), *tie)
    return (3, 0, *tie)


@settings(max_examples=4000, deadline=None)
@given(left=ROWS, right=ROWS)
def test_two_records_compare_as_specified(left: Row, right: Row) -> None:
    wanted = (specified(left) > specified(right)) - (specified(left) < specified(right))
    keys = order_key(*left), order_key(*right)
    assert (keys[0] > keys[1]) - (keys[0] < keys[1]) == wanted


@settings(max_examples=1500, deadline=None)
@given(values=st.lists(NUMBERS, min_size=2, max_size=6))
def test_numbers_compare_as_numbers(values: list[str]) -> None:
    by_key = sorted(values, key=lambda text: order_key({"N": text}, 0, ""))
    assert [Fraction(Decimal(text)) for text in by_key] == sorted(Fraction(Decimal(text)) for text in values)


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(ROWS, max_size=15))
def test_sorting_by_key_is_sorting_as_specified(rows: list[Row]) -> None:
    def compare(left: Row, right: Row) -> int:
        return (specified(left) > specified(right)) - (specified(left) < specified(right))

    by_key = sorted(rows, key=lambda row: order_key(*row))
    wanted = sorted(rows, key=cmp_to_key(compare))
    assert [specified(row) for row in by_key] == [specified(row) for row in wanted]


GROUP_VALUES = st.one_of(
    NUMBERS.map(lambda text: {"N": text}),
    TEXTS.map(lambda text: {"S": text}),
    st.booleans().map(lambda flag: {"BOOL": flag}),
    st.lists(st.sampled_from([{"S": "a"}, {"N": "1"}]), max_size=2).map(lambda members: {"L": members}),
    st.sampled_from([{"S": "1"}, {"N": "1"}, {"S": "[]"}, {"L": []}]),
)


def key_of(values: list[dict[str, Any]], route: str) -> bytes:
    return group_key([plain(one) for one in values], route, values)


@settings(max_examples=3000, deadline=None)
@given(
    pair=st.integers(1, 3).flatmap(lambda size: st.tuples(*[st.lists(GROUP_VALUES, min_size=size, max_size=size)] * 2)),
    routes=st.tuples(TEXTS, TEXTS),
)
def test_groups_are_one_exactly_when_their_values_and_route_are(pair: Any, routes: tuple[str, str]) -> None:
    left, right = pair
    same = canonical_json([plain(one) for one in left]) == canonical_json([plain(one) for one in right])
    assert (key_of(left, routes[0]) == key_of(right, routes[1])) == (same and routes[0] == routes[1])
    assert (key_of(left, routes[0]) == key_of(right, routes[0])) == same


@given(values=st.lists(GROUP_VALUES, min_size=2, max_size=3), route=TEXTS, order=ROWS, other=ROWS)
def test_no_group_key_is_the_beginning_of_another(values: Any, route: str, order: Row, other: Row) -> None:
    """So that (group key, order key) never mixes two groups, also when they are joined."""
    shorter, longer = key_of(values, route), key_of([*values, {"S": "x"}], route)
    assert shorter != longer
    assert not key_of(values, route + "x").startswith(key_of(values, route))


@pytest.mark.parametrize("digits", ["NaN", "Infinity", "-Infinity", "abc", "1E+999", ""])
def test_what_is_no_number_is_refused(digits: str) -> None:
    with pytest.raises(ValueError):
        order_key({"N": digits}, 0, "r")
