"""I8: `staged` gives the same objects and messages as `full`, byte for byte, whatever the page size; over real HTTP."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch import feeders
from ledger.instants import parse_window
from tests.aws_servers import World, booking
from tests.rig import Rig, records_of

PAGE_SIZES = ("1", "2", "3", "7", "1000")
DAYS = count()
OUR_TABLES = (
    "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'dispatch_ledger_version' ORDER BY 1"
)
CAREFUL = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

Snapshot = tuple[dict[str, tuple[bytes, Any, str]], list[str]]


@dataclass
class Arena:
    """One world and one ledger, emptied before each run."""

    rig: Rig

    def load(self, plans: list[dict[str, Any]]) -> str:
        """Store an example's records on a day of their own; give the window's name."""
        day = (date(2027, 1, 1) + timedelta(days=next(DAYS))).isoformat()
        self.rig.world.put_many(
            booking(time=f"{day}{plan['time']}", **{name: value for name, value in plan.items() if name != "time"})
            for plan in plans
        )
        return f"{day}T15:00:00Z"

    def outcome(self, window: str, flow: str, **overrides: str) -> tuple[Snapshot, Any]:
        """Run a window in an empty ledger and an empty bucket; give everything that came out of it."""
        tables = ", ".join(table for (table,) in self.rig.rows(OUR_TABLES) if table != "ledger_identity")
        self.rig.tell(f"TRUNCATE {tables} RESTART IDENTITY")
        world = self.rig.world
        world.forget_witnesses()
        report = self.rig.run(flow, window=parse_window(window), **overrides)
        assert report.outcome == "completed", report.error
        self.rig.assert_books_balance()
        objects = {}
        for key in world.objects():
            got = world.s3.get_object(Bucket=world.bucket, Key=key)
            objects[key] = (got["Body"].read(), got["Metadata"], got["ContentType"])
            world.s3.delete_object(Bucket=world.bucket, Key=key)
        messages = []
        for queue in world.queues:
            for message in world.receive_all(queue):
                body = json.loads(message["Body"])
                assert message["Body"] == json.dumps(body, separators=(",", ":"), sort_keys=True)
                del body["entry_id"]
                messages.append(f"{queue} {json.dumps(body)}")
        return (objects, sorted(messages)), report.counts


@pytest.fixture(scope="module")
def arena(ministack: str, module_ledger_url: str) -> Iterator[Arena]:
    with Rig(World(ministack), module_ledger_url) as rig:
        yield Arena(rig)


FRACTIONS = ("", ".5", ".50", ".500000000", ".0", ".0000000", ".25", ".000000001", ".999999999")
GOOD_TIMES = st.builds(
    lambda clock, fraction, zone: f"T{clock}{fraction}{zone}",
    st.sampled_from(["15:00:00", "15:00:01", "15:30:00", "15:59:59"]),
    st.sampled_from(FRACTIONS),
    st.sampled_from(["Z", "+00:00"]),
)
EDGE_TIMES = st.sampled_from(["T16:00:00Z", "T16:00:00.000+00:00", "T16:00:00.5Z", "T16:00:00.000000001+00:00"])
BAD_TIMES = st.sampled_from(["T15:06:00", "T15:06:00.1234567890Z", "T15:06:00+01:00", "T15:06:61Z"])
TIMES = st.one_of(GOOD_TIMES, GOOD_TIMES, GOOD_TIMES, EDGE_TIMES, BAD_TIMES)
ORDERS = st.sampled_from(
    [
        None,
        {"NULL": True},
        {"N": "1"},
        {"N": "10"},
        {"N": "9"},
        {"N": "-2.5"},
        {"N": "1E+1"},
        "2026-09-17T10:00:00Z",
        "2026-09-17T10:00:00.0000000+00:00",
        "2026-09-17T10:00:00.1Z",
        "2026-09-17T12:00:00+02:00",
        "text",
        "täxt",
        "text\u0000",
        "",
    ]
)
EXTRAS = st.dictionaries(
    st.sampled_from(["Note", "Ünicode", "\ufb01rst", "😀"]),
    st.one_of(
        st.text(max_size=8)
        .filter(lambda text: not any("\ud800" <= one <= "\udfff" for one in text))
        .map(lambda text: {"S": text}),
        st.sampled_from([{"N": "12345678901234567890123456789012345678"}, {"SS": ["b", "a"]}, {"M": {"k": {"L": []}}}]),
    ),
    max_size=2,
)
PLANS = st.lists(
    st.fixed_dictionaries(
        {
            "time": TIMES,
            "status": st.sampled_from(["WaitToReward"] * 6 + ["Rewarded"]),
            "shop": st.sampled_from([1001, 1001, "1001", {"N": "1001.5"}]),
            "member": st.sampled_from([1, 1, 1, 2, 3]),
            "type": st.sampled_from(["Point", "Point", "Point", "ECoupon", "ECoupon", "Voucher", ""]),
            "order": ORDERS,
            "extra": EXTRAS,
        }
    ),
    max_size=22,
).map(lambda plans: [_with_id(number, plan) for number, plan in enumerate(plans)])


def _with_id(number: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Number the records so that order of id and order of time are not the same."""
    rest = dict(plan)
    extra = rest.pop("extra")
    odd = {3: "\u0000", 5: "😀", 7: "é"}.get(number, "")
    return {"id": f"{(number * 7) % 23:02d}{odd}", **rest, **extra}


# An independent account of what should come out


def _instant(text: str) -> Fraction:
    clock = text.removesuffix("Z").split("+")[0]
    whole, _, fraction = clock.partition(".")
    hours, minutes, seconds = (int(part) for part in whole.lstrip("T").split("T")[-1].split(":"))
    offset = 2 if text.endswith("+02:00") else 0
    return (
        (hours - offset) * 3600
        + minutes * 60
        + seconds
        + (Fraction(int(fraction), 10 ** len(fraction)) if fraction else 0)
    )


def _order(plan: dict[str, Any]) -> tuple[Any, ...]:
    value = plan["order"]
    tie = (_instant(plan["time"]), plan["id"])
    if isinstance(value, dict) and "N" in value:
        return (0, Decimal(value["N"]), *tie)
    if isinstance(value, str) and value.startswith("2026"):
        return (1, _instant(value), *tie)
    if isinstance(value, str):
        return (2, value, *tie)
    return (3, 0, *tie)


def expected_groups(plans: list[dict[str, Any]]) -> list[list[str]]:
    """Group and order the due and usable records as CONTRACT §4 says."""
    groups: dict[str, list[dict[str, Any]]] = {}
    bad = {"T15:06:00", "T15:06:00.1234567890Z", "T15:06:00+01:00", "T15:06:61Z"}
    for plan in plans:
        usable = plan["type"] in {"Point", "ECoupon"} and plan["time"] not in bad
        if plan["status"] == "WaitToReward" and usable and _instant(plan["time"]) <= 16 * 3600:
            groups.setdefault(repr((plan["shop"], plan["member"], plan["type"])), []).append(plan)
    return sorted([one["id"] for one in sorted(members, key=_order)] for members in groups.values())


@CAREFUL
@given(plans=PLANS, verify_due=st.sampled_from(["true", "true", "false"]))
def test_every_page_size_gives_what_full_gives(arena: Arena, plans: list[dict[str, Any]], verify_due: str) -> None:
    window = arena.load(plans)
    full, counts = arena.outcome(window, "full", dispatch__verify_due=verify_due)
    assert sorted(records_of({key: got[0] for key, got in full[0].items()}).values()) == expected_groups(plans)
    for size in PAGE_SIZES:
        staged, staged_counts = arena.outcome(
            window, "staged", dispatch__page_size=size, dispatch__verify_due=verify_due
        )
        assert staged == full, f"page size {size}"
        staged_counts.pages = counts.pages
        assert staged_counts == counts


@CAREFUL
@given(plans=PLANS, records_max=st.sampled_from([1, 2, 3]), bytes_max=st.sampled_from([300, 900, 10**9]))
def test_streamed_groups_give_what_full_gives(
    arena: Arena, plans: list[dict[str, Any]], records_max: int, bytes_max: int
) -> None:
    window = arena.load(plans)
    full, counts = arena.outcome(window, "full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeders, "BATCH_RECORDS_MAX", records_max)
        patch.setattr(feeders, "BATCH_BYTES_MAX", bytes_max)
        for flow, size in (("full", "1000"), ("staged", "3"), ("staged", "1000")):
            streamed, streamed_counts = arena.outcome(window, flow, dispatch__page_size=size)
            assert streamed == full, f"{flow}, page size {size}"
            streamed_counts.pages = counts.pages
            assert streamed_counts == counts


@CAREFUL
@given(plans=PLANS, size=st.sampled_from(PAGE_SIZES))
def test_paged_sends_the_same_records_in_smaller_groups(arena: Arena, plans: list[dict[str, Any]], size: str) -> None:
    window = arena.load(plans)
    full, counts = arena.outcome(window, "full")
    paged, paged_counts = arena.outcome(window, "paged", dispatch__page_size=size)
    wanted = records_of({key: got[0] for key, got in full[0].items()})
    got = records_of({key: one[0] for key, one in paged[0].items()})
    assert sorted(one for ids in got.values() for one in ids) == sorted(one for ids in wanted.values() for one in ids)
    whole = {one: ids for ids in wanted.values() for one in ids}
    for ids in got.values():
        assert ids == [one for one in whole[ids[0]] if one in ids], "out of order inside a part"
    assert (paged_counts.due, paged_counts.claimed, paged_counts.not_due) == (
        counts.due,
        counts.claimed,
        counts.not_due,
    )
