"""Reading records from a file: a DynamoDB export or plain JSON lines, gzipped or not."""

import base64
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dispatch.items import Item
from ledger.canonical import plain_digits
from ledger.errors import InputError

_GZIP = b"\x1f\x8b"
# An item is at most 400 KB: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/ServiceQuotas.html
_LINE_BYTES_MAX = 4 * 1024 * 1024
_DIGITS_MAX = 38
_SCALARS = {"S", "N", "B", "BOOL", "NULL"}
_SETS = {"SS", "NS", "BS"}


class _Number(str):
    """A JSON number as the text it was written as."""

    __slots__ = ()


def read_items(path: Path) -> Iterator[Item]:
    """Yield the items of a file, one a line, in DynamoDB JSON.

    A line is `{"Item": {"Id": {"S": "R0"}, …}}` as exports have it, or a plain JSON object; empty lines are skipped.

    Raises:
        InputError: naming the file and the line, and what was wrong with it.
    """
    try:
        with path.open("rb") as raw:
            zipped = raw.peek(2)[:2] == _GZIP
            lines: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
            yield from _read_lines(lines, path)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: cannot be read ({reason}); give a DynamoDB export or JSON lines") from None


def _read_lines(lines: BinaryIO, path: Path) -> Iterator[Item]:
    number = 0
    while line := lines.readline(_LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > _LINE_BYTES_MAX:
            raise InputError(f"{path}, line {number}: longer than {_LINE_BYTES_MAX} bytes, which no item can be")
        text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if text.strip():
            try:
                yield _item(text)
            except (ValueError, RecursionError) as reason:
                raise InputError(f"{path}, line {number}: {str(reason)[:200]}") from None


def _item(line: bytes) -> Item:
    try:
        document = json.loads(line, parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object, but each line must be one")  # noqa: TRY004 - one kind of error for a line
    if set(document) == {"Item"} and isinstance(document["Item"], dict):
        return {name: _checked(name, value) for name, value in document["Item"].items()}
    return {name: _typed(value) for name, value in document.items()}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _checked(name: str, value: Any) -> dict[str, Any]:
    """Check one attribute of an export; numbers come out in plain digits."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "M" and isinstance(content, dict):
            return {"M": {inner: _checked(inner, member) for inner, member in content.items()}}
        if kind == "L" and isinstance(content, list):
            return {"L": [_checked(name, member) for member in content]}
        if kind in _SCALARS and _is_scalar(kind, content):
            return {kind: _digits(content) if kind == "N" else content}
        if kind in _SETS and isinstance(content, list) and content:
            scalar = kind[0]
            if all(_is_scalar(scalar, member) for member in content):
                return {kind: [_digits(member) if scalar == "N" else member for member in content]}
    raise ValueError(f'attribute {name!r} is not in DynamoDB JSON, such as {{"S": "text"}} or {{"N": "12"}}')


def _is_scalar(kind: str, content: Any) -> bool:
    if kind == "B":
        return isinstance(content, str) and _is_base64(content)
    if kind == "BOOL":
        return isinstance(content, bool)
    return content is True if kind == "NULL" else isinstance(content, str) and not isinstance(content, _Number)


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _typed(value: Any) -> dict[str, Any]:
    if isinstance(value, _Number):
        return {"N": _digits(value)}
    if isinstance(value, str):
        return {"S": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    if isinstance(value, list):
        return {"L": [_typed(member) for member in value]}
    return {"M": {name: _typed(member) for name, member in value.items()}}


def _digits(text: str) -> str:
    digits = plain_digits(text)
    if len(digits.lstrip("-").replace(".", "").strip("0")) > _DIGITS_MAX:
        raise ValueError(f"the number {digits[:60]} has more than the {_DIGITS_MAX} digits that DynamoDB keeps")
    return digits
