"""Sort keys as bytes: what compares right here compares the same in PostgreSQL (bytea) and in Python.

Order inside a group (CONTRACT §4): numbers, then RFC 3339 text as instants, then other text by code point, then
whatever else or nothing; ties by booking time, then by record id.
"""

from typing import Any

from ledger.canonical import canonical_json, plain_digits, utf8
from ledger.instants import parse_instant

_NUMBER, _INSTANT, _TEXT, _OTHER = b"\x01", b"\x02", b"\x03", b"\x04"
_SIGN_BIT = 1 << 63
_EXPONENT_BIAS = 0x4000
_INVERTED = bytes(255 - i for i in range(256))


def _encode_text(raw: bytes) -> bytes:
    """Encode so that a prefix sorts first and no encoding is a prefix of another."""
    return raw.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def _encode_signed(value: int) -> bytes:
    return (value + _SIGN_BIT).to_bytes(8, "big")


def _encode_number(digits: str) -> bytes:
    """Encode plain decimal digits: sign, then exponent and significant digits (both inverted below zero)."""
    if digits == "0":
        return b"\x80"
    negative = digits[0] == "-"
    whole, _, fraction = digits.lstrip("-").partition(".")
    significant = (whole + fraction).lstrip("0")
    exponent = len(whole) if whole != "0" else len(fraction.lstrip("0")) - len(fraction)
    magnitude = (exponent + _EXPONENT_BIAS).to_bytes(2, "big") + significant.rstrip("0").encode() + b"\x00"
    return b"\x7f" + magnitude.translate(_INVERTED) if negative else b"\x81" + magnitude


def _encode_instant(seconds: int, fraction: str) -> bytes:
    return _encode_signed(seconds) + fraction.encode() + b"\x00"


def _encode_order_value(value: dict[str, Any] | None) -> bytes:
    if value is None:
        return _OTHER
    if "N" in value:
        return _NUMBER + _encode_number(plain_digits(value["N"]))
    if "S" not in value:
        return _OTHER
    text: str = value["S"]
    try:
        return _INSTANT + _encode_instant(*parse_instant(text))
    except ValueError:
        return _TEXT + _encode_text(utf8(text))


def order_key(value: dict[str, Any] | None, booking_ns: int, record_id: str) -> bytes:
    """Return the bytes by which a record sorts inside its group.

    Args:
        value: the `order_by` attribute as DynamoDB JSON, or None when it is missing.
        booking_ns: booking time, nanoseconds since 1970.
        record_id: breaks the last tie, by code point.

    Raises:
        ValueError: when the value is a number that DynamoDB could not hold.
    """
    return _encode_order_value(value) + _encode_signed(booking_ns) + utf8(record_id)


def group_key(values: list[object], route: str, typed: list[dict[str, Any]]) -> bytes:
    """Return the bytes by which groups sort and are told apart: each group-by value in turn, then the route.

    Args:
        values: the group-by values as plain data.
        route: the route's value.
        typed: the same values as DynamoDB JSON, which says number or text.
    """
    parts = []
    for plain, attribute in zip(values, typed, strict=True):
        if "N" in attribute:
            parts.append(_NUMBER + _encode_number(plain_digits(attribute["N"])))
        elif "S" in attribute:
            parts.append(_TEXT + _encode_text(utf8(attribute["S"])))
        else:
            parts.append(_OTHER + _encode_text(canonical_json(plain)))
    parts.append(_encode_text(utf8(route)))
    return b"".join(parts)
