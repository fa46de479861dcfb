"""Is this record due in this window, and can it be used? Pure: an item goes in, one verdict comes out."""

import json
from enum import Enum
from typing import Any

import msgspec

from dispatch.items import Item, TableSchema, plain, plain_item, record_id
from dispatch.ordering import group_key, order_key
from ledger.canonical import ascii_json, canonical_json, fingerprint, members
from ledger.facts import BadRecord, Occurrence, Record
from ledger.instants import Window, parse_booking_ns
from ledger.settings import SourceSettings


class Left(Enum):
    """Why a record is none of this window's business."""

    OUTSIDE = "outside"
    NOT_DUE = "not_due"


Verdict = Left | BadRecord | Record


class Rules(msgspec.Struct, frozen=True):
    """Everything a verdict depends on, frozen for a run.

    Attributes:
        message_room: for each known route, how many bytes of group values in ASCII its message can still hold.
    """

    window: Window
    schema: TableSchema
    time_attribute: str
    status_attribute: str
    due_status: str
    group_by: tuple[str, ...]
    order_by: str
    route_by: str
    message_room: dict[str, int]
    updated_at_attribute: str | None = None


def rules_of(source: SourceSettings, schema: TableSchema, window: Window, message_room: dict[str, int]) -> Rules:
    """Return the rules that the settings lay down for a window."""
    return Rules(
        window=window,
        schema=schema,
        time_attribute=source.time_attribute,
        status_attribute=source.status_attribute,
        due_status=source.due_status,
        group_by=tuple(source.group_by),
        order_by=source.order_by,
        route_by=source.route_by,
        message_room=message_room,
        updated_at_attribute=source.updated_at_attribute,
    )


def judge(item: Item, rules: Rules) -> Verdict:
    """Judge one item by what it says of itself; the order of the questions is that of the books (CONTRACT §3)."""
    time_text, booking_ns, unreadable = _booking_time(item, rules)
    if booking_ns is not None and not rules.window.start_ns <= booking_ns <= rules.window.end_ns:
        return Left.OUTSIDE
    if not shows_due(item, rules):
        return Left.NOT_DUE
    identity = record_id(item, rules.schema)
    if booking_ns is None:
        return BadRecord(identity, time_text, "unreadable_time", f"{rules.time_attribute}: {unreadable}")
    problem = _problem(item, rules)
    if problem is not None:
        return BadRecord(identity, time_text, *problem)
    try:
        return _record(item, rules, identity, booking_ns)
    except ValueError as reason:
        return BadRecord(identity, time_text, "too_large", str(reason))


def shows_due(item: Item, rules: Rules) -> bool:
    """Say whether an item has the status of those that wait."""
    status = item.get(rules.status_attribute)
    return status is not None and status.get("S") == rules.due_status


def sighted(item: Item, rules: Rules) -> Occurrence | None:
    """Return which occurrence of the window an item shows as due, whether usable or not; None when it shows none."""
    time = item.get(rules.time_attribute)
    if time is None or not shows_due(item, rules):
        return None
    try:
        booking_ns = parse_booking_ns(time["S"])
    except (ValueError, KeyError, TypeError):
        return None
    inside = rules.window.start_ns <= booking_ns <= rules.window.end_ns
    return (booking_ns, record_id(item, rules.schema)) if inside else None


def _booking_time(item: Item, rules: Rules) -> tuple[str, int | None, str]:
    value = item.get(rules.time_attribute, {}).get("S")
    if not isinstance(value, str):
        return "", None, "missing"
    try:
        return value, parse_booking_ns(value), ""
    except ValueError as reason:
        return value, None, str(reason)


def _problem(item: Item, rules: Rules) -> tuple[str, str] | None:
    for name in (*rules.group_by, rules.route_by):
        value = item.get(name)
        if value is None or "NULL" in value or value.get("S") == "":
            return "missing_attribute", f"{name} is missing, NULL or empty"
    if _route(item, rules) not in rules.message_room:
        return "unknown_route", f"{rules.route_by} names no route; known are {', '.join(rules.message_room)}"
    return None


def _route(item: Item, rules: Rules) -> str:
    value = item[rules.route_by]
    text = value.get("S", value.get("N"))
    return text if isinstance(text, str) else ""


def _record(item: Item, rules: Rules, identity: str, booking_ns: int) -> Record:
    route = _route(item, rules)
    typed = [item[name] for name in rules.group_by]
    values = [plain(value) for value in typed]
    group_json = canonical_json(dict(zip(rules.group_by, values, strict=True)))
    room = rules.message_room[route]
    if len(group_json) * 6 > room and len(ascii_json(group_json)) > room:  # one byte becomes six at the most
        raise ValueError(f"its group values need more than the {room} bytes that its queue's messages have room for")
    body = body_of(item)
    return Record(
        record_id=identity,
        booking_ns=booking_ns,
        group_key=group_key(values, route, typed),
        order_key=order_key(item.get(rules.order_by), booking_ns, identity),
        body=body,
        fingerprint=fingerprint(body, rules.updated_at_attribute),
    )


def body_of(item: Item) -> bytes:
    """Return the whole record as canonical JSON."""
    return canonical_json(plain_item(item))


def fingerprint_of(item: Item, rules: Rules) -> int:
    """Return the fingerprint that the record's claim has when nothing of it has changed since."""
    whole = plain_item(item)
    if rules.updated_at_attribute is not None:
        whole.pop(rules.updated_at_attribute, None)
    return fingerprint(canonical_json(whole), None)


def promised(body: bytes, rules: Rules) -> Occurrence:
    """Read back from a record's body which occurrence it is.

    Raises:
        ValueError: when the body is no record of this table that a dispatch could have written.
    """
    try:
        by_name = members(body)
        identity = _identity_of(by_name, rules.schema)
        return parse_booking_ns(msgspec.json.decode(by_name[rules.time_attribute], type=str)), identity
    except (KeyError, msgspec.DecodeError, RecursionError) as reason:
        raise ValueError(f"{type(reason).__name__}: {reason}") from None


def _identity_of(by_name: dict[str, msgspec.Raw], schema: TableSchema) -> str:
    if schema.text_key is not None:
        return msgspec.json.decode(by_name[schema.text_key], type=str)
    return canonical_json({name: by_name[name] for name in schema.key_types}).decode("utf-8", "surrogatepass")


def group_values(body: bytes, rules: Rules) -> tuple[list[Any], str]:
    """Return a record's group-by values (each as its canonical JSON) and its route, read back from its body."""
    by_name = members(body)
    route = bytes(by_name[rules.route_by]).decode()
    values = [by_name[name] for name in rules.group_by]
    return values, json.loads(route) if route[0] == '"' else route
