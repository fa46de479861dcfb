"""What DescribeTable must say, and the bounds of a query."""

import copy
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dispatch.aws.source import QueryRange, query_ranges, read_schema
from ledger.errors import InputError
from ledger.instants import Window, parse_window
from ledger.settings import SourceSettings

INDEX = "BookingDateUTC-BookingTimeUTC-index"
TABLE: dict[str, Any] = {
    "TableName": "PromotionRewardBooking",
    "TableStatus": "ACTIVE",
    "KeySchema": [{"AttributeName": "Id", "KeyType": "HASH"}],
    "AttributeDefinitions": [
        {"AttributeName": "Id", "AttributeType": "S"},
        {"AttributeName": "BookingDateUTC", "AttributeType": "S"},
        {"AttributeName": "BookingTimeUTC", "AttributeType": "S"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": INDEX,
            "IndexStatus": "ACTIVE",
            "KeySchema": [
                {"AttributeName": "BookingDateUTC", "KeyType": "HASH"},
                {"AttributeName": "BookingTimeUTC", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}


def changed(**index: Any) -> dict[str, Any]:
    table = copy.deepcopy(TABLE)
    table["GlobalSecondaryIndexes"][0].update(index)
    return table


def read(table: dict[str, Any], *, verify_due: bool = True) -> Any:
    return read_schema(table, SourceSettings(), verify_due=verify_due)


def test_a_table_that_fits() -> None:
    schema = read(TABLE)
    assert (schema.key_types, schema.projects_all, schema.text_key) == ({"Id": "S"}, True, "Id")
    assert read(TABLE, verify_due=False).projects_all


def test_a_composite_key_has_its_hash_key_first() -> None:
    table = copy.deepcopy(TABLE)
    table["KeySchema"] = [{"AttributeName": "At", "KeyType": "RANGE"}, {"AttributeName": "Shard", "KeyType": "HASH"}]
    table["AttributeDefinitions"] += [
        {"AttributeName": "At", "AttributeType": "N"},
        {"AttributeName": "Shard", "AttributeType": "B"},
    ]
    schema = read(table)
    assert list(schema.key_types.items()) == [("Shard", "B"), ("At", "N")]
    assert schema.text_key is None


def test_a_local_index_will_do() -> None:
    table = copy.deepcopy(TABLE)
    (index,) = table.pop("GlobalSecondaryIndexes")
    del index["IndexStatus"]
    table["LocalSecondaryIndexes"] = [index]
    assert read(table).projects_all


@pytest.mark.parametrize("kind", ["KEYS_ONLY", "INCLUDE"])
def test_a_narrow_projection_needs_verify_due(kind: str) -> None:
    table = changed(Projection={"ProjectionType": kind, "NonKeyAttributes": ["RewardStatus"]})
    assert read(table).projects_all is False
    with pytest.raises(InputError, match=r"verify_due"):
        read(table, verify_due=False)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({**TABLE, "GlobalSecondaryIndexes": []}, "source.index"),
        ({name: value for name, value in TABLE.items() if name != "GlobalSecondaryIndexes"}, "source.index"),
        (changed(IndexName="another"), "another"),
        (changed(IndexStatus="CREATING"), "CREATING"),
        (changed(IndexStatus="CREATING", Backfilling=True), "backfilling"),
        (changed(IndexStatus="ACTIVE", Backfilling=True), "backfilling"),
        (changed(IndexStatus="DELETING"), "DELETING"),
        (changed(KeySchema=[{"AttributeName": "BookingDateUTC", "KeyType": "HASH"}]), "BookingTimeUTC"),
        (
            changed(
                KeySchema=[
                    {"AttributeName": "BookingTimeUTC", "KeyType": "HASH"},
                    {"AttributeName": "BookingDateUTC", "KeyType": "RANGE"},
                ]
            ),
            "source",
        ),
        ({**TABLE, "TableStatus": "CREATING"}, "CREATING"),
        ({**TABLE, "TableStatus": "DELETING"}, "DELETING"),
        (
            {
                **TABLE,
                "AttributeDefinitions": [
                    {"AttributeName": "Id", "AttributeType": "S"},
                    {"AttributeName": "BookingDateUTC", "AttributeType": "S"},
                    {"AttributeName": "BookingTimeUTC", "AttributeType": "N"},
                ],
            },
            "BookingTimeUTC",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_line(table: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as refusal:
        read(table)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_the_bounds_of_a_window() -> None:
    assert query_ranges(parse_window("2026-09-17T15:00:00Z")) == [
        QueryRange("2026-09-17", "2026-09-17T15:00:00", "2026-09-17T16:00:00Z")
    ]
    first, second = query_ranges(parse_window("2026-12-31T23:00:00Z"))
    assert (first.date, first.first) == ("2026-12-31", "2026-12-31T23:00:00")
    assert (second.date, second.last) == ("2027-01-01", "2027-01-01T00:00:00Z")


DAY = [query_ranges(Window(parse_window("2026-09-16T23:00:00Z").start_s + hour * 3600)) for hour in range(25)]


@given(st.one_of(st.text(min_size=1), st.text(min_size=0).map(lambda tail: f"2026-09-17T{tail}")))
@example("2026-09-17T24:00:00Z")
@example("2026-09-18T00:00:00Z")
@example("2026-09-17T")
@example("2026-09-17T23:59:60Z")
@example("2026-09-17T15:59:59.9999999Z")
@example("2026-09-17T16:00:00.0000001+00:00")
def test_no_text_under_a_date_falls_between_its_windows(text: str) -> None:
    assume(text > "\x01" and not any("\ud800" <= char <= "\udfff" for char in text))
    here = [part for window in DAY for part in window if part.date == "2026-09-17"]
    inside = [part for part in here if part.first.encode() <= text.encode() <= part.last.encode()]
    assert inside
