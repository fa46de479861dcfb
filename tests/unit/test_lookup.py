"""A record as the base table has it now: what a dispatch would make of it, and which windows would read it."""

from typing import Any

import pytest

from dispatch.items import TableSchema
from dispatch.lookup import _key, sighting_of, windows_that_read
from ledger.errors import InputError
from ledger.settings import Settings
from tests.aws_servers import booking

SCHEMA = TableSchema({"Id": "S"}, projects_all=True)
COMPOSITE = TableSchema({"Shop": "S", "Id": "N"}, projects_all=True)
BINARY = TableSchema({"Id": "B"}, projects_all=True)


def names(date: str | None, time: str | None) -> list[str]:
    return [one.name[:13] for one in windows_that_read(date, time)]


@pytest.mark.parametrize(
    ("date", "time", "expected"),
    [
        ("2026-09-17", "2026-09-17T15:30:00Z", ["2026-09-17T15"]),
        ("2026-09-17", "2026-09-17T15:59:59.9999999+00:00", ["2026-09-17T15"]),
        ("2026-09-17", "2026-09-17T16:00:00Z", ["2026-09-17T15", "2026-09-17T16"]),
        ("2026-09-17", "2026-09-17T16:00:00.000+00:00", ["2026-09-17T15", "2026-09-17T16"]),
        ("2026-09-17", "2026-09-17T16:00:00.0000001Z", ["2026-09-17T16"]),
        ("2026-09-18", "2026-09-18T00:00:00Z", ["2026-09-17T23", "2026-09-18T00"]),
        ("2026-09-17", "2026-09-18T00:00:00Z", ["2026-09-17T23"]),
        ("2026-09-18", "2026-09-17T15:30:00Z", []),
        ("2026-9-17", "2026-09-17T15:30:00Z", []),
        (None, "2026-09-17T15:30:00Z", []),
        ("2026-09-17", None, []),
        ("2026-09-17", "2026-09-17T15:30:00+08:00", ["2026-09-17T15"]),
        ("2026-09-17", "2026-09-17T24:00:00Z", ["2026-09-17T23"]),
        ("2026-09-17", "soon", ["2026-09-17T23"]),
    ],
)
def test_which_windows_read_it(date: str | None, time: str | None, expected: list[str]) -> None:
    assert names(date, time) == expected


def seen(time: str = "2026-09-17T15:30:00Z", **attributes: Any) -> Any:
    return sighting_of(booking("R1", time, **attributes), SCHEMA, Settings())


def test_due() -> None:
    sighting = seen()
    assert (sighting.verdict, sighting.why, sighting.found, sighting.error) == ("due", None, True, None)
    assert (sighting.record_id, sighting.booking_time, sighting.status) == (
        "R1",
        "2026-09-17T15:30:00Z",
        "WaitToReward",
    )
    assert len(sighting.group_digest) == 16


def test_not_due() -> None:
    sighting = seen(status="Rewarded")
    assert (sighting.verdict, sighting.status, sighting.group_digest) == ("not_due", "Rewarded", None)
    assert sighting.why == "its RewardStatus is 'Rewarded', and only 'WaitToReward' is due"
    assert seen(RewardStatus=None).why == "it has no RewardStatus, and only 'WaitToReward' is due"
    assert len(seen(status="x" * 5000).why) < 200


def test_set_aside() -> None:
    sighting = seen(type="Unheard")
    assert (sighting.verdict, sighting.why.split(":")[0]) == ("set_aside", "unknown_route")
    sighting = seen(time="2026-09-17T15:30Z")
    assert (sighting.verdict, sighting.why.split(":")[0], sighting.booking_ns) == ("set_aside", "unreadable_time", None)


@pytest.mark.parametrize(
    ("identity", "schema", "expected"),
    [
        ("R1", SCHEMA, {"Id": {"S": "R1"}}),
        ('{"Id":1}', SCHEMA, {"Id": {"S": '{"Id":1}'}}),
        ('{"Shop":"7","Id":12}', COMPOSITE, {"Shop": {"S": "7"}, "Id": {"N": "12"}}),
        ('{ "Id": 12.0, "Shop": "7" }', COMPOSITE, {"Shop": {"S": "7"}, "Id": {"N": "12"}}),
        ('{"Id":"AAE="}', BINARY, {"Id": {"B": "AAE="}}),
    ],
)
def test_ids_that_are_keys(identity: str, schema: TableSchema, expected: Any) -> None:
    assert _key(identity, schema, "T") == expected


@pytest.mark.parametrize(
    ("identity", "schema"),
    [
        ("", SCHEMA),
        ("x" * 2049, SCHEMA),
        ("R1", COMPOSITE),
        ("7", COMPOSITE),
        ("[7]", COMPOSITE),
        ("\udcff", COMPOSITE),
        ('{"Shop":"7"}', COMPOSITE),
        ('{"Shop":"7","Id":12,"More":1}', COMPOSITE),
        ('{"Shop":7,"Id":12}', COMPOSITE),
        ('{"Shop":"7","Id":"12"}', COMPOSITE),
        ('{"Shop":"","Id":12}', COMPOSITE),
        ('{"Id":"not base64!"}', BINARY),
        ('{"Id":""}', BINARY),
    ],
)
def test_ids_that_can_be_no_key(identity: str, schema: TableSchema) -> None:
    with pytest.raises(InputError, match="can be no key of table T") as refusal:
        _key(identity, schema, "T")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert all(name in str(refusal.value) for name in schema.key_types)
