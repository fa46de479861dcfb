"""Synthetic records, and what they come to when one reads the contract alone: nothing here uses the product."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.fault.sim.scheduler import BEGIN
from tests.fault.sim.world import Item

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GROUP_BY = ("ShopId", "MemberId", "PromotionEngineId")
ROUTES = {"Point": "RewardPoint", "ECoupon": "RewardECoupon"}
DUE = "WaitToReward"
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:Z|\+00:00)")


def spelled(after_s: float, spelling: int = 0) -> str:
    """Write the moment so many seconds after the beginning, in one of five ways."""
    moment = BEGIN + timedelta(seconds=after_s)
    whole = moment.strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{moment.microsecond:06d}"
    if moment.microsecond or spelling == 2:
        return f"{whole}.{fraction}0Z"
    return [f"{whole}Z", f"{whole}+00:00", "", f"{whole}.0Z", f"{whole}.000000000+00:00"][spelling]


def make(identity: str, at: str, group: int = 1, route: str = "Point", status: str = DUE, **more: Any) -> Item:
    """Make a booking in the table's own form."""
    return {
        "Id": {"S": identity},
        "BookingDateUTC": {"S": at[:10]},
        "BookingTimeUTC": {"S": at},
        "RewardStatus": {"S": status},
        "ShopId": {"N": str(100 + group % 2)},
        "MemberId": {"N": str(group)},
        "PromotionEngineId": {"N": "7"},
        "RewardType": {"S": route},
        "OrderTime": {"S": at},
        "Amount": {"N": "12.50"},
        "Tags": {"SS": ["b", "a", "ä"]},
        **more,
    }


def instant_ns(text: str) -> int | None:
    """Read a booking time, with every digit; None when it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    moment = datetime.fromisoformat(f"{found[1]}+00:00")
    return int((moment - EPOCH).total_seconds()) * 10**9 + int((found[2] or "").ljust(9, "0"))


def is_usable(item: Item) -> bool:
    """Say whether a due record can be grouped and routed."""
    missing = [
        name for name in (*GROUP_BY, "RewardType") if item.get(name, {"NULL": True}) in ({"NULL": True}, {"S": ""})
    ]
    return not missing and instant_ns(item["BookingTimeUTC"]["S"]) is not None and item["RewardType"]["S"] in ROUTES


def is_due(item: Item | None) -> bool:
    """Say whether a record waits for its reward."""
    return item is not None and item.get("RewardStatus") == {"S": DUE}


def text_of(value: dict[str, Any]) -> str:
    """Write a DynamoDB value as canonical JSON."""
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return json.dumps(content, ensure_ascii=False)
        case "N":
            return f"{Decimal(content).normalize():f}"
        case "SS":
            return f"[{','.join(sorted((json.dumps(one, ensure_ascii=False) for one in content), key=str.encode))}]"
        case "NULL":
            return "null"
        case "M":
            return body_of(content)
    raise AssertionError(kind)


def body_of(item: Mapping[str, dict[str, Any]]) -> str:
    """Write a record as canonical JSON; names are ASCII here, so their order is that of their characters."""
    return f"{{{','.join(f'{json.dumps(name)}:{text_of(item[name])}' for name in sorted(item))}}}"


def content_hash(bodies: Sequence[str]) -> str:
    """Hash records in payload order."""
    return hashlib.sha256(b"".join(hashlib.sha256(one.encode()).digest() for one in bodies)).hexdigest()


def group_digest(item: Item) -> str:
    """Hash the group that a record belongs to."""
    return hashlib.sha256(f"[{','.join(text_of(item[name]) for name in GROUP_BY)}]".encode()).hexdigest()[:32]


def key_of(pipeline: str, window: str, digest: str, content: str, generation: int) -> str:
    """Hash what a promise is known by."""
    parts = json.dumps([pipeline, window, digest, content, generation], separators=(",", ":"))
    return hashlib.sha256(parts.encode()).hexdigest()


def order_of(item: Item) -> tuple[Any, ...]:
    """Return by what records stand in a payload."""
    identity, at = item["Id"]["S"], instant_ns(item["BookingTimeUTC"]["S"])
    value = item.get("OrderTime")
    if value is None:
        return (3, at, identity)
    if "N" in value:
        return (0, Decimal(value["N"]), at, identity)
    parsed = instant_ns(value["S"])
    return (2, value["S"], at, identity) if parsed is None else (1, parsed, at, identity)
