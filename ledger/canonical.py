"""Canonical JSON (RFC 8785 member order and escaping, numbers as plain digits) and the digests built on it.

Source: RFC 8785; numbers deviate on purpose: they are written as the plain decimal digits that DynamoDB keeps (up to
38), never through a float.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from uuid import UUID

import msgspec

_ENCODER = msgspec.json.Encoder(order="sorted")
_UUID_LENGTH = 36
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SURROGATE = re.compile("[\ud800-\udfff]")
# The widest exponent that DynamoDB keeps is 10**125; a bound keeps "1E+999999999" from becoming a gigabyte of digits.
_MAX_EXPONENT = 200
# An int of this many digits always fits into 64 bits.
_INT_DIGITS = 18
# Digits as they are written anyway, but for a sign on zero; no DynamoDB number has more of them.
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]{0,37})(?:\.[0-9]{0,37}[1-9])?")


def utf8(text: str) -> bytes:
    """Encode `text`; a lone surrogate (which UTF-8 cannot say) passes as the three bytes it would have had."""
    return text.encode("utf-8", "surrogatepass")


def is_plain_text(text: str) -> bool:
    """Say whether a text can be kept in a text column: no NUL, no lone surrogate."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def packed_id(record_id: str) -> bytes:
    """Return a record id as the claims keep it: a lower-case UUID as its 16 bytes after 0xFF, any other as UTF-8.

    No UTF-8 begins with 0xFF, so two ids never become one.
    """
    if len(record_id) == _UUID_LENGTH and _UUID.fullmatch(record_id):
        return b"\xff" + bytes.fromhex(record_id.replace("-", ""))
    return utf8(record_id)


def unpacked_id(packed: bytes) -> str:
    """Return the record id that `packed_id` made these bytes of."""
    if packed[:1] == b"\xff":
        return str(UUID(bytes=packed[1:]))
    return packed.decode("utf-8", "surrogatepass")


def plain_digits(number: str) -> str:
    """Return a number's text as plain decimal digits: no exponent, no trailing fraction zeros, no sign on zero.

    Raises:
        ValueError: when the text is no finite number, or has more digits than any DynamoDB number.
    """
    if _PLAIN.fullmatch(number) and number != "-0":
        return number
    try:
        value = Decimal(number)
    except InvalidOperation:
        raise ValueError(f"not a number: {number[:60]!r}") from None
    if not value.is_finite() or abs(value.adjusted()) > _MAX_EXPONENT or len(value.as_tuple().digits) > _MAX_EXPONENT:
        raise ValueError(f"not a number that DynamoDB can hold: {number[:60]!r}")
    if not value:
        return "0"
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def plain_number(number: str) -> "int | msgspec.Raw":
    """Return what the encoder needs to write `number` digit by digit (an int where that is the same, for speed)."""
    if len(number) <= _INT_DIGITS and number.isascii() and number.isdigit():
        return int(number)
    return msgspec.Raw(plain_digits(number).encode())


def canonical_json(value: object) -> bytes:
    """Encode plain data (str, bool, None, int, numbers from `plain_number`, list, dict) as canonical JSON in UTF-8.

    Member names sort by UTF-16 code units. The encoder sorts by code point, which differs only when a name holds a
    character at or above U+E000, so only then are the members put in order by hand.
    """
    try:
        encoded = _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _encode_slowly(value).encode("utf-8")
    if encoded.isascii() or not _needs_utf16_order(value):
        return encoded
    return _encode_slowly(value).encode("utf-8")


def _needs_utf16_order(value: object) -> bool:
    if isinstance(value, dict):
        for name, member in value.items():
            if (not name.isascii() and max(name) >= "\ud800") or _needs_utf16_order(member):
                return True
        return False
    if isinstance(value, list):
        return any(isinstance(member, dict | list) and _needs_utf16_order(member) for member in value)
    return False


def _encode_slowly(value: object) -> str:
    """Encode one value member by member: for names beyond U+D7FF and for text with lone surrogates."""
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(f"{_encode_text(name)}:{_encode_slowly(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encode_slowly, value)) + "]"
    if isinstance(value, str):
        return _encode_text(value)
    return _ENCODER.encode(value).decode()


def _encode_text(text: str) -> str:
    # A lone surrogate is written as its escape, as ECMAScript's well-formed JSON.stringify does.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))


def members(body: bytes) -> dict[str, msgspec.Raw]:
    """Take a JSON object apart: each member's name and its JSON.

    Raises:
        ValueError: when it is no JSON object, or nested deeper than can be read.
    """
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as reason:
        raise ValueError(str(reason)) from None
    except msgspec.DecodeError:  # an escaped lone surrogate, which msgspec refuses
        return _members_slowly(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _members_slowly(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        raw = json.loads(body, parse_int=_raw, parse_float=_raw)
        if not isinstance(raw, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - what is wrong is the text, not our call
        return {name: msgspec.Raw(canonical_json(value)) for name, value in raw.items()}
    except RecursionError:
        raise ValueError("nested too deeply") from None


def elements(body: bytes) -> list[bytes]:
    """Take a canonical JSON array apart: the JSON of each element.

    Raises:
        ValueError: when it is no JSON array, or nested deeper than can be read.
    """
    try:
        return [bytes(one) for one in msgspec.json.decode(body, type=list[msgspec.Raw])]
    except msgspec.ValidationError as reason:
        raise ValueError(str(reason)) from None
    except (msgspec.DecodeError, RecursionError):  # an escaped lone surrogate, which msgspec refuses, or deep nesting
        return _elements_slowly(body)


def _elements_slowly(body: bytes) -> list[bytes]:
    try:
        raw = json.loads(body, parse_int=_raw, parse_float=_raw)
        if not isinstance(raw, list):
            raise ValueError("not a JSON array")  # noqa: TRY004 - what is wrong is the text, not our call
        return [canonical_json(value) for value in raw]
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _raw(digits: str) -> msgspec.Raw:
    return msgspec.Raw(digits.encode())


def ascii_json(canonical: bytes) -> str:
    r"""Rewrite canonical JSON in ASCII: every other character becomes `\uXXXX`. SQS refuses some of them raw."""
    text = canonical.decode("utf-8")
    if text.isascii():
        return text
    return "".join(char if char < "\x80" else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def sha256(data: bytes) -> bytes:
    """Return the 32 raw bytes of the SHA-256 of `data`."""
    return hashlib.sha256(data).digest()


def fingerprint(body: bytes, without: str | None) -> int:
    """Return 64 bits, signed, of the SHA-256 of a record's canonical JSON, leaving out one member.

    Args:
        without: the member that says when the record last changed, which is no change by itself; None for none.
    """
    if without is not None:
        by_name = members(body)
        if by_name.pop(without, None) is not None:
            body = canonical_json(by_name)
    return int.from_bytes(sha256(body)[:8], "big", signed=True)


def content_hash(record_bodies: Iterable[bytes]) -> bytes:
    """Return the SHA-256 over the SHA-256 of each record's canonical JSON, in payload order (32 raw bytes)."""
    whole = hashlib.sha256()
    for body in record_bodies:
        whole.update(sha256(body))
    return whole.digest()


def group_digest(group_values: list[object]) -> bytes:
    """Return the first 16 bytes of the SHA-256 of the canonical JSON array of the group-by values."""
    return sha256(canonical_json(group_values))[:16]


def idempotency_key(pipeline: str, window_start: str, group: bytes, content: bytes, generation: int) -> bytes:
    """Return the SHA-256 of the canonical array [pipeline, window start, group digest, content hash, generation]."""
    return sha256(canonical_json([pipeline, window_start, group.hex(), content.hex(), generation]))
